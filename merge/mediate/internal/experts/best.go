package experts

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// The rule best gives every tensor of every expert the form that loses least of the experts' differences, all of them
// together in a part of the bytes that the tensors themselves take: factors of low rank suit what adapters have done,
// a few bits what whole training has done, the largest differences what touched little. What each form would lose is
// measured first, tensor by tensor (measure); then Settle divides the bytes up, and every part has a rule of its own,
// which Choose and Write carry out as if it stood in the recipe.

// form is a way to keep a part, and what that takes and loses.
type form struct {
	keep  Keep
	bytes int64
	lost  float64 // squares, as Part.Lost
}

// fractions are the shares of largest differences that are tried; with 1 the tensor itself is stored.
var fractions = []float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1}

// ranks are those that are tried.
var ranks = []int{1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256}

// sampled: of large tensors one run of codes in so many is fitted, which tells what all would lose to a per cent.
const sampled, sampleFrom = 8, 1 << 18

// measure makes the passes that find what the forms of each part take and lose.
func (k Keep) measure(t *method.Tensor, parts []*Part) ([]method.Pass, int64) {
	for _, p := range parts {
		p.forms, p.keep, p.half = nil, Keep{}, halves(p.DType)
	}

	passes := []method.Pass{k.spectra(t, parts), k.coded(t, parts)}
	memory := int64(len(parts)) * bins * 24 * 16

	if most := k.mostRank(t); most > 0 {
		memory += 40 * t.N // a difference in float64, and what a decomposition of it takes
		for i, p := range parts {
			passes = append(passes, k.ranked(t, p, i, most))
		}
	}

	return passes, memory
}

// halves reports whether factors are stored in BF16 beside tensors of a type: they lose 2⁻¹⁷ of what they keep by it.
func halves(d safetensors.DType) bool { return d == safetensors.F32 }

// mostRank is the largest rank that is tried: with it factors take twice the part's share of the bytes, or, where
// the shares are small, have rank 16; never are they larger than the tensor.
func (k Keep) mostRank(t *method.Tensor) int {
	if len(t.Shape) != 2 || k.Value <= 0 {
		return 0
	}

	n, rows, cols := size(t.Shape)
	most := max(16, int(2*k.Value*float64(n)/float64(rows+cols)))
	return min(most, ranks[len(ranks)-1], int((n-1)/(rows+cols)), int(rows), int(cols))
}

// header is what a form's tensors take in the head of a file.
func (p *Part) header(tensors int) int64 { return int64(tensors * (len(p.Tensor) + headerEntry)) }

// add notes a form that may be chosen.
func (p *Part) add(k Keep, bytes int64, tensors int, lost float64) {
	p.forms = append(p.forms, form{k, bytes + p.header(tensors), max(0, lost)})
}

// spectra is the pass that says what the largest differences would hold, and which experts are alike.
func (k Keep) spectra(t *method.Tensor, parts []*Part) method.Pass {
	type seen struct {
		spectra []spectrum
		twins   twins
	}
	fresh := func() *seen {
		s := &seen{make([]spectrum, len(parts)), newTwins(len(parts))}
		for i := range s.spectra {
			s.spectra[i] = spectrum{make([]int64, bins), make([]square, bins)}
		}
		return s
	}

	return method.Pass{
		Shared: true, New: func() any { return fresh() },
		Each: func(stat any, b *method.Block) {
			s := stat.(*seen)
			s.twins.look(b)
			b.Deltas()
			for i := range parts {
				s.spectra[i].count(b.X[i])
			}
		},
		End: func(stats []any) ([]method.Pass, error) {
			total := fresh()
			for _, stat := range stats {
				s := stat.(*seen)
				total.twins.join(s.twins)
				for i := range s.spectra {
					total.spectra[i].join(s.spectra[i])
				}
			}

			for i, p := range parts {
				p.twin = total.twins.of(i)
				p.Energy = total.spectra[i].total()
				p.add(Keep{Kind: "magnitude"}, 0, 0, p.Energy)

				for _, q := range fractions {
					kept := wanted(t.N, q)
					name, bytes := encoding(t.Shape, kept, int64(p.DType.Bits()/8))
					tensors := map[string]int{Bitmap: 2, Rows: 3, Full: 1}[name]
					p.add(Keep{"magnitude", q}, bytes, tensors, p.Energy-total.spectra[i].largest(kept))
				}
			}

			return nil, nil
		},
	}
}

// count adds magnitudes and their squares.
func (s spectrum) count(x []float32) {
	for _, v := range x {
		// Without its sign, a float orders as its bits do: the upper half of the magnitude is the bin.
		m := math.Float32bits(v) & math.MaxInt32
		s.n[m>>16]++
		s.energy[m>>16].add(mantissa(m))
	}
}

// total is the sum of all squares.
func (s spectrum) total() (sum float64) {
	for i := bins - 1; i >= 0; i-- {
		sum += s.value(i)
	}
	return sum
}

// largest is the sum of the squares of the largest magnitudes; within the last bin all count alike.
func (s spectrum) largest(n int64) (sum float64) {
	for i := bins - 1; i >= 0 && n > 0; i-- {
		if s.n[i] <= n {
			sum += s.value(i)
		} else {
			sum += s.value(i) * float64(n) / float64(s.n[i])
		}
		n -= s.n[i]
	}
	return sum
}

// coded is the pass that says what codes of one to eight bits would lose.
func (k Keep) coded(t *method.Tensor, parts []*Part) method.Pass {
	type fit struct {
		energy float64
		lost   [9]float64
	}

	every := int64(1)
	if t.N >= sampleFrom {
		every = sampled
	}

	return method.Pass{
		New: func() any { return make([]fit, len(parts)) },
		Each: func(stat any, b *method.Block) {
			code := make([]uint8, codeRun)
			for i := range parts {
				f := &stat.([]fit)[i]
				r := b.Temp(0)
				vec.Sub(r, b.X[i], b.Base)
				for at := 0; at < len(r); at += codeRun {
					if (b.Off+int64(at))/codeRun%every != 0 {
						continue
					}

					run := r[at:min(at+codeRun, len(r))]
					f.energy += vec.Dot(run, run)
					for bits := 1; bits <= 8; bits++ {
						_, lost := fitted(code[:len(run)], run, bits)
						f.lost[bits] += lost
					}
				}
			}
		},
		End: func(stats []any) ([]method.Pass, error) {
			for i, p := range parts {
				var sum fit
				for _, stat := range stats {
					f := stat.([]fit)[i]
					sum.energy += f.energy
					for bits := range f.lost {
						sum.lost[bits] += f.lost[bits]
					}
				}
				if sum.energy == 0 {
					continue
				}

				for bits := 1; bits <= 8; bits++ {
					p.add(Keep{"bits", float64(bits)}, codeBytes(t.N, bits)+2*codeRuns(t.N), 2,
						sum.lost[bits]/sum.energy*p.Energy)
				}
			}

			return nil, nil
		},
	}
}

// ranked is the pass that says what factors would lose.
func (k Keep) ranked(t *method.Tensor, p *Part, i, most int) method.Pass {
	return differenceOf(t, i, func(a linalg.Matrix) error {
		if p.Energy == 0 || p.twin >= 0 {
			return nil
		}

		_, values, _, err := linalg.Solver{}.TruncatedSVD(a, most, linalg.Sketch{})
		if err != nil {
			return err
		}

		_, rows, cols := size(t.Shape)
		lost, at := p.Energy, 0
		for _, r := range ranks {
			if r > most {
				break
			}
			for ; at < r; at++ {
				lost -= values[at] * values[at]
			}
			p.add(Keep{"lowrank", float64(r)}, p.factorWidth()*int64(r)*(rows+cols), 2, lost)
		}

		return nil
	})
}

// Settle gives every part the form that the rule best chooses for it: parts are those of all tensors, by expert. An
// expert's losses count as shares of all its differences, so that none is forgotten because it differs little.
func (k Keep) Settle(tensors [][]*Part) error {
	energy := map[int]float64{}
	var budget int64
	for _, parts := range tensors {
		for e, p := range parts {
			energy[e] += p.Energy
			budget += k.share(p.Shape, p.DType)
			if k.Value >= 1 { // as large as the tensors: each is kept itself
				p.keep = Keep{"magnitude", 1}
			}
		}
	}
	if k.Value >= 1 {
		return nil
	}

	problem := levels.Problem{Budget: budget}
	var open []*Part
	for _, parts := range tensors {
		for e, p := range parts {
			// An expert that is like another keeps nothing, and one that is the dense model has nothing to keep.
			p.keep = Keep{Kind: "magnitude"}
			if p.twin >= 0 || p.Energy == 0 {
				continue
			}

			p.forms = hull(p.forms)
			var list []levels.Level
			for _, f := range p.forms {
				list = append(list, levels.Level{Size: f.bytes, Loss: f.lost / energy[e]})
			}
			problem.Parts, open = append(problem.Parts, list), append(open, p)
		}
	}
	if len(open) == 0 {
		return nil
	}

	choice, err := problem.Solve()
	if err != nil {
		return err
	}

	for i, p := range open {
		p.keep = p.forms[choice[i]].keep
		p.Half = p.half && p.keep.Kind == "lowrank"
		p.forms = nil
	}

	return nil
}

// share is what a tensor adds to the bytes that the rule best has.
func (k Keep) share(shape []int64, d safetensors.DType) int64 {
	n, _, _ := size(shape)
	return int64(k.Value * float64(n) * float64(d.Bits()/8))
}

// hull keeps the forms that no mixture of two others beats, the smallest first.
func hull(list []form) []form {
	slices.SortStableFunc(list, func(a, b form) int {
		switch {
		case a.bytes != b.bytes && a.bytes < b.bytes, a.bytes == b.bytes && a.lost < b.lost:
			return -1
		case a.bytes == b.bytes && a.lost == b.lost:
			return 0
		}
		return 1
	})

	var out []form
	for _, f := range list {
		if n := len(out); n > 0 && f.lost >= out[n-1].lost {
			continue
		}
		for len(out) > 1 {
			a, b := out[len(out)-2], out[len(out)-1]
			// b lies above the line from a to f
			if (b.lost-a.lost)*float64(f.bytes-a.bytes) < (f.lost-a.lost)*float64(b.bytes-a.bytes) {
				break
			}
			out = out[:len(out)-1]
		}
		out = append(out, f)
	}

	return out
}

// Forms says in words how many parts are kept in which form.
func Forms(tensors [][]*Part) string {
	count := map[string]int{}
	least, most := map[string]int{}, map[string]int{}
	note := func(name string, value int) {
		if count[name] == 0 || value < least[name] {
			least[name] = value
		}
		most[name] = max(most[name], value)
		count[name]++
	}

	for _, parts := range tensors {
		for _, p := range parts {
			switch p.Encoding {
			case LowRank:
				note(LowRank, p.Rank)
			case Codes:
				note(Codes, p.Bits)
			case Nothing:
				if p.Energy > 0 {
					note(Nothing, 0)
				}
			default:
				note(p.Encoding, 0)
			}
		}
	}

	span := func(name string) string {
		if least[name] == most[name] {
			return fmt.Sprint(least[name])
		}
		return fmt.Sprintf("%d to %d", least[name], most[name])
	}
	bits := "bits"
	if most[Codes] == 1 {
		bits = "bit"
	}

	var words []string
	say := func(n int, format string, args ...any) {
		if n > 0 {
			words = append(words, fmt.Sprintf("%d "+format, append([]any{n}, args...)...))
		}
	}
	say(count[LowRank], "as factors of rank %s", span(LowRank))
	say(count[Codes], "in %s %s", span(Codes), bits)
	say(count[Signs], "as signs")
	say(count[Bitmap]+count[Rows], "by their largest differences")
	say(count[Full], "whole")
	say(count[Same], "like another expert's")
	say(count[Nothing], "left out")

	return strings.Join(words, ", ")
}
