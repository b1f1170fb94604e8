package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/merge/internal/method"
)

// broken is an item of n elements of which some are not finite.
func broken(t *testing.T, n int, at map[int]float32) *Item {
	t.Helper()
	data := values(n)
	for i, v := range at {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
	}
	return item(t, "w", data, nil)
}

// TestLostNonFinite: what is not finite is counted in a tensor's inputs and in what is made of it, whether a
// method drops it, keeps it or spreads it.
func TestLostNonFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for name, c := range map[string]struct {
		apply func(b *method.Block)
		at    map[int]float32
		want  []NonFinite
	}{
		"kept": {func(b *method.Block) {
			copy(b.Out,
				b.X[0])
		}, map[int]float32{7: nan, 9: inf}, []NonFinite{{"w", "m", 1, 1, 7, 2}}},
		"dropped": {func(b *method.Block) {
			clear(
				b.Out)
		}, map[int]float32{7: nan}, []NonFinite{{"w", "m", 1, 0, 7, 0}}},
		"spread": {func(b *method.Block) {
			fill(b.Out,
				nan)
		}, map[int]float32{7: nan}, []NonFinite{{"w", "m", 1, 0, 7, 100}}},
		"made": {func(b *method.Block) { fill(b.Out, inf) }, nil, []NonFinite{{"w", "", 0, 0, -1, 100}}},
		"none": {func(b *method.Block) { copy(b.Out, b.X[0]) }, nil, nil},
	} {
		g := Group{Items: []*Item{broken(t, 100, c.at)}, Program: &method.Program{Apply: c.apply}}
		r, err := Run(t.Context(), []Group{g}, &sink{}, Options{Threads: 2, AllowNonFinite: true})
		if err != nil {
			t.Fatal(err)
		}

		if len(r.NonFinite) != len(c.want) || len(c.want) == 1 && r.NonFinite[0] != c.want[0] {
			t.Errorf("%s: %+v, want %+v", name, r.NonFinite, c.want)
		}
	}
}

// TestRefusedIsNotWritten: the last chunk of a tensor can be written before the driver of its group has looked at what
// was counted. The tensor is not reported as written then, or a journal would take it for one that needs no look.
func TestRefusedIsNotWritten(t *testing.T) {
	for _, allow := range []bool{false, true} {
		ctx, fail := context.WithCancelCause(t.Context())
		told := false
		e := &engine{ctx: ctx, fail: fail, o: Options{
			AllowNonFinite: allow, Written: func(string) error { told = true; return nil },
		}}
		r := &run{Item: broken(t, 2, nil), bad: []NonFinite{{NaN: 1, First: 1}, {}}}
		r.left.Store(4)
		e.written(chunk{item: r, data: make([]byte, 4)})

		err := context.Cause(ctx)
		var found NonFinite
		if told != allow || errors.As(err, &found) == allow || !allow && (found.Tensor != "w" || found.Model != "m") {
			t.Errorf("allowed %v: reported as written: %v, error %v", allow, told, err)
		}
		fail(nil)
	}
}

// TestNamedInCopies: the driver and a writer may look at the same counts, so neither changes them (-race).
func TestNamedInCopies(t *testing.T) {
	e := &engine{}
	r := &run{Item: broken(t, 2, nil), bad: []NonFinite{{NaN: 1, First: 1}, {}}}
	if err := e.check([]*run{r}); !errors.Is(err, ErrNonFinite) {
		t.Error(err)
	}
	if n := r.bad[0]; n.Tensor != "" || n.Model != "" {
		t.Errorf("counts got names: %+v", n)
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// TestUndefined: a method that decomposes matrices names the tensor, the model and the place of what it cannot take.
func TestUndefined(t *testing.T) {
	it := broken(t, 100, map[int]float32{23: float32(math.NaN())})
	it.Tensor.Shape = []int64{10, 10}
	p := &method.Program{Whole: func(w *method.Whole) error {
		_, _, _, err := linalg.Solver{}.SVD(linalg.Of([]float64{float64(w.X[0][23])}, 1, 1))
		return err
	}}

	_, err := Run(t.Context(), []Group{{Items: []*Item{it}, Program: p}}, &sink{}, Options{AllowNonFinite: true})
	if !errors.Is(err, ErrUndefined) ||
		!strings.Contains(err.Error(), `"w" of m: 1 NaN and 0 infinite values, the first at row 2, column 3`) {
		t.Error(err)
	}
}
