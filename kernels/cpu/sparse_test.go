package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/kernels"
)

// sparseOf makes the sparse form of a dense matrix in which NaN-free zeros are not stored, from memory that
// make provides.
func sparseOf(dense kernels.Mat, memory func(t kernels.DType, n int) *kernels.Buffer) kernels.Sparse {
	width := (dense.Cols + 7) / 8
	mask, count := memory(kernels.U8, dense.Rows*width), 0
	clear(mask.U8())

	for i := range dense.Rows {
		for j := range dense.Cols {
			if weightAt(dense, i, j) != 0 {
				mask.U8()[i*width+j/8] |= 1 << (j % 8)
				count++
			}
		}
	}

	values := kernels.MatOf(memory(dense.DType(), count), 1, count)
	for i, n := 0, 0; i < dense.Rows; i++ {
		for j := range dense.Cols {
			if v := weightAt(dense, i, j); v != 0 {
				put(values, 0, n, v)
				n++
			}
		}
	}

	offsets := memory(kernels.I64, dense.Rows)
	w, err := kernels.NewSparse(dense.Rows, dense.Cols, mask, values.Buf, nil)
	if err != nil {
		panic(err)
	}

	copy(offsets.I64(), w.Offsets.Buf.I64())
	w.Offsets = kernels.MatOf(offsets, 1, dense.Rows)
	return w
}

// pruned is a random matrix with zeros: row i keeps a share of its elements that depends on kind and i.
func pruned(rng *rand.Rand, t kernels.DType, rows, cols int, share func(row int) float64) kernels.Mat {
	m := randomMat(rng, t, rows, cols, 0)
	for i := range rows {
		for j := range cols {
			if rng.Float64() >= share(i) {
				put(m, i, j, 0)
			}
		}
	}
	return m
}

// sparseDevices opens the processor once for every choice of kernels for sparse weights.
func sparseDevices(threads int) map[string]*Device {
	all := map[string]*Device{}
	for name, f := range isaLevels() {
		all[name] = sparseDevice(f, threads)
	}
	for name, d := range oldSparseDevices(threads) {
		all[name] = d
	}
	return all
}

// TestSparseProperties: a product with a sparse weight is the product with the same weight dense, and an
// expansion gives the dense weight back, at all shapes and choices of kernels.
func TestSparseProperties(t *testing.T) {
	devices := sparseDevices(2)
	rapid.Check(t, func(t *rapid.T) {
		m, n := rapid.IntRange(1, 70).Draw(t, "m"), rapid.IntRange(1, 80).Draw(t, "n")
		k := rapid.OneOf(rapid.IntRange(1, 200),
			rapid.Map(rapid.IntRange(1, 8), func(i int) int { return 32 * i })).Draw(t, "k")
		typ := rapid.SampledFrom(weightTypes).Draw(t, "type")

		share := rapid.SampledFrom([]float64{0, 0.05, 0.4, 0.9, 1}).Draw(t, "share")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		dense := pruned(rng, typ, n, k, func(row int) float64 { return []float64{share, share, 0, 1}[row%4] })
		w := sparseOf(dense, kernels.NewHost)
		c := productCase{kind: nt, m: m, n: n, k: k, a: randomMat(rng, kernels.F32, m, k, rng.IntN(3)), b: dense}
		c.o = kernels.MatMul{Accumulate: rng.IntN(2) == 0, Precision: kernels.Precision(rng.IntN(2))}
		if rng.IntN(2) == 0 {
			c.o.Bias = randomMat(rng, kernels.F32, 1, n, 0)
		}

		lo := rng.IntN(n)
		for name, d := range devices {
			back := newMat(typ, n, k, 3)
			d.ops.Expand(back, w)

			for i := range n {
				for j := range k {
					if weightAt(back, i, j) != weightAt(dense, i, j) {
						t.Fatalf("%s: element (%d, %d) expands to %v, want %v", name, i, j, weightAt(back, i, j),
							weightAt(dense, i, j))
					}
				}
			}

			got, want := ones(m, n), ones(m, n)
			c.run(d, want)
			d.ops.MatMulSparse(got, c.a, w, c.o)
			near(t, name, got, want, c)
			part := ones(m, n-lo)
			o := c.o
			if !o.Bias.IsZero() {
				o.Bias = o.Bias.ColRange(lo, n)
			}

			d.ops.MatMulSparse(part, c.a, w.RowRange(lo, n), o)
			near(t, name+", rows", part, want.ColRange(lo, n), c)
		}
	})
}

// ones is a destination to add to, with guards around it.
func ones(rows, cols int) kernels.Mat {
	m := newMat(kernels.F32, rows, cols, 3)
	for i := range rows {
		for j := range cols {
			put(m, i, j, 1)
		}
	}
	return m
}

// near compares two products of normal values, summed in different orders: k roundings of sums that grow like
// √k. When fast, x may be rounded to 8 bits on one side: k independent errors of up to 2^-9 of products near 1.
func near(t *rapid.T, name string, got, want kernels.Mat, c productCase) {
	tol := 1e-5 * float32(c.k+10)
	if c.o.Precision == kernels.Fast && c.b.DType() == kernels.BF16 {
		tol += 0.03 * float32(math.Sqrt(float64(c.k)))
	}

	for p, v := range got.Buf.F32() {
		if q := p - got.Off; (q < 0 || q/got.Stride >= got.Rows || q%got.Stride >= got.Cols) && v != guardValue {
			t.Fatalf("%s %v: element %d outside the view became %v", name, c, p, v)
		}
	}

	for i := range want.Rows {
		for j, v := range want.RowF32(i) {
			if d := got.RowF32(i)[j] - v; d > tol || d < -tol || d != d {
				t.Fatalf("%s %v: element (%d, %d) is %v, dense %v", name, c, i, j, got.RowF32(i)[j], v)
			}
		}
	}
}

// TestSparseRefusesWhatLeavesMemory: offsets outside the elements panic instead of reading there.
func TestSparseRefusesWhatLeavesMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	dense := pruned(rng, kernels.BF16, 40, 64, func(int) float64 { return 0.5 })
	for name, d := range sparseDevices(1) {
		for _, bad := range []int64{-1, 1 << 40, -1 << 62} {
			for _, m := range []int{1, 9, 50} {
				w := sparseOf(dense, kernels.NewHost)
				w.Offsets.Buf.I64()[5] = bad
				x, dst := randomMat(rng, kernels.F32, m, 64, 0), newMat(kernels.F32, m, 40, 0)
				func() {
					defer func() {
						if _, ok := recover().(string); !ok {
							t.Errorf("%s: offset %d did not panic with a string", name, bad)
						}
					}()
					d.ops.MatMulSparse(dst, x, w, kernels.MatMul{})
				}()
			}
		}
	}
}

// TestSparseThreads: the result does not depend on the number of threads, at sizes of many pieces.
func TestSparseThreads(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, typ := range weightTypes {
		dense := pruned(rng, typ, 700, 1056, func(int) float64 { return 0.4 })
		w := sparseOf(dense, kernels.NewHost)
		for _, m := range []int{1, 3, 7, 40, 300} {
			x := randomMat(rng, kernels.F32, m, 1056, 0)
			want := newMat(kernels.F32, m, 700, 0)
			sparseDevice(detect(""), 1).ops.MatMulSparse(want, x, w, kernels.MatMul{})

			for _, threads := range []int{2, 3, 8} {
				got := newMat(kernels.F32, m, 700, 0)
				sparseDevice(detect(""), threads).ops.MatMulSparse(got, x, w, kernels.MatMul{})
				if !slices.Equal(got.Buf.F32(), want.Buf.F32()) {
					t.Errorf("%s m=%d: %d threads give other bits than one", typ, m, threads)
				}
			}
		}
	}
}
