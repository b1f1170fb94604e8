package actstats

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// random are the inputs of a sequence, whose third is always 0.
func random(rng *rand.Rand, rows, cols int) kernels.Mat {
	v := make([]float32, rows*cols)
	for i := range v {
		if i%cols != 2 {
			v[i] = float32(rng.NormFloat64()) + float32(i%cols)
		}
	}
	return kernels.MatOf(kernels.WrapF32(v), rows, cols)
}

// TestStatistics: the definitions, sum by sum in float64, over sequences of several lengths, for every set that can be
// asked for. Squares and products are rounded to float32 once, a part in 2²⁴ of each, of terms that are positive for
// squares and of bounded cancellation here: 1e-5 of the largest.
func TestStatistics(t *testing.T) {
	const in = 7
	rng := rand.New(rand.NewPCG(1, 1))
	var batches []kernels.Mat
	for _, rows := range []int{4, 1, 9} {
		batches = append(batches, random(rng, rows, in))
	}

	var squares, sums, within [in]float64
	var gram [in][in]float64
	tokens := 0.0
	for _, x := range batches {
		tokens += float64(x.Rows)
		for j := range in {
			mean := 0.0
			for i := range x.Rows {
				mean += float64(x.RowF32(i)[j]) / float64(x.Rows)
			}
			for i := range x.Rows {
				v := float64(x.RowF32(i)[j])
				squares[j] += v * v
				sums[j] += v
				within[j] += (v - mean) * (v - mean)
				for k := range in {
					gram[j][k] += v * float64(x.RowF32(i)[k])
				}
			}
		}
	}

	q := lm.Linear{Name: "q", Role: arch.Q, Expert: -1, In: in, Out: 3}
	k := lm.Linear{Name: "k", Role: arch.K, Expert: -1, In: in, Out: 3}
	near := func(a, b, of float64) bool { return math.Abs(a-b) <= 1e-5*of }
	n := float64(len(batches))
	for _, needs := range []Set{SumSquares, Sums, Variances, Hessian, SumSquares | Hessian | Sample, OfInputs} {
		s, err := New(ref.New(), []lm.Linear{q, k}, needs, len(batches), 0)
		if err != nil {
			t.Fatal(err)
		}

		for _, x := range batches {
			s.Hooks().LinearInput(q, x)
			s.Hooks().LinearInput(k, x) // the same input, which must not count twice
		}

		got, err := s.Of(k)
		if err = errors.Join(err, s.Err()); err != nil || got.Tokens != int64(tokens) {
			t.Fatalf("%b: %d tokens, %v", needs, got.Tokens, err)
		}

		has := needs
		if needs&Variances != 0 {
			has |= SumSquares | Sums // which variances are made of
		}
		for name, c := range map[string]struct {
			set       Set
			got, want []float64
			by        float64
		}{
			"squares":   {SumSquares, got.SumSquares, squares[:], n},
			"sums":      {Sums, got.Sums, sums[:], n},
			"variances": {Variances, got.Variances, within[:], tokens},
		} {
			if (has&c.set != 0) != (c.got != nil) {
				t.Errorf("%b: %s are there: %v", needs, name, c.got != nil)
			}
			for j, v := range c.got {
				if want := c.want[j] / c.by; !near(v, want, squares[j]/c.by+1e-9) {
					t.Errorf("%b: %s of input %d: %g, want %g", needs, name, j, v, want)
				}
			}
		}

		if rows := s.SampleOf("k").Rows; (needs&Sample != 0) != (rows == int(tokens)) {
			t.Errorf("%b: a sample of %d tokens", needs, rows)
		}
		if (needs&Hessian != 0) != (got.Factor != nil) {
			t.Errorf("%b: a factor: %v", needs, got.Factor != nil)
		}
		if needs&Hessian != 0 {
			h, err := s.HessianOf(s.SumOf("q"), q)
			if err != nil {
				t.Fatal(err)
			}

			for i := range in {
				for j := range in {
					want := 2 * gram[i][j] / n
					if i == 2 && j == 2 {
						want = 1 // the input that is always 0
					}
					if !near(h.At(i, j), want, 2*math.Sqrt(squares[i]*squares[j])/n+1e-9) {
						t.Errorf("Hessian at %d, %d: %g, want %g", i, j, h.At(i, j), want)
					}
				}
			}
			if dead := s.SumOf("q").Dead; fmt.Sprint(dead) != "[2]" {
				t.Errorf("inputs %v are always 0", dead)
			}
		}

		s.Free()
	}
}

// TestSampleSpread: a sample has as many tokens of every sequence, at equal distances, and no more than its size.
func TestSampleSpread(t *testing.T) {
	l := lm.Linear{Name: "o", Role: arch.O, Expert: -1, In: 1, Out: 1}
	s, err := New(ref.New(), []lm.Linear{l}, Sample, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Free()

	const rows = 1000
	for n := range 5 { // one more than was announced
		v := make([]float32, rows)
		for i := range v {
			v[i] = float32(rows*n + i)
		}
		s.Hooks().LinearInput(l, kernels.MatOf(kernels.WrapF32(v), rows, 1))
	}

	x := s.SampleOf("o")
	if s.Err() != nil || x.Rows != sampled {
		t.Fatalf("%d tokens, %v", x.Rows, s.Err())
	}
	for i := range x.Rows {
		v := int(x.RowF32(i)[0])
		if v/rows != i/(sampled/4) {
			t.Fatalf("token %d is of sequence %d", i, v/rows)
		}
		if i > 0 {
			if gap := v - int(x.RowF32(i - 1)[0]); gap < 7 || gap > 9 {
				t.Errorf("tokens %d and %d are %d apart", i-1, i, gap)
			}
		}
	}
}

// TestOverflow: activations that are not finite, and products that overflow float32, are errors that name the tensor
// and the input.
func TestOverflow(t *testing.T) {
	l := lm.Linear{Name: "model.up", Role: arch.Up, Expert: -1, In: 2, Out: 1}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), 1e30} {
		s, err := New(ref.New(), []lm.Linear{l}, SumSquares|Hessian, 1, 0)
		if err != nil {
			t.Fatal(err)
		}

		s.Hooks().LinearInput(l, kernels.MatOf(kernels.WrapF32([]float32{1, bad}), 1, 2))
		_, err = s.Of(l)
		_, failed := s.HessianOf(s.SumOf(l.Name), l)
		for i, err := range []error{err, failed} {
			if i == 0 && bad == 1e30 {
				continue // squares are summed in float64
			}
			if !errors.Is(err, hostmat.ErrNonFinite) || err.Error()[:27] != `tensor "model.up": input 1:` {
				t.Errorf("%g: %v", bad, err)
			}
		}
		s.Free()
	}
}
