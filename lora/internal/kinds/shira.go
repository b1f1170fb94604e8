package kinds

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/pyrandom"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// The ways to choose the places of SHiRA's elements. Those with the highest scores are trained.
const (
	Random    = "random"    // as PEFT does by its seed
	Magnitude = "magnitude" // |W|
	Wanda     = "wanda"     // |W|·√Σx², x being what the weight is multiplied with
	ByGrad    = "gradient"  // |G|, the gradient of the loss
	SNIP      = "snip"      // |W·G|
)

// Masks are the names of those ways.
var Masks = []string{Random, Magnitude, Wanda, ByGrad, SNIP}

// elements makes SHiRA's changes for modules: as many elements as a LoRA of the rank has parameters, whose places are
// chosen later.
func elements(c *adapter.Config, modules []adapter.Module) ([]*adapter.Low, error) {
	var list []*adapter.Low
	var faults []error
	for _, m := range modules {
		if err := bounded(c.Rank, m.In, m.Out); err != nil {
			return nil, err
		}

		n := int64(c.Rank) * int64(m.In+m.Out)
		if n > int64(m.In)*int64(m.Out) {
			faults = append(faults, fmt.Errorf("%w: %s has %d × %d elements, of which SHiRA of rank %d would change %d",
				adapter.ErrConfig, m.Path, m.Out, m.In, c.Rank, n))
			continue
		}

		s := adapter.Sparse{
			Rows: make([]int32, n), Cols: make([]int32, n), In: m.In, Out: m.Out,
			Value: adapter.NewFactor(m.Path+".shira_weight", 1, int(n)),
		}
		s.Value.Shape = []int64{n}
		list = append(list,
			&adapter.Low{Module: m, Rank: s.Rank(), Alpha: float64(s.Rank()), Scale: 1, Factors: s})
	}

	return list, errors.Join(faults...)
}

// place chooses the places of an adapter's elements where no data is needed for it.
func place(a *adapter.Adapter, base Base, seed uint64) error {
	c := &a.Config
	switch {
	case !slices.Contains(Masks, c.SHiRA.Mask):
		return fmt.Errorf("%w: SHiRA mask %.60q; known: %v", adapter.ErrConfig, c.SHiRA.Mask, Masks)
	case c.SHiRA.Mask == Random && c.KeepZeros:
		return failure.Hinted(fmt.Errorf("%w: places at random are also where zeros of the base stay zero",
			adapter.ErrConfig), "--shira-mask magnitude, or another that looks at the weights")
	case c.SHiRA.Mask == Random:
		c.SHiRA.Seed = &seed
	}

	for _, l := range a.Low {
		s := l.Factors.(adapter.Sparse)
		switch c.SHiRA.Mask {
		case Random:
			// PEFT's generator begins anew with every matrix, so that those of one shape have the same places.
			list := pyrandom.NewTorch(seed).Permutation(s.In*s.Out, len(s.Rows))
			slices.Sort(list)
			for i, at := range list {
				s.Rows[i], s.Cols[i] = int32(at/s.In), int32(at%s.In)
			}
		case Magnitude:
			w, err := base.Values(l.Module.Tensor)
			if err != nil {
				return err
			}
			if err := Best(s, func(o, i int) float32 { return w.RowF32(o)[i] }); err != nil {
				return fmt.Errorf("%s: %w", l.Module.Path, err)
			}
		}
	}

	return nil
}

// Best puts the elements of a sparse change where the magnitude of a score is largest; of equal ones the first rows and
// columns count.
func Best(s adapter.Sparse, score func(out, in int) float32) error {
	// The bits of a number that is not negative are in its order, so that two rounds of counting find the least score
	// that counts, without sorting as many as a matrix has.
	bits := func(o, i int) uint32 { return math.Float32bits(score(o, i)) &^ (1 << 31) }
	const infinite = 0x7f800000
	high := make([]int, 1<<16)
	for o := range s.Out {
		for i := range s.In {
			b := bits(o, i)
			if b >= infinite {
				return fmt.Errorf("%w: the score of element (%d, %d) is not finite", adapter.ErrUnsupported, o, i)
			}
			high[b>>16]++
		}
	}

	top, left := least(high, len(s.Rows))
	low := make([]int, 1<<16)
	for o := range s.Out {
		for i := range s.In {
			if b := bits(o, i); b>>16 == top {
				low[b&0xffff]++
			}
		}
	}

	last, ties := least(low, left)
	bound, n := top<<16|last, 0
	for o := range s.Out {
		for i := range s.In {
			b := bits(o, i)
			if b == bound && ties > 0 {
				ties--
			} else if b <= bound {
				continue
			}
			s.Rows[n], s.Cols[n] = int32(o), int32(i)
			n++
		}
	}

	return nil
}

// least is the lowest of counted values among the n highest, and how many of the n it stands for.
func least(counts []int, n int) (value uint32, left int) {
	for v := len(counts) - 1; v > 0; v-- {
		if n <= counts[v] {
			return uint32(v), n
		}
		n -= counts[v]
	}
	return 0, n
}

// linearOnly refuses modules that PEFT has no form of a kind for.
func linearOnly(c *adapter.Config, modules []adapter.Module) error {
	if c.Kind != adapter.MiSS && c.Kind != adapter.SHiRA && c.Kind != adapter.GraLoRA {
		return nil
	}

	for _, m := range modules {
		switch {
		case m.Table:
			return failure.Hinted(fmt.Errorf("%w: %s is a token table, which kind %s does not change",
				adapter.ErrUnsupported, m.Path, c.Kind), "--kind lora does")
		case m.Transposed && c.Kind != adapter.GraLoRA:
			return failure.Hinted(fmt.Errorf("%w: %s is stored [in, out] (Conv1D), for which PEFT has no %s",
				adapter.ErrUnsupported, m.Path, c.Kind), "--kind lora or gralora")
		}
	}

	return nil
}
