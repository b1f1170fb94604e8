package gguf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// split writes the parts of a model, whose file for number i is what part returns, and returns their paths.
func split(t *testing.T, count int, part func(i int) []byte) []string {
	t.Helper()
	dir := t.TempDir()
	paths := make([]string, count)
	for i := range paths {
		paths[i] = filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i+1, count))
		if err := os.WriteFile(paths[i], part(i), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// part is one with a tensor of its own.
func part(no, count uint16, tensor string, total int32) []byte {
	return head(1, 3).pair(splitNoKey, Of(no)).pair(splitCountKey, Of(count)).pair(splitTensorsKey, Of(total)).
		tensor(tensor, F32, 0, 1).data(4).b
}

func TestSplitFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		part func(i int) []byte
		want error
		says string
	}{
		{"count", func(int) []byte { return part(0, 2, "a", 2) }, ErrSplit, "it says that it is part 1 of 2"},
		{"number", func(i int) []byte { return part(1, 2, fmt.Sprint(i), 2) }, ErrSplit, "-00002-of-00002.gguf"},
		{"beyond", func(int) []byte { return part(2, 2, "a", 2) }, ErrSplit, "split.no 2, split.count 2"},
		{
			"duplicate", func(i int) []byte { return part(uint16(i), 2, "a", 2) }, ErrDuplicate,
			"m-00001-of-00002.gguf has it too",
		},
		{
			"total", func(i int) []byte { return part(uint16(i), 2, fmt.Sprint(i), 3) }, ErrSplit,
			"3, and the parts have 2 tensors",
		},
		{
			"broken", func(i int) []byte {
				b := part(uint16(i), 2, fmt.Sprint(i), 2)
				return b[:len(b)-i]
			}, ErrTruncated,
			"m-00002-of-00002.gguf",
		},
	} {
		paths := split(t, 2, c.part)
		_, err := OpenModel(paths[0])
		checkFault(t, c.name, err, c.want, c.says)
	}
}

func TestMissingPart(t *testing.T) {
	paths := split(t, 4, func(i int) []byte { return part(uint16(i), 4, fmt.Sprint(i), 4) })
	for _, i := range []int{0, 2} {
		if err := os.Remove(paths[i]); err != nil {
			t.Fatal(err)
		}
	}

	_, err := OpenModel(paths[1])
	checkFault(t, "missing", err, ErrMissingPart, `2 of 4: "m-00001-of-00004.gguf", "m-00003-of-00004.gguf"`)

	renamed := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.Rename(paths[1], renamed); err != nil {
		t.Fatal(err)
	}
	_, err = OpenModel(renamed)
	checkFault(t, "renamed", err, ErrSplit, "must have a name that ends in -00002-of-00004.gguf")

	if f, err := Open(renamed); err != nil {
		t.Error("one part alone:", err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestIsPart(t *testing.T) {
	for name, want := range map[string][2]int{
		"a/m-00002-of-00003.gguf": {2, 3}, "m-00004-of-00003.gguf": {}, "m-00000-of-00003.gguf": {}, "m.gguf": {},
		"m-1-of-3.gguf": {},
	} {
		no, count, ok := IsPart(name)
		if ok != (want[0] > 0) || ok && (no != want[0] || count != want[1]) {
			t.Errorf("%s: %d of %d, %v", name, no, count, ok)
		}
	}
}

// TestPartPaths: any part leads to all that are there, and what is no part to itself.
func TestPartPaths(t *testing.T) {
	paths := split(t, 3, func(i int) []byte { return part(uint16(i), 3, fmt.Sprint(i), 3) })
	if err := os.Remove(paths[1]); err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string][]string{
		paths[0]: {paths[0], paths[2]}, paths[1]: paths, paths[2]: {paths[0], paths[2]}, "m.gguf": {"m.gguf"},
	} {
		if got := PartPaths(path); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestReads: every way of reading gives the same bytes, and every use of what is not there its own error.
func TestReads(t *testing.T) {
	paths := split(t, 2, func(i int) []byte { return part(uint16(i), 2, fmt.Sprint(i), 2) })
	m, err := OpenModel(paths[1])
	if err != nil {
		t.Fatal(err)
	}

	view, err := m.Bytes("0")
	if err != nil || len(view) != 4 {
		t.Fatal(view, err)
	}
	p := make([]byte, 5)
	if n, err := m.ReadAt("1", p, 1); n != 3 || err != io.EOF {
		t.Error(n, err)
	}
	if n, err := m.ReadAt("1", p[:2], 0); n != 2 || err != nil {
		t.Error(n, err)
	}
	if err := m.Release("0"); err != nil {
		t.Error(err)
	}
	if info, ok := m.Info("1"); !ok || info.Size != 4 || m.PartOf("1") != m.Parts()[1] {
		t.Error(info, ok)
	}

	_, err = m.ReadAt("1", p, 5)
	checkFault(t, "range", err, ErrRange, `tensor "1"`)
	_, err = m.Bytes("x")
	checkFault(t, "unknown", err, ErrUnknownTensor, `tensor "x"`)
	checkFault(t, "unknown", m.View("x", nil), ErrUnknownTensor, `tensor "x"`)
	checkFault(t, "unknown", m.Release("x"), ErrUnknownTensor, `tensor "x"`)
	if _, ok := m.Info("x"); ok || m.PartOf("x") != nil {
		t.Error("an unknown tensor is known")
	}

	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	_, err = m.Bytes("0")
	checkFault(t, "closed", err, ErrClosed, paths[0])
	_, err = m.ReadAt("0", p, 0)
	checkFault(t, "closed", err, ErrClosed, paths[0])
}

// TestShortened: a file that is cut off while it is open is an error of the access that finds it out.
func TestShortened(t *testing.T) {
	systemtest.NeedsCuts(t)
	path := filepath.Join(t.TempDir(), "m.gguf")
	const size = 1 << 20
	if err := os.WriteFile(path, head(1, 0).tensor("a", I8, 0, size).data(size).b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	sum := 0
	err = f.View("a", func(data []byte) error {
		for _, v := range data {
			sum += int(v)
		}
		return nil
	})
	checkFault(t, "view", err, ErrTruncated, "it became shorter while it was read")
	_, err = f.ReadAt("a", make([]byte, 8), size-8)
	checkFault(t, "read", err, ErrTruncated, `tensor "a"`)
}

// TestNotRegular: what is no file is refused, and does not hold anybody up.
func TestNotRegular(t *testing.T) {
	_, err := Open(t.TempDir())
	checkFault(t, "folder", err, ErrNotRegular, "")
	_, err = Open(filepath.Join(t.TempDir(), "x"))
	if !errors.Is(err, os.ErrNotExist) || strings.Count(err.Error(), "x") == 0 {
		t.Error(err)
	}
}
