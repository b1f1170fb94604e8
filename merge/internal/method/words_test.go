package method_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// halfSource is x in bfloat16, off its alignment by skew bytes.
func halfSource(x []float32, skew int) stream.Source {
	data := make([]byte, 2*len(x)+skew)[skew:]
	for i, v := range x {
		binary.LittleEndian.PutUint16(data[2*i:], kernels.ToBF16(v))
	}
	s, err := stream.NewMapped(data, safetensors.BF16, 0, nil)
	if err != nil {
		panic(err)
	}
	return s
}

// TestWordsEqualBlocks: a merge of words gives what a merge by way of float32 does, which inputs off their
// alignment take; also where inputs hold values that are not finite, and for any number of workers. What may
// differ is the last unit of some elements: coefficients follow from sums of another order, and quotients from
// reciprocals.
func TestWordsEqualBlocks(t *testing.T) {
	const n = 1<<19 + 1<<14 + 77
	r := rand.New(rand.NewPCG(21, 22))
	draw := func(scale float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * scale)
		}
		return x
	}

	base := draw(1)
	models := [][]float32{draw(1), draw(0.5), draw(2)}
	each := func(density float64) func(int) recipe.Values {
		return func(i int) recipe.Values {
			return recipe.Values{"weight": num(0.6 - 0.2*float64(i)), "density": num(density)}
		}
	}

	for _, bad := range []bool{false, true} {
		if bad {
			models[1][n/3] = float32(math.NaN())
			models[0][5] = float32(math.Inf(1))
			base[n-1] = float32(math.Inf(-1))
		}

		for _, p := range []problem{
			{method: "linear", models: models, each: each(1)},
			{method: "task_arithmetic", base: base, models: models, each: each(1)},
			{method: "ties", base: base, models: models, each: each(0.3)},
			{method: "dare_linear", base: base, models: models, each: each(0.4)},
			{method: "dare_ties", base: base, models: models, each: each(0.4)},
			{method: "breadcrumbs", base: base, models: models, each: each(0.6)},
			{method: "breadcrumbs_ties", base: base, models: models, each: each(0.6)},
			{method: "slerp", base: base, models: models[:1], params: recipe.Values{"t": num(0.3)}},
			{method: "model_stock", base: base, models: models[:2]},
			{method: "model_stock", base: base, models: models},
		} {
			if bad && p.each == nil { // one such value makes all of the result so
				continue
			}

			p.half = true
			p.work = 1
			p.seed = 3
			got := p.solve(t)
			p.work = 2
			again := p.solve(t)
			p.skew = 1

			want := p.solve(t)
			off := 0
			for i := range got {
				a, b := float64(got[i]), float64(want[i])
				if a != b && !(math.IsNaN(a) && math.IsNaN(b)) {
					off++
					if !(math.Abs(a-b) <= math.Abs(b)/128) {
						t.Fatalf("%s, not finite %v: element %d is %v, want %v", p.method, bad, i, a, b)
					}
				}

				if math.Float32bits(got[i]) != math.Float32bits(again[i]) {
					t.Fatalf("%s: element %d depends on the number of workers", p.method, i)
				}
			}

			if off > n/1000 {
				t.Errorf("%s, not finite %v: %d of %d elements differ", p.method, bad, off, n)
			}
		}
	}
}
