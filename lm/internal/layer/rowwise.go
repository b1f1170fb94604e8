package layer

import "github.com/modelcompress/compress/kernels"

// Kernels choose their order of summation by the number of rows that they multiply, so that a token's numbers depend,
// in their last bits, on how many others are in the same pass. Where passes are put together from the tokens of
// strangers, that must not show: a pass then says which products its rows go through, whatever else is there.
//
// What a product depends on was measured on every kernel of package cpu, for 1 to 70 rows: of weights of numbers and of
// quantised ones any number of rows up to 16 gives every row the same bits, but for a single one of BF16 where AMX
// takes the others (under [kernels.Fast] those of quantised weights change at 7 rows), and so does any number from 17
// on (33 where AMX takes those between). Of sparse weights and of deltas only multiples of 2 and 4 do. A group of rows
// is filled up to such a number with copies of its last one.

// Company says which products the rows of a pass go through.
type Company uint8

const (
	// Any gives all rows to a product at once: the fastest one for their number.
	Any Company = iota
	// Few gives every row the bits that it has in a product of few rows, as those of generation are.
	Few
	// Many gives every row the bits that it has in a product of many rows, as those of a prompt are.
	Many
)

const (
	fewRows     = 16 // that kernels for few rows take
	fewByteRows = 6  // of these, with quantised weights under Fast
	fewSparse   = 2  // of these, with sparse weights
	manyRows    = 36 // enough for the kernels for many rows
)

// group is how many rows are multiplied at a time, at most, and the number of which theirs is made a multiple.
func (p *Pass) group(w *Weight) (most, multiple int) {
	switch {
	case p.Company == Many:
		return 0, 1
	case w == nil: // deltas turn small products around, and weights are then taken in fours, too
		return fewRows, 4
	case !w.Sparse.IsZero():
		return fewSparse, fewSparse
	case !w.Coded.IsZero() && p.Precision == kernels.Fast:
		return fewByteRows, 1
	case w.Coded.IsZero() && w.Value.DType() == kernels.BF16:
		return fewRows, 2
	}
	return fewRows, 1
}

// rowwise computes dst from x by f, row by row alike, in groups of rows as the pass's company wants it. w is the weight
// that f multiplies with, nil for that of a delta. With read, f reads what dst had before.
func (p *Pass) rowwise(dst, x kernels.Mat, w *Weight, read bool, f func(dst, x kernels.Mat) error) error {
	if p.Company == Any {
		return f(dst, x)
	}

	most, multiple := p.group(w)
	if most == 0 {
		most = x.Rows
	}

	for lo := 0; lo < x.Rows; lo += most {
		hi := min(lo+most, x.Rows)
		full := (hi - lo + multiple - 1) / multiple * multiple
		if p.Company == Many {
			full = max(hi-lo, manyRows)
			if w == nil {
				full = (full + 3) / 4 * 4
			}
		}

		part, in := dst.RowRange(lo, hi), x.RowRange(lo, hi)
		if full == hi-lo {
			if err := f(part, in); err != nil {
				return err
			}
			continue
		}
		if err := p.filled(part, in, full, read, f); err != nil {
			return err
		}
	}

	return nil
}

// filled is f for rows that are too few: their last one stands for those that lack.
func (p *Pass) filled(dst, x kernels.Mat, full int, read bool, f func(dst, x kernels.Mat) error) error {
	sc := p.scratch
	if err := Grow(p.Device, &sc.filledIn, kernels.F32, full*x.Cols); err != nil {
		return err
	}
	if err := Grow(p.Device, &sc.filledOut, kernels.F32, full*dst.Cols); err != nil {
		return err
	}

	sc.fill = sc.fill[:0]
	for i := range full {
		sc.fill = append(sc.fill, int32(min(i, x.Rows-1)))
	}

	in, out := kernels.MatOf(sc.filledIn, full, x.Cols), kernels.MatOf(sc.filledOut, full, dst.Cols)
	p.ops.Gather(in, x, sc.fill, 1)
	if read {
		p.ops.Gather(out, dst, sc.fill, 1)
	}
	if err := f(out, in); err != nil {
		return err
	}

	p.ops.Convert(dst, out.RowRange(0, dst.Rows))
	return nil
}

// MatMulNT computes dst = x·wᵀ for a weight of numbers.
func (p *Pass) MatMulNT(dst, x kernels.Mat, w *Weight, o kernels.MatMul) error {
	return p.rowwise(dst, x, w, o.Accumulate, func(dst, x kernels.Mat) error {
		p.ops.MatMulNT(dst, x, w.Value, o)
		return nil
	})
}

// Product is [Setup.Product] with the pass's company.
func (p *Pass) Product(dst, x kernels.Mat, w *Weight, o kernels.MatMul) error {
	return p.rowwise(dst, x, w, o.Accumulate, func(dst, x kernels.Mat) error {
		p.Setup.Product(dst, x, w, o)
		return nil
	})
}
