package peft

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// TestMovedStart: an adapter that still has the factors of a start that changed the base changes nothing at
// all, since the library takes out of the base what it adds; and without the base's weights it is refused.
func TestMovedStart(t *testing.T) {
	w := linalg.New(6, 4)
	for i := range w.Data {
		w.Data[i] = math.Sin(float64(3*i) + 1)
	}

	m := adapter.Module{Path: "layers.0.q_proj", Tensor: "q", In: 4, Out: 6, Role: "q"}
	weights := func(string) (kernels.Mat, error) {
		p := adapter.NewParam("q", 6, 4)
		w.ToF32(p.Value)
		return p.Value, nil
	}

	for _, rslora := range []bool{false, true} {
		for _, init := range []string{"pissa", "olora"} {
			c := adapter.Config{
				Kind: adapter.LoRA, Rank: 2, Alpha: 3, RSLoRA: rslora,
				Targets: adapter.Match{Names: []string{"q_proj"}},
			}
			l := &adapter.Low{Module: m, Rank: 2, Alpha: 3, Scale: c.ScaleOf(2, 3)}
			b, a, err := taken(w, init, 2, l.Scale)
			if err != nil {
				t.Fatal(err)
			}

			f := adapter.Plain{A: adapter.NewParam("A", 2, 4), B: adapter.NewParam("B", 6, 2)}
			a.ToF32(f.A.Value)
			b.Clone().ToF32(f.B.Value)
			l.Factors = f
			dir := filepath.Join(t.TempDir(), "a")
			if err := Write(dir, &adapter.Adapter{Config: c, Low: []*adapter.Low{l}}, WriteOptions{}); err != nil {
				t.Fatal(err)
			}

			text, err := configText(&adapter.Adapter{Config: c, Low: []*adapter.Low{l}}, WriteOptions{})
			if err != nil {
				t.Fatal(err)
			}

			if err := safefile.WriteFile(filepath.Join(dir, ConfigName), replaceInit(text, init), 0o666); err != nil {
				t.Fatal(err)
			}
			if _, err := Read(dir, []adapter.Module{m}); !errors.Is(err, adapter.ErrUnsupported) {
				t.Errorf("%s without the base: %v", init, err)
			}

			got, notes, err := ReadOn(dir, []adapter.Module{m}, weights)
			if err != nil || len(notes) != 1 {
				t.Fatal(notes, err)
			}

			checkNothing(t, init, got)
		}
	}
}

func replaceInit(text []byte, init string) []byte {
	o, err := orderedjson.Parse(text)
	if err != nil {
		panic(err)
	}

	if o.Has("init_lora_weights") {
		o.Set("init_lora_weights", []byte(`"`+init+`"`))
	}
	if text, err = o.Compact(); err != nil {
		panic(err)
	}

	return text
}

// checkNothing: scale·B·A is zero but for the rounding of float32, and says rank and scale alike.
func checkNothing(t *testing.T, init string, got *adapter.Adapter) {
	t.Helper()
	l := got.Low[0]
	if l.Rank != 4 || got.Config.Rank != 4 || math.Abs(got.Config.ScaleOf(l.Rank, l.Alpha)-l.Scale) > 1e-12 ||
		math.Abs(got.Config.Alpha-l.Alpha) > 1e-12 {
		t.Errorf("%s: rank %d, alpha %g, scale %g, %+v", init, l.Rank, l.Alpha, l.Scale, got.Config)
	}

	a, b := l.Pair()
	for i := range b.Rows {
		for j := range a.Cols {
			sum := 0.0
			for k := range l.Rank {
				sum += float64(b.RowF32(i)[k]) * float64(a.RowF32(k)[j])
			}
			if math.Abs(l.Scale*sum) > 1e-6 {
				t.Fatalf("%s: change of (%d, %d) is %g", init, i, j, l.Scale*sum)
			}
		}
	}
}

// TestVacantFile: a file, or a link to one, at the place of an adapter is told from a folder.
func TestVacantFile(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}

	for _, path := range []string{file, link} {
		for _, overwrite := range []bool{false, true} {
			if err := Vacant(path, overwrite); !errors.Is(err, stage.ErrExists) && !errors.Is(err, stage.ErrTarget) {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}
