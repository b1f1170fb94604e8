//go:build unix

package safetensors

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system"
)

// Files that fit one by one, but not together, are refused with their sum before there is any of them, also
// when some of a resumed output are there.
func TestOutputThatDoesNotFit(t *testing.T) {
	dir := t.TempDir()
	probe, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()

	_, most := system.Space(probe)
	if most <= 0 {
		t.Skip("the file system does not tell its free space")
	}

	half := most/2 + most/8
	tensors := []Info{{Name: "a", DType: U8, Shape: []int64{half}}, {Name: "b", DType: U8, Shape: []int64{half}}}
	out := filepath.Join(dir, "out")
	_, err = CreateDir(out, tensors, nil, DirOptions{MaxShardSize: half})
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), out+": not enough disk space") {
		t.Fatalf("error %v", err)
	}

	var needs, total int64
	if _, err := fmt.Sscanf(err.Error()[strings.Index(err.Error(), " ("):], " (%d bytes)", &needs); err != nil {
		t.Fatal(err)
	}
	if total = 2 * half; needs < total || needs > total+4096 {
		t.Errorf("it is said to need %d bytes, not a little over %d", needs, total)
	}
	if _, err := os.Lstat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}
