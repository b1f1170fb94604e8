//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
)

// sixteenths are values with ties: multiples of 1/16, so that sums and differences are exact in every type.
func sixteenths(seed uint64, n int) []float32 {
	rng, out := rand.New(rand.NewPCG(seed, 7)), make([]float32, n)
	for i := range out {
		out[i] = float32(rng.IntN(33)-16) / 16
	}
	return out
}

// placeAs is a matrix of a type with contents that the type holds exactly.
func placeAs(t *testing.T, d *cuda.Device, dt kernels.DType, rows, cols int, values []float32) kernels.Mat {
	t.Helper()
	wide := alloc(t, d, rows, cols, kernelBytes(values))
	b, err := d.Alloc(dt, rows*cols)
	if err != nil {
		t.Fatal(err)
	}
	m := kernels.MatOf(b, rows, cols)
	d.Ops().Convert(m, wide)
	return m
}

// keptOf are the differences of x to base of which the n largest stay, of equal ones the first.
func keptOf(base, x []float32, n int) []float32 {
	order, out := make([]int, len(x)), make([]float32, len(x))
	for i := range x {
		order[i] = i
	}

	size := func(i int) float64 { return math.Abs(float64(x[i] - base[i])) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(b), size(a)) })
	if n == 0 {
		n = len(x)
	}
	for _, i := range order[:n] {
		out[i] = x[i] - base[i]
	}

	return out
}

// TestMerge compares task arithmetic, TIES and their counts of conflicts with plain loops, for every type.
func TestMerge(t *testing.T) {
	d := open(t, "")
	for _, keep := range []int{0, 1, 400, mergeRows*mergeCols - 1} {
		mergeModels(t, d, kernels.F32, 3, keep)
	}
	for _, dt := range []kernels.DType{kernels.BF16, kernels.F16} {
		mergeModels(t, d, dt, 3, 400)
	}
}

// TestMergeManyModels: up to the most models of one merge.
func TestMergeManyModels(t *testing.T) {
	d := open(t, "")
	mergeModels(t, d, kernels.BF16, kernels.MaxModels, 0)
	mergeModels(t, d, kernels.F32, 9, 400)
}

const mergeRows, mergeCols = 7, 331

// mergeModels compares the merges of a number of models with plain loops.
func mergeModels(t *testing.T, d *cuda.Device, dt kernels.DType, models, keep int) {
	t.Helper()
	const n = mergeRows * mergeCols
	base := sixteenths(1, n)
	b := placeAs(t, d, dt, mergeRows, mergeCols, base)

	var list []cuda.Source
	var deltas [][]float32
	for m := range models {
		x := sixteenths(uint64(m+2), n)
		deltas = append(deltas, keptOf(base, x, keep))
		list = append(list,
			cuda.Source{M: placeAs(t, d, dt, mergeRows, mergeCols, x), Weight: float32(m+1) / 4, Keep: keep})
	}

	for _, a := range []cuda.Arithmetic{
		{Lambda: 1},
		{Lambda: 0.5, Normalise: true},
		{Lambda: 1, Consensus: true, Normalise: true},
	} {
		out := alloc(t, d, mergeRows, mergeCols, nil)
		if err := d.Merge(out, b, list, a); err != nil {
			t.Fatal(err)
		}

		for i, got := range read(t, d, out) {
			if want := merged(base[i], deltas, list, i, a); got != want {
				t.Fatalf("%d models, %s keep %d %+v: element %d is %v, want %v", models, dt, keep, a, i, got, want)
			}
		}
	}

	c, err := d.Conflicts(b, list)
	if err != nil {
		t.Fatal(err)
	}

	if want := countSigns(deltas); c != want {
		t.Errorf("%d models, %s keep %d: conflicts %+v, want %+v", models, dt, keep, c, want)
	}
}

// merged is one element in float32, in the order of the kernel.
func merged(base float32, deltas [][]float32, list []cuda.Source, i int, a cuda.Arithmetic) float32 {
	var total, sum, weights float32
	for m, x := range deltas {
		total += float32(list[m].Weight * x[i])
	}

	for m, x := range deltas {
		v := float32(list[m].Weight * x[i])
		if a.Consensus && !(total >= 0 && v > 0 || total < 0 && v < 0) {
			continue
		}
		sum += v
		weights += list[m].Weight
	}

	if a.Normalise {
		if weights == 0 {
			weights = 1
		}
		sum /= weights
	}

	return base + float32(a.Lambda*sum)
}

func countSigns(deltas [][]float32) (c cuda.Conflicts) {
	for i := range deltas[0] {
		p := 0
		n := 0
		sum := 0.0
		for _, x := range deltas {
			switch v := x[i]; {
			case v > 0:
				p++
			case v < 0:
				n++
			}

			sum += float64(x[i])
			c.Mass += math.Abs(float64(x[i]))
		}

		c.Net += math.Abs(sum)
		if p+n > 0 {
			c.Signs[p][n]++
		}
	}

	return c
}

// TestRandomDropping: an element stays when its number of the keyed sequence is below the share.
func TestRandomDropping(t *testing.T) {
	d := open(t, "")
	const n, share, keyA, keyB = 1000, 1 << 30, 0x12345678, 0x9abcdef0
	ones, out := make([]float32, n), alloc(t, d, 1, n, nil)
	for i := range ones {
		ones[i] = 1
	}

	base := alloc(t, d, 1, n, nil)
	err := d.Merge(out, base,
		[]cuda.Source{{M: alloc(t, d, 1, n, kernelBytes(ones)), Weight: 4, Share: share, A: keyA, B: keyB}},
		cuda.Arithmetic{Lambda: 1})
	if err != nil {
		t.Fatal(err)
	}

	for i, got := range read(t, d, out) {
		x := uint32(i)*0x9e3779b1 + keyA
		x ^= x >> 16
		x *= 0x7feb352d
		x ^= x >> 15
		x += keyB
		x *= 0x846ca68b
		x ^= x >> 16
		if want := map[bool]float32{true: 4}[x < share]; got != want {
			t.Fatalf("element %d is %v, want %v", i, got, want)
		}
	}
}

// TestMergeRefuses: wrong models are errors.
func TestMergeRefuses(t *testing.T) {
	d := open(t, "")
	base, other := alloc(t, d, 2, 4, nil), alloc(t, d, 4, 2, nil)
	for what, list := range map[string][]cuda.Source{
		"no models":         nil,
		"too many":          make([]cuda.Source, kernels.MaxModels+1),
		"another shape":     {{M: other}},
		"too much kept":     {{M: base, Keep: 9}},
		"less than nothing": {{M: base, Keep: -1}},
	} {
		if err := d.Merge(base, base, list, cuda.Arithmetic{}); !errors.Is(err, cuda.ErrMerge) {
			t.Errorf("%s: error %v", what, err)
		}
	}
}

// TestAdamW compares three steps with plain loops.
func TestAdamW(t *testing.T) {
	d := open(t, "")
	const n = 700
	p := floats(1, n)
	m := make([]float32, n)
	v := make([]float32, n)

	g := floats(2, n)
	dp := alloc(t, d, 1, n, kernelBytes(p))
	dm := alloc(t, d, 1, n, nil)
	dv := alloc(t, d, 1, n, nil)
	dg := alloc(t, d, 1, n, kernelBytes(g))
	s := cuda.AdamStep{
		Scale: 0.5, Decay: 0.999, Rise1: 0.1, Beta2: 0.999, Rise2: 0.001, Root2: 0.03, Eps: 1e-8,
		Step: -0.01,
	}

	for range 3 {
		d.AdamW(dp, dm, dv, dg, s)

		for i, x := range p {
			grad := float32(g[i] * s.Scale)
			m[i] += float32(s.Rise1 * float32(grad-m[i]))
			v[i] = float32(v[i]*s.Beta2) + float32(float32(s.Rise2*grad)*grad)
			p[i] = float32(
				x*s.Decay) + float32(s.Step*float32(m[i]/(float32(float32(math.Sqrt(float64(v[i])))/s.Root2)+s.Eps)))
		}
	}

	for i, got := range read(t, d, dp) {
		if math.Abs(float64(got-p[i])) > 1e-6 { // the denominator may be rounded once or twice
			t.Fatalf("value %d is %v, want %v", i, got, p[i])
		}
	}
}
