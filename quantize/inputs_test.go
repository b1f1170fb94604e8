package quantize

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/quantize/imatrix"
)

// TestInputsOf: what an importance matrix says of a model's matrices is what was measured, to float32, and goes back
// into the same importance matrix. One that lacks entries, or is of other sizes, is another model's.
func TestInputsOf(t *testing.T) {
	m := open(t, nano, 2)
	w := calibration(t, m, 4, 32)
	f, err := Importance(ctx, m, w, "calib.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	inputs, err := InputsOf(ctx, m, f)
	if err != nil {
		t.Fatal(err)
	}

	n := 0
	for l := range m.Blocks() {
		for _, lin := range m.Linears(l) {
			n++
			in := inputs[lin.Name]
			sum := 0.0
			for _, s := range in.Squares {
				sum += s
			}
			if len(in.Squares) != lin.In || in.Tokens != 4*32 || !(sum > 0) {
				t.Errorf("%s: %d squares of sum %g, %d tokens", lin.Name, len(in.Squares), sum, in.Tokens)
			}
		}
	}
	if len(inputs) != n {
		t.Errorf("%d inputs, want %d", len(inputs), n)
	}
	down := inputs["model.layers.1.mlp.down_proj.weight"].Squares
	e, _ := f.Entry("blk.1.ffn_down.weight")
	if !slices.EqualFunc(down, e.Sums, func(a float64, b float32) bool { return a == float64(b) }) {
		t.Error("other squares of a matrix")
	}

	again, err := ImportanceOf(ctx, m, inputs, "calib.txt", w)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range f.Entries {
		a := again.Entries[i]
		if a.Name != e.Name || !slices.Equal(a.Sums, e.Sums) || !slices.Equal(a.Counts, e.Counts) {
			t.Errorf("entry %s is not what it was", e.Name)
		}
	}

	for _, c := range []struct {
		change func(f *imatrix.File)
		want   string
	}{
		{func(f *imatrix.File) {
			f.Entries = slices.Delete(f.Entries, 3, 5)
		}, "2 matrices of this model have no entry"},
		{func(f *imatrix.File) {
			f.Entries[2].Inputs = 32
			f.Entries[2].Sums = f.Entries[2].Sums[:32]
		}, "a row of the tensor"},
	} {
		other := *f
		other.Entries = slices.Clone(f.Entries)
		c.change(&other)
		_, err := InputsOf(ctx, m, &other)
		if !errors.Is(err, imatrix.ErrOther) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
