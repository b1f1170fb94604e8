package imatrix

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

func some() *File {
	return &File{
		Datasets: []string{"a.txt"}, Chunks: 3, ChunkSize: 8,
		Entries: []Entry{
			{Name: "blk.0.attn_q.weight", Inputs: 4, Sums: []float32{24, 0, 6, 1.5}, Counts: []int64{24}},
			{
				Name: "blk.0.ffn_up_exps.weight", Inputs: 2, Sums: []float32{8, 16, 0, 0, 3, 9},
				Counts: []int64{16, 0, 8},
			},
		},
	}
}

// TestWrite: what is written is read again.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := some().Write(path, false); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, some()) {
		t.Errorf("%+v", got)
	}
	if some().Write(path, false) == nil {
		t.Error("a file was replaced unasked")
	}
}

// TestImportance: means over the tokens of a matrix; 1 where there were none.
func TestImportance(t *testing.T) {
	f := some()
	e, ok := f.Entry("blk.0.ffn_up_exps.weight")
	if !ok {
		t.Fatal("no entry")
	}
	for m, want := range [][]float32{{.5, 1}, {1, 1}, {.375, 1.125}} {
		if got := e.Importance(m); !reflect.DeepEqual(got, want) {
			t.Errorf("matrix %d: %v, want %v", m, got, want)
		}
	}
	if _, ok := f.Entry("blk.0.attn_k.weight"); ok {
		t.Error("an entry that is not there")
	}
}

// TestLegacy: the old form has the same means, in as many matrices as the tensor of the model says.
func TestLegacy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.dat")
	if err := some().WriteLegacy(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Chunks != 3 || got.Datasets[0] != "a.txt" || len(got.Entries) != 2 {
		t.Errorf("%+v", got)
	}

	for _, want := range some().Entries {
		e, _ := got.Entry(want.Name)
		if err := e.Split(want.Inputs); err != nil {
			t.Fatal(err)
		}
		for m := range want.Matrices() {
			a, b := e.Importance(m), want.Importance(m)
			for i := range a {
				if math.Abs(float64(a[i]-b[i])) > 1e-6*float64(b[i]) {
					t.Errorf("%s, matrix %d: %v, want %v", e.Name, m, a, b)
				}
			}
		}
		if err := e.Split(5); !errors.Is(err, ErrOther) {
			t.Errorf("%v", err)
		}
	}
}

// TestOracle: files of llama-imatrix in both forms; see testdata/README.md.
func TestOracle(t *testing.T) {
	a, err := Read("testdata/nano.gguf")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Read("testdata/nano.dat")
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Entries) != 28 || len(b.Entries) != 28 || a.ChunkSize != 128 || a.Chunks != b.Chunks || a.Chunks != 4 {
		t.Fatalf("%d and %d entries, %d chunks of %d", len(a.Entries), len(b.Entries), a.Chunks, a.ChunkSize)
	}
	for i := range a.Entries {
		x, y := a.Entries[i], b.Entries[i]
		if x.Name != y.Name || x.Inputs != y.Inputs || x.Count(0) != 512 {
			t.Errorf("%s and %s: %d and %d inputs, %v tokens", x.Name, y.Name, x.Inputs, y.Inputs, x.Counts)
		}
		p, q := x.Importance(0), y.Importance(0)
		for j := range p {
			if math.Abs(float64(p[j]-q[j])) > 1e-6*float64(p[j]) {
				t.Fatalf("%s, input %d: %g and %g", x.Name, j, p[j], q[j])
			}
		}
	}
}

// FuzzRead: strangers' files end in an error or in something that holds together, and is written and read again.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"testdata/nano.gguf", "testdata/nano.dat"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("\x01\x00\x00\x00\x01\x00\x00\x00x\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x80\x3f"))
	f.Add([]byte("\xff\xff\xff\x7f\x01\x00\x00\x00"))

	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()
		dir := t.TempDir()
		path := filepath.Join(dir, "m")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Read(path)
		if err != nil {
			return
		}

		for i := range m.Entries {
			e := &m.Entries[i]
			for k := range e.Matrices() {
				if len(e.Importance(k)) != e.Inputs {
					t.Fatalf("%d inputs", e.Inputs)
				}
			}
		}
		again := filepath.Join(dir, "n.gguf")
		if err := m.Write(again, false); err != nil {
			return // names that GGUF does not allow
		}
		if _, err := Read(again); err != nil {
			t.Fatal(err)
		}
	})
}
