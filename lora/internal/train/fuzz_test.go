package train

import (
	"errors"
	"os"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/safetensors"
)

// FuzzState: the state of an interrupted training run.
func FuzzState(f *testing.F) {
	path := Folder(f.TempDir()).State(3)
	entries := []entry{
		f32Entry("a", []float32{1, 2}), f32Entry(optimiser+"m.a", []float32{3, 4}),
		f32Entry(optimiser+"v.a", []float32{5, 6}),
	}

	if err := writeState(path, entries, steps{Step: 3}); err != nil {
		f.Fatal(err)
	}

	file, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}

	header, data := fuzzlimit.Parts(file)
	f.Add(header, data)
	f.Add(`{"__metadata__":{"progress":"{"}}`, []byte{})
	f.Add(`{"__metadata__":{"progress":"{\"step\":-1}"},"optimizer.a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`,
		[]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, header string, data []byte) {
		defer fuzzlimit.Watch(t, len(header)+len(data))()

		if err := os.WriteFile(path, fuzzlimit.File(header, data), 0o666); err != nil {
			t.Fatal(err)
		}

		var p steps
		s, err := readState(path, &p)
		if errors.Is(err, ErrState) { // of what is not damaged no more is known than of this
			s, err = safetensors.Open(path)
		}
		if err != nil {
			return
		}
		defer s.Close()

		_ = fillFrom(s, "a", make([]float32, 2))
		state, err := optimizerState(s)
		if err != nil {
			return
		}

		for name, x := range state {
			if len(x) > len(data) {
				t.Errorf("%s: %d values from %d bytes", name, len(x), len(data))
			}
		}
	})
}
