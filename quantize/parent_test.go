package quantize

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// The errors that AWQ chooses by are those of the attention and of the MLP: as far as they go without factors, what
// rounding by itself does to the output of a block whose other branch gives nothing, or the same.
func TestParent(t *testing.T) {
	m := open(t, nano, 2)
	calib := calibration(t, m, 3, 150)

	r, err := Model(ctx, m, calib, options(t, "w4a16", AWQ, filepath.Join(t.TempDir(), "out")))
	if err != nil {
		t.Fatal(err)
	}
	alone := options(t, "w4a16", RTN, filepath.Join(t.TempDir(), "out"))
	if _, err := Model(ctx, m, calib, alone); err != nil {
		t.Fatal(err)
	}
	rounded := source(t, alone.Out)

	for _, c := range []struct {
		into  []arch.Role
		quiet arch.Role // gives nothing
	}{
		{into: []arch.Role{arch.Q, arch.K, arch.V}, quiet: arch.Down},
		{into: []arch.Role{arch.Gate, arch.Up}},
	} {
		var names []string
		var outputs [2][]float32
		for k := range outputs {
			m := open(t, nano, 2)
			for _, lin := range m.Linears(0) {
				switch {
				case lin.Role == c.quiet:
					put(t, m, lin.Name, make([]float32, lin.In*lin.Out))
				case k == 1 && slices.Contains(c.into, lin.Role):
					put(t, m, lin.Name, values(t, rounded, lin.Name))
					names = append(names, lin.Name)
				}
			}
			h, err := m.Embed(calib.IDs)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.RunBlock(ctx, 0, h, nil); err != nil {
				t.Fatal(err)
			}
			outputs[k] = slices.Clone(h.X.Buf.F32()[:h.X.Len()])
			h.Free()
		}

		want := 0.0
		for i, v := range outputs[0] {
			d := float64(outputs[1][i]) - float64(v)
			want += d * d
		}
		i := slices.IndexFunc(r.Folds, func(f Fold) bool { return slices.Equal(f.Into, names) })
		if i < 0 {
			t.Fatalf("no factors for %v", names)
		}
		// In the folder scales and values are of type BF16, whose eight bits move a code now and then.
		if got := r.Folds[i].Before; math.Abs(got-want) > 0.05*want || want == 0 {
			t.Errorf("%v: error %g, want %g", c.into, got, want)
		}
	}
}

// put changes a matrix of a model.
func put(t *testing.T, m *lm.Model, name string, v []float32) {
	t.Helper()
	own, err := m.MutableParam(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := hostmat.Store(m.Device(), own, kernels.MatOf(kernels.WrapF32(v), own.Rows, own.Cols), false); err != nil {
		t.Fatal(err)
	}
}

// Excerpts are the beginnings of sequences that are spread over all, however the batches fall.
func TestExcerpts(t *testing.T) {
	ids := make([][]int32, 9)
	for i := range ids {
		ids[i] = make([]int32, 300+i)
	}
	e := newExcerpts(open(t, nano, 1).Device(), ids)
	for lo := 0; lo < len(ids); lo += 4 {
		var x []float32
		for i := lo; i < min(lo+4, len(ids)); i++ {
			for at := range ids[i] {
				x = append(x, float32(i), float32(at))
			}
		}
		if err := e.add(kernels.MatOf(kernels.WrapF32(x), len(x)/2, 2)); err != nil {
			t.Fatal(err)
		}
	}

	if want := []int{256, 256, 256, 256}; !slices.Equal(e.lens, want) {
		t.Fatalf("lengths %v", e.lens)
	}
	for k, i := range []int{0, 2, 4, 6} {
		for at := range 256 {
			if got := e.mat().RowF32(256*k + at); got[0] != float32(i) || got[1] != float32(at) {
				t.Fatalf("excerpt %d, token %d: %v", k, at, got)
			}
		}
	}
}
