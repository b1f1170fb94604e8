package train

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// steps is the progress of a run, as far as these tests go.
type steps struct {
	Step int `json:"step"`
}

// TestDamagedState: whatever bit of a state flips, it is not read; the state before it is taken instead, with a remark.
func TestDamagedState(t *testing.T) {
	folder := Folder(t.TempDir())
	entries := []entry{
		f32Entry("b", []float32{1, 2}), f32Entry("a", []float32{3}),
		f32Entry(optimiser+"m.a", []float32{3, 4}),
	}

	older, newer := folder.State(1), folder.State(2)
	for path, n := range map[string]int{older: 1, newer: 2} {
		if err := writeState(path, entries, steps{Step: n}); err != nil {
			t.Fatal(err)
		}
	}

	text, err := os.ReadFile(newer)
	if err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(os.Remove(newer), os.WriteFile(newer, text, 0o666)); err != nil {
		t.Fatal(err)
	}

	var said []string
	newest := func() (string, *steps, error) {
		return Newest[steps](folder, func(s string) { said = append(said, s) })
	}
	if path, p, err := newest(); err != nil || path != newer || p.Step != 2 || said != nil {
		t.Fatalf("%s, %+v, %v, %q", path, p, err, said)
	}

	// In place, one byte at a time: a file that is written anew takes ten times as long.
	file, err := os.OpenFile(newer, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	flip := func(bit int) {
		bad := []byte{text[bit/8] ^ 1<<(bit%8)}
		if _, err := file.WriteAt(bad, int64(bit/8)); err != nil {
			t.Fatal(err)
		}
	}
	for bit := range 8 * len(text) {
		if bit%8 == 0 && bit > 0 {
			if _, err := file.WriteAt(text[bit/8-1:bit/8], int64(bit/8-1)); err != nil {
				t.Fatal(err)
			}
		}
		flip(bit)

		var p steps
		f, err := readState(newer, &p)
		if err == nil {
			_ = f.Close()
			t.Fatalf("bit %d of %d is not noticed", bit, 8*len(text))
		}

		var format *safetensors.Error
		if !errors.Is(err, ErrState) && !errors.As(err, &format) {
			t.Fatalf("bit %d: %v", bit, err)
		}
	}

	path, p, err := newest()
	if err != nil || path != older || p.Step != 1 {
		t.Errorf("%s, %+v, %v", path, p, err)
	}
	if len(said) != 1 || !strings.Contains(said[0], filepath.Base(newer)) {
		t.Errorf("said: %q", said)
	}

	if folder.Has(2) {
		t.Error("the damaged state is still there")
	}
	if err := os.WriteFile(older, []byte("short"), 0o666); err != nil {
		t.Fatal(err)
	}
	if path, _, err := newest(); err != nil || path != "" || len(said) != 2 {
		t.Errorf("%s, %v, %q", path, err, said)
	}
}
