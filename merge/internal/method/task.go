package method

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/merge/internal/vec"
)

// sparsifier says which elements of a difference stay.
type sparsifier uint8

const (
	keepAll   sparsifier = iota
	largest              // TIES: the largest magnitudes
	random               // DARE: each with the probability of the density
	inner                // breadcrumbs: without the outliers and the small ones
	graduated            // DELLA: with a probability that grows with the rank in the row
)

// arithmetic is the family of task arithmetic: δ_j sparsified and weighted, with or without an election of signs.
//
//	v_j = w_j·sparse(δ_j); out = b + λ·Σ v_j/(Σ w_j if normalised)
//
// With consensus, only the v_j count whose sign is that of Σ v_j, element by element, and only their w_j. TIES (Yadav
// et al., 2023, arXiv:2306.01708) is the largest magnitudes with consensus: trim, elect, disjoint merge. DARE (Yu et
// al., 2024, arXiv:2311.03099), breadcrumbs and DELLA choose other elements.
type arithmetic struct {
	consensus bool
	sparsify  sparsifier
}

func (a arithmetic) program(g []*Tensor) (*Program, error) {
	for _, t := range g {
		if !t.Base {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, ErrNoBase)
		}
	}

	if len(g[0].Inputs) == 0 {
		return &Program{Apply: func(b *Block) { copy(b.Out, b.Base) }}, nil
	}

	r := &arithmeticRun{
		arithmetic: a, group: g, factor: make([][]float64, len(g)),
		windows: make([]Window, len(g[0].Inputs)),
	}
	for i, t := range g {
		if err := a.check(t); err != nil {
			return nil, err
		}
		if len(t.Inputs) != len(g[0].Inputs) {
			return nil, fmt.Errorf("tensor %q: thresholds over the whole model need it in every input: %w", t.Name,
				ErrFewInputs)
		}

		r.factor[i] = slices.Repeat([]float64{1}, len(t.Inputs))
		r.n += t.N
	}

	p := r.program()
	p.Warnings = denseWarnings(g)
	return p, nil
}

// denseWarnings tells of densities above 1, which count as 1.
func denseWarnings(g []*Tensor) (list []string) {
	for _, t := range g {
		for _, in := range t.Inputs {
			if d := in.Params.Number("density"); d > 1 {
				list = append(list, fmt.Sprintf("tensor %q: density %g of %s counts as 1", t.Name, d, in.Name))
			}
		}
	}
	return list
}

// check refuses parameters that have no meaning.
func (a arithmetic) check(t *Tensor) error {
	for _, in := range t.Inputs {
		if a.sparsify == keepAll {
			break
		}

		d := in.Params.Number("density")
		if math.IsNaN(d) || a.sparsify != graduated && d < 0 {
			return outOfRange(t, "density", d, "between 0 and 1")
		}

		if a.sparsify == inner {
			if g := in.Params.Number("gamma"); !(g >= 0 && g <= 1) {
				return outOfRange(t, "gamma", g, "between 0 and 1")
			}
		}

		e := 0.0
		if a.sparsify == graduated && d > 0 && d < 1 {
			e = in.Params.Number("epsilon")
			if !(d-math.Abs(e) > 0 && d+math.Abs(e) < 1) {
				return outOfRange(t, "epsilon", e, fmt.Sprintf("so small that the density %g ± epsilon stays "+
					"inside (0, 1)", d))
			}
		}
	}

	return nil
}

// arithmeticRun is the state of one group.
type arithmeticRun struct {
	arithmetic
	group   []*Tensor
	n       int64       // elements of the group
	windows []Window    // of every input, where magnitudes decide
	factor  [][]float64 // of every tensor and input: restores the norm that sparsifying took
}

func (r *arithmeticRun) program() *Program {
	p := &Program{Rows: r.sparsify == graduated, Apply: r.apply}
	if r.wordy() {
		p.Words = r.applyWords
	}

	switch r.sparsify {
	case largest, inner:
		f := r.finder()
		p.Memory, p.Ties = f.memory(), &f.ties
		p.Passes = f.passes(func() ([]Pass, error) {
			r.setWindows(f)
			return r.rescale(), nil
		})
	default:
		p.Passes = r.rescale()
	}

	return p
}

// kept reports whether a density leaves a difference as it is.
func kept(density float64) bool { return density >= 1 }

// finder looks for the magnitudes that bound what is kept of every input.
func (r *arithmeticRun) finder() *finder {
	in := r.group[0].Inputs
	return &finder{
		n: r.n, streams: len(in), deltas: true, draw: byDraw(r.group, false),
		keys: func(b *Block, s int) []float32 {
			if s == 0 {
				b.Deltas()
			}
			return b.X[s]
		},
		want: func(s int, _ int64) []int64 {
			low, high := r.ranks(s)
			var list []int64
			for _, k := range []int64{low, high} {
				if k > 0 {
					list = append(list, k)
				}
			}
			return list
		},
		// Of the elements at a cut, as many are taken as are missing to its rank. Two cuts at one value take from the
		// same elements: those between the ranks.
		take: func(_, i int, c []Cut) int64 {
			switch {
			case i == 1: // the largest are dropped: of those that are equal, the last ones
				return c[1].Equal - (c[1].K - c[1].Above)
			case len(c) == 2 && c[0].Value == c[1].Value:
				return c[0].K - c[1].K
			}
			return c[0].K - c[0].Above
		},
	}
}

// ranks are the places of the smallest element that is kept and of the smallest that is too large, from the
// top; 0 for no bound.
func (r *arithmeticRun) ranks(s int) (low, high int64) {
	v := r.group[0].Inputs[s].Params
	d := v.Number("density")
	if kept(d) || d <= 0 || r.n == 0 {
		return 0, 0
	}

	target := int64(d * float64(r.n))
	if r.sparsify == largest {
		return max(1, target), 0 // as published: at least one stays
	}
	if target == 0 {
		return 0, 0
	}

	top := min(int64(v.Number("gamma")*float64(r.n)), r.n-target)
	return target + top, top
}

// setWindows turns the cuts into windows.
func (r *arithmeticRun) setWindows(f *finder) {
	for s := range r.windows {
		d := r.group[0].Inputs[s].Params.Number("density")
		low, high := r.ranks(s)
		w := all
		switch {
		case kept(d):
		case low == 0:
			w = none
		default:
			c := f.cuts[s][0]
			w.Lo = c.Value
			w.LoEnd = c.End
			w.lo = c.share

			if high > 0 {
				c := f.cuts[s][1]
				w.Hi = c.Value
				w.HiEnd = c.End
				w.hi = c.share
				if w.Lo == w.Hi { // both cuts among equals, of which the first ones are kept
					w.HiEnd, w.hi = w.LoEnd, nil
				}
			}
		}

		r.windows[s] = w
	}
}

// sparse replaces difference j of a block by what stays of it, without the factor.
func (r *arithmeticRun) sparse(b *Block, j int) {
	t := r.group[b.Tensor]
	d := t.Inputs[j].Params.Number("density")
	x := b.X[j]
	switch {
	case r.sparsify == keepAll || kept(d):
	case d <= 0:
		clear(x)
	case r.sparsify == random:
		t.byKey(j, b.Off, len(x), func(k vec.Key, first uint32, lo, hi int) {
			vec.Dropout(x[lo:hi], x[lo:hi], k, first, uint32(d*(1<<32)))
		})
	case r.sparsify == graduated:
		r.graduate(b, j)
	default:
		r.windows[j].Apply(x, x, x, b)
	}
}

// graduate keeps every element of a row with the probability density ± epsilon by its rank among the row's magnitudes.
func (r *arithmeticRun) graduate(b *Block, j int) {
	t := r.group[b.Tensor]
	v := t.Inputs[j].Params
	density, epsilon := v.Number("density"), v.Number("epsilon")
	cols := int(t.Cols())
	order := make([]uint64, 2*cols)
	var draws []uint16
	if t.RandomTies {
		draws = make([]uint16, cols)
	}

	for row := 0; row+cols <= b.Len(); row += cols {
		x := b.X[j][row : row+cols]

		for lo := 0; lo < len(draws); { // equal magnitudes stand in the order of draws
			off := b.Off + int64(row+lo)
			first := uint32(off & (1<<drawBits - 1))
			k, hi := t.tieKey(j, off), min(cols, lo+1<<drawBits-int(first))
			for i := lo; i < hi; i++ {
				draws[i] = uint16(k.Draw(first+uint32(i-lo)) >> 16)
			}

			lo = hi
		}

		rank := vec.Ranked(x, draws, order)
		t.byKey(j, b.Off+int64(row), cols, func(k vec.Key, first uint32, lo, hi int) {
			for place, e := range rank {
				i := int(uint32(e))
				if i < lo || i >= hi {
					continue
				}

				p := density
				if cols > 1 {
					p = density - epsilon + 2*epsilon*float64(place)/float64(cols-1)
				}
				if float64(k.Draw(first+uint32(i-lo))) >= p*(1<<32) {
					x[i] = 0
				}
			}
		})
	}
}

// norms are what rescaling compares: the sums of magnitudes before and after.
type norms struct{ before, after [][]float64 }

// rescale makes the pass that measures how much of the norm sparsifying takes, if the recipe wants it restored.
func (r *arithmeticRun) rescale() []Pass {
	rule := rescaling(r.group[0].Params)
	if rule == "none" || r.sparsify == keepAll {
		return nil
	}

	if rule == "inverse_density" {
		for i, t := range r.group {
			for j, in := range t.Inputs {
				if d := in.Params.Number("density"); d > 0 && d < 1 {
					r.factor[i][j] = 1 / d
				}
			}
		}

		return nil
	}

	return []Pass{{New: r.newNorms, Each: func(stat any, b *Block) {
		m := stat.(*norms)
		b.Deltas()
		for j, x := range b.X {
			m.before[b.Tensor][j] = magnitudes(rule, m.before[b.Tensor][j], x)
			r.sparse(b, j)
			m.after[b.Tensor][j] = magnitudes(rule, m.after[b.Tensor][j], x)
		}
	}, End: func(stats []any) ([]Pass, error) {
		r.setFactors(rule, stats)
		return nil, nil
	}}}
}

// rescaling is the rule of a recipe: rescale as a truth value (l1), refined by rescale_norm.
func rescaling(v Values) string {
	if !v.Bool("rescale") {
		return "none"
	}
	if v.Has("rescale_norm") {
		return v.Text("rescale_norm")
	}
	return "l1"
}

// magnitudes adds a block to a norm: Σ|x|, Σx², or the highest |x|.
func magnitudes(rule string, so float64, x []float32) float64 {
	switch rule {
	case "l2":
		return so + vec.Dot(x, x)
	case "linf":
		return max(so, float64(math.Float32frombits(vec.Peak(x))))
	}
	return so + vec.SumAbs(x)
}

func (r *arithmeticRun) newNorms() any {
	m := &norms{}
	for _, t := range r.group {
		m.before = append(m.before, make([]float64, len(t.Inputs)))
		m.after = append(m.after, make([]float64, len(t.Inputs)))
	}
	return m
}

// setFactors restores norms, unless one of them is below 1e-7.
func (r *arithmeticRun) setFactors(rule string, stats []any) {
	for i, t := range r.group {
		for j := range t.Inputs {
			var before, after float64
			for _, s := range stats {
				m := s.(*norms)
				if rule == "linf" {
					before, after = max(before, m.before[i][j]), max(after, m.after[i][j])
					continue
				}

				before += m.before[i][j]
				after += m.after[i][j]
			}

			if rule == "l2" {
				before, after = math.Sqrt(before), math.Sqrt(after)
			}
			if before >= 1e-7 && after >= 1e-7 {
				r.factor[i][j] = before / after
			}
		}
	}
}

// factors are the weights of a tensor, and what the sum is multiplied by.
func (r *arithmeticRun) factors(t *Tensor) (weights []float64, lambda float64) {
	weights, lambda = numbers(t, "weight"), 1
	if t.Params.Has("lambda") {
		lambda = t.Params.Number("lambda")
	}
	if s := sum(weights); !r.consensus && t.Params.Bool("normalize") && math.Abs(s) >= 1e-8 {
		lambda /= s
	}
	return weights, lambda
}

// apply merges a block.
func (r *arithmeticRun) apply(b *Block) {
	t := r.group[b.Tensor]
	b.Deltas()
	weights, lambda := r.factors(t)
	total := b.Temp(0)
	clear(total)

	for j, x := range b.X {
		r.sparse(b, j)

		if r.consensus {
			vec.Scale(x, x, float32(weights[j]*r.factor[b.Tensor][j]))
			vec.Add(total, total, x, 1)
		} else {
			vec.Add(total, total, x, float32(weights[j]*r.factor[b.Tensor][j]))
		}
	}

	if !r.consensus {
		vec.Add(b.Out, b.Base, total, float32(lambda))
		return
	}

	// TIES' election and disjoint mean: total has the elected sign of each element; num and den are the sums of those
	// v_j that have it, and of their weights.
	num, den := b.Temp(1), b.Temp(2)
	clear(num)
	clear(den)
	for j, x := range b.X {
		vec.Elect(num, den, x, total, 1, float32(weights[j]))
	}
	if t.Params.Bool("normalize") {
		vec.Ratio(num, num, den)
	}

	vec.Add(b.Out, b.Base, num, float32(lambda))
}
