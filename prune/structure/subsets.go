package structure

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// maxSubsets is how many choices of experts are tried in a layer at the most: 8 of 16 are 12,870.
const maxSubsets = 13_000

// subsets lists all choices of keep of n experts, as which of them stay.
func subsets(n, keep int) (list [][]bool) {
	chosen := make([]bool, n)
	var choose func(from, left int)
	choose = func(from, left int) {
		if left == 0 {
			list = append(list, append([]bool(nil), chosen...))
			return
		}
		for e := from; e <= n-left; e++ {
			chosen[e] = true
			choose(e+1, left-1)
			chosen[e] = false
		}
	}
	choose(0, keep)
	return list
}

// countSubsets is how many choices there are, as a float: of many experts there are more than integers can say.
func countSubsets(n, keep int) float64 {
	count := 1.0
	for i := range keep {
		count *= float64(n-i) / float64(i+1)
	}
	return math.Round(count)
}

// trySubsets finds, layer by layer, the experts with which the layer gives most nearly what it gives with all of them.
// The stream is that of the whole model.
func (x *experts) trySubsets(ctx context.Context) ([]Mixture, error) {
	c := x.m.Config()
	choices := subsets(c.Experts, x.keep)
	tally := newTally(x, int64(len(choices)+2), 1)

	var list []Mixture
	var lost []float64 // of each choice, the sum of squares of what the layer gives otherwise
	given := 0.0       // of what the layer adds to the stream
	err := through(ctx, x.m, x.calib, batchTokens, func(l, first int, h *lm.Hidden) error {
		if c.Mixture[l] {
			if first == 0 {
				lost, given = make([]float64, len(choices)), 0
			}
			added, err := x.compare(ctx, l, h, choices, lost, tally.run)
			if err != nil {
				return err
			}
			given += added
		}

		err := x.m.RunBlock(ctx, l, h, nil)
		tally.run(h)
		if err != nil || !c.Mixture[l] || first+len(h.Lens) < len(x.calib.IDs) {
			return err
		}

		least := 0
		for i, v := range lost {
			if v < lost[least] {
				least = i
			}
		}
		mixture := Mixture{Block: l, Tried: len(choices)}
		for e, stays := range choices[least] {
			if stays {
				mixture.Kept = append(mixture.Kept, e)
			}
		}
		if given > 0 {
			mixture.Lost = lost[least] / given
		}
		list = append(list, mixture)
		return nil
	})

	return list, err
}

// compare runs a layer with all experts and with each choice of them, and adds the squares of the differences to lost.
// It gives the squares of what the layer adds to the stream, which stays as it is.
func (x *experts) compare(ctx context.Context, l int, h *lm.Hidden, choices [][]bool, lost []float64,
	ran func(h *lm.Hidden),
) (added float64, err error) {
	dev := x.m.Device()
	out, err := dev.Alloc(kernels.F32, h.X.Len())
	if err != nil {
		return 0, err
	}
	defer out.Free()
	other := &lm.Hidden{X: kernels.MatOf(out, h.X.Rows, h.X.Cols), Lens: h.Lens}

	run := func(hooks *lm.Hooks) (kernels.Mat, error) {
		if err := x.m.RunBlockTo(ctx, l, other, h, hooks); err != nil {
			return kernels.Mat{}, err
		}
		ran(h)
		return hostmat.F32(dev, other.X)
	}

	before, err := hostmat.F32(dev, h.X)
	if err != nil {
		return 0, err
	}
	whole, err := run(nil)
	if err != nil {
		return 0, err
	}

	for i, choice := range choices {
		y, err := run(&lm.Hooks{Route: func(int) lm.Routing { return lm.Routing{Keep: choice} }})
		if err != nil {
			return 0, err
		}
		lost[i] += distance(whole, y)
		if v := lost[i]; v-v != 0 {
			return 0, fmt.Errorf("block %d: %w: what it gives", l, lm.ErrNonFinite)
		}
	}

	return distance(whole, before), nil
}

// distance is the sum of the squares of the differences of two matrices.
func distance(a, b kernels.Mat) float64 {
	sum := 0.0
	for i := range a.Rows {
		other := b.RowF32(i)
		for j, v := range a.RowF32(i) {
			d := float64(v) - float64(other[j])
			sum += d * d
		}
	}
	return sum
}

// tally counts the runs of layers.
type tally struct {
	x        *experts
	done, of int64
}

// newTally expects so many runs of each mixture and of each other layer.
func newTally(x *experts, mixture, other int64) *tally {
	t := &tally{x: x}
	runs := int64(0)
	for _, is := range x.m.Config().Mixture {
		if is {
			runs += mixture
		} else {
			runs += other
		}
	}
	t.of = runs * int64(len(x.calib.IDs))
	return t
}

// run counts one, of a layer on some sequences.
func (t *tally) run(h *lm.Hidden) {
	t.done += int64(len(h.Lens))
	t.x.progress(t.done, t.of)
}
