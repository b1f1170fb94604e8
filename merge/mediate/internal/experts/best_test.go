package experts

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// apart are a dense tensor and two experts that differ from it by what make gives.
func apart(shape []int64, make func(rng *rand.Rand, expert int) func(row, col int64) float64) ([]float32, [][]float32) {
	rng := rand.New(rand.NewPCG(4, 9))
	dense := []float32{}
	for range shape[0] * shape[1] {
		dense = append(dense, float32(rng.NormFloat64()))
	}

	own := [][]float32{slices.Clone(dense), slices.Clone(dense)}
	for e, x := range own {
		change := make(rng, e)
		for i := range x {
			x[i] += float32(change(int64(i)/shape[1], int64(i)%shape[1]))
		}
	}

	return dense, own
}

// factored is a change of a rank, as adapters make it.
func factored(rank int, shape []int64) func(rng *rand.Rand, _ int) func(row, col int64) float64 {
	return func(rng *rand.Rand, _ int) func(row, col int64) float64 {
		left, right := make([]float64, int64(rank)*shape[0]), make([]float64, int64(rank)*shape[1])
		for _, x := range [][]float64{left, right} {
			for i := range x {
				x[i] = rng.NormFloat64()
			}
		}
		return func(row, col int64) (sum float64) {
			for r := range int64(rank) {
				sum += left[r*shape[0]+row] * right[r*shape[1]+col]
			}
			return sum
		}
	}
}

// TestBestFindsTheForm: factors where the difference has a low rank, single elements where few have changed, bits where
// all have.
func TestBestFindsTheForm(t *testing.T) {
	shape, d := []int64{120, 200}, safetensors.F32
	for name, x := range map[string]struct {
		change func(rng *rand.Rand, _ int) func(row, col int64) float64
		share  float64
		want   []string
		lost   float64 // of the squares
	}{
		"adapter": {factored(3, shape), 0.08, []string{LowRank}, 1e-4},
		"few": {func(rng *rand.Rand, _ int) func(row, col int64) float64 {
			return func(int64, int64) float64 {
				if rng.Float64() < 0.02 {
					return rng.NormFloat64()
				}
				return 0
			}
		}, 0.06, []string{Rows, Bitmap}, 1e-3},
		"all": {func(rng *rand.Rand, _ int) func(row, col int64) float64 {
			return func(int64, int64) float64 { return rng.NormFloat64() }
		}, 0.12, []string{Codes}, 0.1},
	} {
		t.Run(name, func(t *testing.T) {
			dense, own := apart(shape, x.change)
			for _, e := range stored(t, Keep{"best", x.share}, dense, own, shape, d) {
				p := e.Part("w")
				if !slices.Contains(x.want, p.Encoding) || p.Lost > x.lost*p.Energy {
					t.Errorf("kept as %s, of which %v of %v is lost", p.Encoding, p.Lost, p.Energy)
				}
			}
		})
	}
}

// TestBestLosesNoMoreThanOneForm: with the bytes that one form for all takes, the choice among all loses no more.
func TestBestLosesNoMoreThanOneForm(t *testing.T) {
	shape, d := []int64{96, 160}, safetensors.BF16
	// One expert has changed by an adapter, the other everywhere: no single form suits both.
	dense, own := apart(shape, func(rng *rand.Rand, e int) func(row, col int64) float64 {
		if e == 0 {
			return factored(4, shape)(rng, e)
		}
		return func(int64, int64) float64 { return 0.5 * rng.NormFloat64() }
	})
	for _, x := range own {
		copy(x, widen(t, narrow(t, x, d), d))
	}
	copy(dense, widen(t, narrow(t, dense, d), d))

	loss := func(k Keep) (share float64, bytes int64) {
		for _, e := range stored(t, k, dense, own, shape, d) {
			p := e.Part("w")
			share, bytes = share+p.Lost/p.Energy, bytes+e.Bytes()
		}
		return share, bytes
	}

	n := float64(shape[0] * shape[1] * int64(d.Bits()/8) * 2)
	for _, k := range []Keep{{"bits", 3}, {"bits", 2}, {"lowrank", 4}, {"lowrank", 8}, {"magnitude", 0.1}} {
		one, bytes := loss(k)
		best, _ := loss(Keep{"best", float64(bytes) / n})
		// The spectrum's bins and a sample's fit are estimates, and sizes are rounded up.
		if best > one*1.02+1e-3 {
			t.Errorf("%v loses %v, best with as many bytes %v", k, one, best)
		}
	}
}

// TestAlikeIsStoredOnce: an expert that has the same tensor as another, other than the dense model's, takes nothing for
// it and reads the same, by every rule.
func TestAlikeIsStoredOnce(t *testing.T) {
	shape, d := []int64{40, 70}, safetensors.F32
	dense, own := models(t, shape, d)
	own[1] = own[0]
	for _, k := range []Keep{{"magnitude", 0.2}, {"lowrank", 4}, {"bits", 3}, {"best", 0.1}} {
		list := stored(t, k, dense, own, shape, d)
		if list[1].Bytes() > 512 {
			t.Errorf("%v: the expert that is like the first takes %d bytes", k, list[1].Bytes())
		}
		if !slices.Equal(whole(t, list, []float64{1, 0}, dense, d), whole(t, list, []float64{0, 1}, dense, d)) {
			t.Errorf("%v: experts that are alike are read as different ones", k)
		}
	}

	// A random choice is an expert's own.
	if list := stored(t, Keep{"random", 0.3}, dense, own, shape, d); list[1].Bytes() < 1000 {
		t.Errorf("random: the second expert takes %d bytes", list[1].Bytes())
	}
}

// TestLinkRefuses: a part that is to be another expert's needs an earlier one that has it.
func TestLinkRefuses(t *testing.T) {
	has := func(name string) *Expert { return &Expert{Name: name, parts: map[string]*Stored{"w": {}}} }
	like := func(name, of string) *Expert {
		return &Expert{Name: name, parts: map[string]*Stored{}, alike: map[string]string{"w": of}}
	}
	for i, list := range [][]*Expert{
		{like("a", "b"), has("b")},
		{has("a"), like("b", "c")},
		{has("a"), like("b", "a"), like("c", "b")},
		{like("a", "a")},
	} {
		if err := Link(list); !errors.Is(err, ErrExpert) {
			t.Errorf("case %d: %v", i, err)
		}
	}
}

// TestHull: what is left falls, ever more slowly.
func TestHull(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 100 {
		var list []form
		for range 1 + rng.IntN(20) {
			list = append(list, form{bytes: rng.Int64N(50), lost: float64(rng.IntN(50))})
		}

		slope := math.Inf(-1)
		out := hull(slices.Clone(list))
		for i := 1; i < len(out); i++ {
			s := (out[i].lost - out[i-1].lost) / float64(out[i].bytes-out[i-1].bytes)
			if s >= 0 || s < slope || out[i].bytes <= out[i-1].bytes {
				t.Fatalf("%v: %v", list, out)
			}
			slope = s
		}
		for _, f := range list {
			beaten := slices.ContainsFunc(out, func(o form) bool { return o.bytes <= f.bytes && o.lost <= f.lost })
			if !beaten && f.bytes < out[0].bytes {
				t.Fatalf("%v: nothing as small as %v", out, f)
			}
		}
	}
}

// TestFormsInWords reads as a sentence.
func TestFormsInWords(t *testing.T) {
	part := func(encoding string, value int) *Part {
		return &Part{Encoding: encoding, Rank: value, Bits: value, Energy: 1}
	}
	got := Forms([][]*Part{{part(LowRank, 4), part(LowRank, 16)}, {part(Codes, 2), part(Nothing, 0)}, {part(Same, 0)}})
	if want := "2 as factors of rank 4 to 16, 1 in 2 bits, 1 like another expert's, 1 left out"; got != want {
		t.Errorf("%q", got)
	}
}
