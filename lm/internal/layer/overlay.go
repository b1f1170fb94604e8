package layer

import (
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// Overlay is deltas that act on some rows of a pass alone, after those that act on all: adapters of single requests.
type Overlay struct {
	Lo, Hi int32 // rows of the pass
	Of     map[*Linear]Delta
}

// LowRank is a [Delta] that may do no more than add a product of low rank to each row.
type LowRank interface {
	// LowRank gives the factors, if that is all.
	LowRank() (pair kernels.LowRank, ok bool)
}

// overlay lets the pass's overlays act on their rows of y, a linear's output for x.
//
// Products of low rank for few rows are computed row by row, each with its own factors, in one go for all overlays.
// With many rows, an overlay's rows are multiplied together.
func (p *Pass) overlay(y, x kernels.Mat, l *Linear) error {
	pairs, some := p.scratch.pairs[:0], false
	for _, o := range p.Overlays {
		d := o.Of[l]
		if d == nil {
			continue
		}
		lo, hi := p.within(o, x.Rows)
		if lo == hi {
			continue
		}

		if pair, ok := p.lowRank(d); ok {
			pairs, some = append(pairs, make([]kernels.LowRank, lo-len(pairs))...), true
			pairs = append(pairs, slices.Repeat([]kernels.LowRank{pair}, hi-lo)...)
			continue
		}
		if err := p.rowwise(y.RowRange(lo, hi), x.RowRange(lo, hi), nil, true, func(y, x kernels.Mat) error {
			return d.Forward(x, y)
		}); err != nil {
			return err
		}
	}

	if some {
		pairs = append(pairs, make([]kernels.LowRank, x.Rows-len(pairs))...)
		p.ops.AddLowRank(y, x, pairs)
	}
	clear(pairs) // factors may go before the pass's memory does
	p.scratch.pairs = pairs

	return nil
}

// within gives the rows of an overlay among those that a linear sees.
func (p *Pass) within(o Overlay, rows int) (lo, hi int) {
	if p.chosen == nil {
		return int(o.Lo), min(int(o.Hi), rows)
	}
	lo, _ = slices.BinarySearch(p.chosen, o.Lo)
	hi, _ = slices.BinarySearch(p.chosen, o.Hi)
	return lo, hi
}

// lowRank gives the factors of a delta where rows are few and that is all it is.
func (p *Pass) lowRank(d Delta) (kernels.LowRank, bool) {
	low, ok := d.(LowRank)
	if !ok || p.Company != Few {
		return kernels.LowRank{}, false
	}
	return low.LowRank()
}
