package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// generated is what the command writes.
var generated = sync.OnceValues(generate)

// TestCommittedFilesAreCurrent regenerates every file and compares it with the committed one.
func TestCommittedFilesAreCurrent(t *testing.T) {
	files, err := generated()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run `go run .` in kernels/_gen/arm", name)
		}
	}
}

// TestWords: GNU objdump reads every word of the committed files as what the comment beside it says.
func TestWords(t *testing.T) {
	objdump := ""
	for _, name := range []string{"aarch64-linux-gnu-objdump", "objdump"} {
		if out, err := exec.Command(name, "-i").Output(); err == nil && strings.Contains(string(out), "aarch64") {
			objdump = name
			break
		}
	}
	if objdump == "" {
		t.Skip("needs GNU objdump for aarch64")
	}

	files, err := generated()
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]uint32{}
	form := regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`)
	for _, content := range files {
		for _, m := range form.FindAllStringSubmatch(string(content), -1) {
			w, err := strconv.ParseUint(m[1], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			if old, ok := words[m[2]]; ok && old != uint32(w) {
				t.Fatalf("two words for %s", m[2])
			}
			words[m[2]] = uint32(w)
		}
	}

	var code []byte
	var want []string
	for text, w := range words {
		code = binary.LittleEndian.AppendUint32(code, w)
		want = append(want, text)
	}
	path := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(path, code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(objdump, "-D", "-b", "binary", "-m", "aarch64", path).Output()
	if err != nil {
		t.Fatal(err)
	}

	lines := regexp.MustCompile(`(?m)^ *[0-9a-f]+:\t[0-9a-f]{8} *\t(.*)$`).FindAllStringSubmatch(string(out), -1)
	if len(lines) != len(want) {
		t.Fatalf("%d instructions, want %d", len(lines), len(want))
	}
	for i, m := range lines {
		if got := strings.Join(strings.Fields(m[1]), " "); got != want[i] {
			t.Errorf("%#08x is %s, want %s", words[want[i]], got, want[i])
		}
	}
}
