package actstats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// TestExtents: sums of magnitudes and bounds over all tokens, and tokens that are spread evenly, about the limit to
// twice as many, fewer of experts; however they come in batches, and as many of them at the beginnings of sequences
// as anywhere.
func TestExtents(t *testing.T) {
	const in = 5
	rng := rand.New(rand.NewPCG(1, 1))
	rows := 5000
	all := random(rng, rows, in)
	for i := range rows {
		all.RowF32(i)[0] = float32(i + 1) // its number, and above 0
	}

	for expert, limit := range map[int]int{-1: spreadTokens, 3: spreadExpertTokens} {
		for _, batch := range []int{rows, 700, 1} {
			lin := lm.Linear{Name: "down", Role: arch.Down, Expert: expert, In: in, Out: 3}
			s, err := New(ref.New(), []lm.Linear{lin}, Extents|Spread, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			if x := s.SpreadOf("down"); !x.IsZero() {
				t.Errorf("%d tokens of none", x.Rows)
			}
			for lo := 0; lo < rows; lo += batch {
				s.Hooks().LinearInput(lin, all.RowRange(lo, min(rows, lo+batch)))
			}

			magnitude, low, high, err := s.ExtentsOf(lin)
			if err != nil {
				t.Fatal(err)
			}
			for j := range in {
				var sum float64
				var column []float32
				for i := range rows {
					v := all.RowF32(i)[j]
					column = append(column, v)
					sum += math.Abs(float64(v))
				}
				if magnitude[j] != sum || low[j] != slices.Min(column) || high[j] != slices.Max(column) {
					t.Errorf("input %d: %g, %g, %g", j, magnitude[j], low[j], high[j])
				}
			}

			x := s.SpreadOf("down")
			if x.Rows < limit-4 || x.Rows >= 2*limit {
				t.Errorf("%d tokens of %d", x.Rows, rows)
			}
			mean := float64(rows) / float64(x.Rows)
			last := float32(0)
			first := 0
			for i := range x.Rows {
				got := x.RowF32(i)
				if !slices.Equal(got, all.RowF32(int(got[0])-1)) || float64(got[0]-last) > 3*mean || got[0] <= last {
					t.Fatalf("token %d is %v, after number %g", i, got, last)
				}
				last = got[0]
				if (int(got[0])-1)%16 == 0 {
					first++
				}
			}
			if want := float64(x.Rows) / 16; math.Abs(float64(first)-want) > want/2+2 {
				t.Errorf("%d of %d tokens begin a sequence of 16", first, x.Rows)
			}
		}
	}

	bad := kernels.MatOf(kernels.WrapF32([]float32{1, float32(math.NaN())}), 1, 2)
	lin := lm.Linear{Name: "o", Role: arch.O, Expert: -1, In: 2, Out: 3}
	s, err := New(ref.New(), []lm.Linear{lin}, Extents, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Hooks().LinearInput(lin, bad)
	if _, _, _, err := s.ExtentsOf(lin); err == nil {
		t.Error("a mean of NaN")
	}
}
