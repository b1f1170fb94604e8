package experts

import (
	"math"
	"math/bits"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// Choose makes the passes that decide which elements of a tensor each expert keeps: the tensor's base is the
// dense model, its inputs are the experts, in the order of parts. keys are the experts' own tensors, for random
// choices. By the rule best a first Choose of all tensors measures, Settle decides, and a second one carries it out.
func (k Keep) Choose(t *method.Tensor, parts []*Part, keys []*method.Tensor) *method.Program {
	p := &method.Program{}
	count := func() []method.Pass { return []method.Pass{k.count(t, parts, keys)} }
	switch {
	case k.Kind == "best" && parts[0].keep.Kind == "":
		p.Passes, p.Memory = k.measure(t, parts)
	case k.Kind == "magnitude" || k.Kind == "best":
		want := make([]int64, len(parts)) // none of what is kept in another form
		for i, part := range parts {
			if by := k.of(part); by.Kind == "magnitude" {
				want[i] = wanted(t.N, by.Value)
			}
		}
		p.Passes, p.Memory = method.Largest(t.N, want, assign(parts, count))
	case k.Kind == "energy":
		half := make([]int64, len(parts)) // as much work as there can be
		for i := range half {
			half[i] = t.N / 2
		}

		_, p.Memory = method.Largest(t.N, half, nil)
		p.Memory += int64(len(parts)) * bins * 24 * 16
		p.Passes = k.energy(t, parts, func(want []int64) []method.Pass {
			passes, _ := method.Largest(t.N, want, assign(parts, count))
			return passes
		})
	default:
		p.Passes = count()
	}

	return p
}

// assign hands windows to the parts.
func assign(parts []*Part, next func() []method.Pass) func([]method.Window) ([]method.Pass, error) {
	return func(w []method.Window) ([]method.Pass, error) {
		for i := range parts {
			parts[i].window = w[i]
		}
		return next(), nil
	}
}

// mask writes 1 where a part keeps an element with the difference r, and 0 elsewhere.
func (k Keep) mask(dst []float32, p *Part, key *method.Tensor, b *method.Block, r []float32) {
	ones := b.Temp(2)
	for i := range ones {
		ones[i] = 1
	}
	if k.Kind != "random" || k.Value >= 1 {
		p.window.Apply(dst, ones, r, b)
		return
	}
	vec.Dropout(dst, ones, key.Key(0, b.Off), uint32(b.Off&(1<<20-1)), uint32(math.Ldexp(k.Value, 32)))
}

// kept is what a segment counts for each part.
type kept struct {
	n            []int64
	energy, lost []float64
	twins        twins
}

// count is the pass that counts what is kept in each segment, and settles the encodings.
func (k Keep) count(t *method.Tensor, parts []*Part, keys []*method.Tensor) method.Pass {
	if k.Kind == "random" && k.Value >= 1 {
		for _, p := range parts {
			p.window = method.All()
		}
	}

	scaled := 0.0 // squared error of a kept element, as a fraction of its square
	if k.Kind == "random" && k.Value > 0 {
		scaled = (1/k.Value - 1) * (1/k.Value - 1)
	}

	return method.Pass{
		New: func() any {
			return &kept{
				make([]int64, len(parts)), make([]float64, len(parts)), make([]float64, len(parts)),
				newTwins(len(parts)),
			}
		},
		Each: func(stat any, b *method.Block) {
			s := stat.(*kept)
			s.twins.look(b)
			for i, p := range parts {
				r, m := b.Temp(0), b.Temp(1)
				vec.Sub(r, b.X[i], b.Base)
				s.energy[i] += vec.Dot(r, r)
				if kind := k.of(p).Kind; kind == "lowrank" || kind == "sign1" || kind == "bits" {
					continue
				}

				k.of(p).mask(m, p, keys[i], b, r)

				for j, v := range m {
					s.n[i] += int64(v)
					s.lost[i] += float64(r[j]) * float64(r[j]) * (float64(v)*scaled + float64(1-v))
				}
			}
		},
		End: func(stats []any) ([]method.Pass, error) {
			alike := newTwins(len(parts))
			for _, s := range stats {
				alike.join(s.(*kept).twins)
			}

			for i, p := range parts {
				p.counts = make([]int64, len(stats))
				p.Kept = 0
				p.Energy = 0
				p.Lost = 0
				for j, s := range stats {
					p.counts[j] = s.(*kept).n[i]
					p.Kept += p.counts[j]
					p.Energy += s.(*kept).energy[i]
					p.Lost += s.(*kept).lost[i]
				}

				k.of(p).settle(t, p)

				// Random choices are an expert's own, whatever it is like.
				p.twin = -1
				if k.Kind != "random" && p.Energy > 0 {
					p.twin = alike.of(i)
				}
				if p.twin >= 0 {
					first := parts[p.twin]
					*p = Part{
						Tensor: p.Tensor, DType: p.DType, Shape: p.Shape, keep: p.keep, counts: p.counts,
						Encoding: Same, Of: t.Inputs[p.twin].Name, twin: p.twin,
						Kept: first.Kept, Energy: first.Energy, Lost: first.Lost,
					}
				}
			}

			return nil, nil
		},
	}
}

// settle chooses the encoding of a counted part.
func (k Keep) settle(t *method.Tensor, p *Part) {
	width := int64(p.DType.Bits() / 8)
	switch {
	// Coded zeros, or factors of nothing, would take as much as a difference does. What keeps everything stays: a zero
	// of another sign is no difference, and comes back all the same.
	case p.Energy == 0 && p.Kept < t.N:
		p.Encoding, p.Kept = Nothing, 0
	case k.Kind == "sign1" && t.N > 0:
		p.Encoding = Signs
		p.Delta = true
		p.Kept = t.N
	case k.Kind == "bits" && t.N > 0:
		p.Encoding = Codes
		p.Delta = true
		p.Kept = t.N
		p.Bits = int(k.Value)
	// A rank below one keeps nothing, so all of the difference is lost.
	case k.Kind == "lowrank" && k.Value < 1:
		p.Encoding, p.Lost = Nothing, p.Energy
	case k.Kind == "lowrank" && k.factored(t.Shape):
		p.Encoding = LowRank
		p.Delta = true
		p.Kept = t.N
		p.Rank = int(k.Value)
	case k.Kind == "lowrank": // factors would take more than the tensor itself
		p.Encoding, p.Kept = Full, t.N
	default:
		p.Encoding, _ = encoding(t.Shape, p.Kept, width)
		// Random choices are scaled up by 1/fraction (DARE), so they are differences; the others are the expert's
		// own values, bit for bit.
		p.Delta = k.Kind == "random" && k.Value < 1
	}
}

// bins are the upper halves of magnitudes.
const bins = 1 << 15

// square is an exact sum of squares of the mantissas of one bin, whose magnitudes share an exponent: 128 bits.
type square struct{ hi, lo uint64 }

func (s *square) add(mantissa uint64) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, mantissa*mantissa, 0)
	s.hi += carry
}

// spectrum counts the magnitudes of a stream, and sums their squares, by their upper halves. Nothing in it is
// rounded, so that it does not depend on the order.
type spectrum struct {
	n      []int64
	energy []square
}

// energy makes the passes that find how many of the largest differences of each expert hold a fraction of all
// their squares.
func (k Keep) energy(t *method.Tensor, parts []*Part, next func(want []int64) []method.Pass) []method.Pass {
	fresh := func() any {
		list := make([]spectrum, len(parts))
		for i := range list {
			list[i] = spectrum{make([]int64, bins), make([]square, bins)}
		}
		return list
	}

	return []method.Pass{{
		Shared: true, New: fresh,
		Each: func(stat any, b *method.Block) {
			b.Deltas()
			for i := range parts {
				s := stat.([]spectrum)[i]
				s.count(b.X[i])
			}
		},
		End: func(stats []any) ([]method.Pass, error) {
			total := fresh().([]spectrum)
			for _, stat := range stats {
				for i, s := range stat.([]spectrum) {
					total[i].join(s)
				}
			}

			cuts := make([]cut, len(parts))
			for i := range parts {
				cuts[i] = total[i].cut(k.Value)
			}

			// A bin still spans many magnitudes: a second pass divides the one in which the fraction is reached.
			return []method.Pass{finer(parts, cuts, next)}, nil
		},
	}}
}

// mantissa is the integer that a magnitude is with its exponent taken off.
func mantissa(m uint32) uint64 {
	if m < 1<<23 {
		return uint64(m) // subnormal
	}
	return uint64(m&(1<<23-1) | 1<<23)
}

// unit is what the mantissa of a magnitude counts.
func unit(m uint32) float64 { return math.Ldexp(1, int(max(1, m>>23))-150) }

func (s spectrum) join(o spectrum) {
	for i := range s.n {
		s.n[i] += o.n[i]
		var carry uint64
		s.energy[i].lo, carry = bits.Add64(s.energy[i].lo, o.energy[i].lo, 0)
		s.energy[i].hi += o.energy[i].hi + carry
	}
}

// value is the sum of squares of a bin.
func (s spectrum) value(bin int) float64 {
	u := unit(uint32(bin) << 16)
	return (math.Ldexp(float64(s.energy[bin].hi), 64) + float64(s.energy[bin].lo)) * u * u
}

// cut is where the largest magnitudes of a stream reach a fraction of the energy: in bin, with above before it,
// missing energy.
type cut struct {
	bin     int
	above   int64
	missing float64
	done    bool // above is the answer
}

// cut walks down from the largest magnitudes.
func (s spectrum) cut(fraction float64) cut {
	var total float64
	for i := bins - 1; i >= 0; i-- {
		total += s.value(i)
	}

	want := fraction * total
	if fraction <= 0 || total == 0 {
		return cut{done: true}
	}

	var above int64
	for i := bins - 1; i >= 0; i-- {
		e := s.value(i)
		if e >= want {
			return cut{bin: i, above: above, missing: want}
		}
		above, want = above+s.n[i], want-e
	}

	return cut{done: true, above: above}
}

// finer is the pass that counts the lower halves of the magnitudes in the bins of the cuts.
func finer(parts []*Part, cuts []cut, next func(want []int64) []method.Pass) method.Pass {
	fresh := func() any {
		list := make([][]int64, len(parts))
		for i := range list {
			list[i] = make([]int64, 1<<16)
		}
		return list
	}

	return method.Pass{
		Shared: true, New: fresh,
		Each: func(stat any, b *method.Block) {
			b.Deltas()
			for i, h := range stat.([][]int64) {
				for _, v := range b.X[i] {
					if m := math.Float32bits(v) & math.MaxInt32; int(m>>16) == cuts[i].bin {
						h[m&0xffff]++
					}
				}
			}
		},
		End: func(stats []any) ([]method.Pass, error) {
			want := make([]int64, len(parts))
			for i, c := range cuts {
				h := make([]int64, 1<<16)
				for _, stat := range stats {
					for j, n := range stat.([][]int64)[i] {
						h[j] += n
					}
				}

				want[i] = c.count(h)
			}

			return next(want), nil
		},
	}
}

// count is how many magnitudes reach the fraction, given those of the cut's bin.
func (c cut) count(h []int64) int64 {
	if c.done {
		return c.above
	}

	above, missing := c.above, c.missing
	for low := len(h) - 1; low >= 0; low-- {
		if h[low] == 0 {
			continue
		}

		m := uint32(c.bin)<<16 | uint32(low)
		one := float64(mantissa(m)) * unit(m)
		if one*one*float64(h[low]) >= missing {
			return above + min(h[low], int64(math.Ceil(missing/(one*one))))
		}

		above, missing = above+h[low], missing-one*one*float64(h[low])
	}

	return above
}
