package swaps

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// problem is a random matrix with a mask and the Gram matrix of random inputs, which are alike in part.
type problem struct {
	rows, n int
	job     Job
}

func draw(rt *rapid.T, passes int) problem {
	size := rapid.SampledFrom([]int{0, 2, 4, 5}).Draw(rt, "m")
	n := rapid.IntRange(2, 14).Draw(rt, "inputs")
	rows := rapid.IntRange(1, 5).Draw(rt, "rows")
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
	alike := rapid.Float64Range(0, .95).Draw(rt, "alike")

	p := problem{rows: rows, n: n, job: Job{
		W: matrix(kernels.F32, rows, n), Keep: matrix(kernels.U8, rows, n), Gram: matrix(kernels.F32, n, n),
		M: size, Passes: passes, Mul: multiply,
	}}
	dead := rapid.IntRange(-1, n-1).Draw(rt, "dead")
	tokens := rapid.IntRange(1, 2*n).Draw(rt, "tokens")
	x := make([]float64, n)
	for range tokens {
		common := random.NormFloat64()
		for i := range x {
			x[i] = alike*common + (1-alike)*random.NormFloat64()
		}
		if dead >= 0 {
			x[dead] = 0
		}
		for i := range n {
			for k, v := range x {
				p.job.Gram.RowF32(i)[k] += float32(x[i] * v)
			}
		}
	}
	for i := range rows {
		for k := range n {
			p.job.W.RowF32(i)[k] = float32(random.NormFloat64())
			p.job.Keep.RowU8(i)[k] = uint8(random.IntN(2))
		}
	}
	return p
}

func matrix(t kernels.DType, rows, cols int) kernels.Mat {
	return kernels.MatOf(kernels.NewHost(t, rows*cols), rows, cols)
}

func multiply(dst, x, w kernels.Mat) {
	ref.New().Ops().MatMulNN(dst, x, w, kernels.MatMul{Accumulate: true})
}

// energy is E of a row, from nothing but its definition.
func (p problem) energy(i int, keep []uint8) (sum float64) {
	for a, v := range p.job.W.RowF32(i) {
		for b, w := range p.job.W.RowF32(i) {
			if keep[a] == 0 && keep[b] == 0 {
				sum += float64(v) * float64(w) * float64(p.job.Gram.RowF32(a)[b])
			}
		}
	}
	return sum
}

// group is the first column of those that a column may be exchanged with.
func (p problem) group(col int) int {
	if p.job.M == 0 {
		return 0
	}
	return col / p.job.M * p.job.M
}

// bestPair is what the best swap of a row would change, of all that there are.
func (p problem) bestPair(i int) float64 {
	keep := slices.Clone(p.job.Keep.RowU8(i))
	now, best := p.energy(i, keep), 0.0
	for u := range keep {
		for v := range keep {
			if keep[u] == 1 && keep[v] == 0 && p.group(u) == p.group(v) {
				keep[u], keep[v] = 0, 1
				best = min(best, p.energy(i, keep)-now)
				keep[u], keep[v] = 1, 0
			}
		}
	}
	return best
}

// TestSwaps: every swap lowers the error; the errors are those that the masks have; where all columns are one set, or
// sets are of one group, no other pair would lower it at the end; counts stay.
func TestSwaps(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		passes := rapid.SampledFrom([]int{0, 1, 3, 1000}).Draw(rt, "passes")
		p := draw(rt, passes)
		p.job.width = rapid.SampledFrom([]int{0, 3, 6}).Draw(rt, "width")
		before := slices.Clone(p.job.Keep.Buf.Bytes())

		var lock sync.Mutex
		swaps := int64(0)
		p.job.made = func(row int, change float64) {
			lock.Lock()
			defer lock.Unlock()
			swaps++
			if !(change < 0) {
				rt.Errorf("row %d: a swap changed the error by %g", row, change)
			}
		}

		r, err := p.job.Run()
		if err != nil {
			rt.Fatal(err)
		}
		if r.Swaps != swaps || passes == 0 && swaps > 0 {
			rt.Fatalf("%d swaps in %d passes, reported %d", swaps, passes, r.Swaps)
		}

		whole := passes > 0 && p.job.M == 0 && p.job.width == 0 || passes == 1000 && p.job.M > 0
		for i := range p.rows {
			old, now := before[i*p.n:(i+1)*p.n], p.job.Keep.RowU8(i)
			first, end := p.energy(i, old), p.energy(i, now)
			near := 1e-5 * (first + 1e-3)
			if math.Abs(r.Before[i]-first) > near || math.Abs(r.After[i]-end) > near {
				rt.Fatalf("row %d: E %g to %g, by definition %g to %g", i, r.Before[i], r.After[i], first, end)
			}
			if end > first+near {
				rt.Fatalf("row %d: E rose from %g to %g", i, first, end)
			}
			if best := p.bestPair(i); whole && best < -1e-4*(end+1e-2) {
				rt.Fatalf("row %d: a swap would change E of %g by %g", i, end, best)
			}

			kept := map[int]int{}
			for c := range p.n {
				kept[p.group(c)] += int(now[c]) - int(old[c])
			}
			for g, more := range kept {
				if more != 0 {
					rt.Fatalf("row %d: the group at %d keeps %d more", i, g, more)
				}
			}
		}
	})
}

// TestThreads: masks and errors do not depend on how many threads there are.
func TestThreads(t *testing.T) {
	for _, m := range []int{0, 4} {
		var masks [][]byte
		var errs [][]float64
		for _, threads := range []int{1, 2, 7} {
			p := large(300, 300)
			p.M, p.Threads = m, threads
			r, err := p.Run()
			if err != nil {
				t.Fatal(err)
			}
			if r.Swaps == 0 {
				t.Fatal("no swap of a random mask")
			}
			masks, errs = append(masks, p.Keep.Buf.Bytes()), append(errs, r.After)
		}
		for i := range masks {
			if !slices.Equal(masks[0], masks[i]) || !slices.Equal(errs[0], errs[i]) {
				t.Errorf("M %d: other results with other threads", m)
			}
		}
	}
}

// large is a problem with a mask of every other weight.
func large(rows, n int) Job {
	random := rand.New(rand.NewPCG(3, 4))
	j := Job{
		W: matrix(kernels.F32, rows, n), Keep: matrix(kernels.U8, rows, n), Gram: matrix(kernels.F32, n, n),
		Passes: 3, Mul: multiply,
	}
	x := matrix(kernels.F32, n+n/2, n)
	for i := range x.Rows {
		common := random.NormFloat64()
		for k := range n {
			x.RowF32(i)[k] = float32(common + random.NormFloat64())
		}
	}
	ref.New().Ops().MatMulTN(j.Gram, x, x, kernels.MatMul{})
	for i := range rows {
		for k := range n {
			j.W.RowF32(i)[k] = float32(random.NormFloat64())
			j.Keep.RowU8(i)[k] = uint8(k / 2 % 2)
		}
	}
	return j
}

// TestStop: what the caller is asked between sets ends the work.
func TestStop(t *testing.T) {
	j := large(300, 16)
	enough := errors.New("enough")
	asked := 0
	j.width = 4
	j.Stop = func() error {
		if asked++; asked > 2 {
			return enough
		}
		return nil
	}
	if _, err := j.Run(); !errors.Is(err, enough) || asked != 3 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
