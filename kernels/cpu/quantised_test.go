package cpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// randomQuantised is a weight in random codes, with scales of about a hundredth, in memory that alloc gives.
func randomQuantised(rng *rand.Rand, f kernels.QuantFormat, rows, cols int,
	alloc func(t kernels.DType, n int) *kernels.Buffer,
) kernels.Quantised {
	width := f.RowBytes(cols)
	w := kernels.Quantised{Format: f, Cols: cols, Data: kernels.MatOf(alloc(kernels.U8, rows*width), rows, width)}
	data := w.Data.Buf.U8()
	for i := range data {
		data[i] = byte(rng.Uint32())
	}

	if f.Grouped() {
		w.Group = 64
		w.Scales = kernels.MatOf(alloc(kernels.F32, rows*w.Groups()), rows, w.Groups())
		for i := range w.Scales.Len() {
			w.Scales.Buf.F32()[i] = 0.01 * rng.Float32()
		}
		return w
	}

	_, size := f.Block()
	at := []int{0, 2}
	if f == kernels.Q6_K {
		at = []int{208}
	}
	for b := 0; b < len(data); b += size {
		for _, o := range at {
			binary.LittleEndian.PutUint16(data[b+o:], kernels.ToF16(0.01*rng.Float32()))
		}
	}
	return w
}

// quantisedColumns is a number of columns near n that a format can have.
func quantisedColumns(f kernels.QuantFormat, n int) int {
	if f.Grouped() {
		return n
	}
	elements, _ := f.Block()
	return roundUp(n, elements)
}

// TestQuantisedRowsAreAlike: under either precision, the rows of a product are the same bits whatever rows are beside
// them as long as they go the same way, and views of rows of a weight give the columns of the whole.
func TestQuantisedRowsAreAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := New(Options{Threads: 2})
	for _, f := range kernels.QuantFormats() {
		k := quantisedColumns(f, 320)
		w := randomQuantised(rng, f, 70, k, kernels.NewHost)
		for _, m := range []int{2, 5, 13, 31, 64} {
			x := randomMat(rng, kernels.F32, m, k, 0)
			for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
				all, part := newMat(kernels.F32, m, 70, 0), newMat(kernels.F32, m, 19, 0)
				d.ops.MatMulQuantised(all, x, w, kernels.MatMul{Precision: p})
				d.ops.MatMulQuantised(part, x, w.RowRange(40, 59), kernels.MatMul{Precision: p})
				for i := range m {
					if !slices.Equal(part.RowF32(i), all.RowF32(i)[40:59]) {
						t.Fatalf("%s m=%d %s: row %d of a view of rows differs", f, m, p, i)
					}
				}

				half := newMat(kernels.F32, 1, 70, 0)
				if m > byteRowLimit || p == kernels.Exact || !d.Info().Bytes {
					continue
				}
				d.ops.MatMulQuantised(half, x.RowRange(m-1, m), w, kernels.MatMul{Precision: p})
				if !slices.Equal(half.RowF32(0), all.RowF32(m-1)) {
					t.Fatalf("%s m=%d %s: the last row alone differs", f, m, p)
				}
			}
		}
	}
}

// TestExactRowsDoNotDependOnTheirNumber: the rows of an exact product of 1 to 16 rows have, bit for bit, what each has
// alone, under every instruction set, with weights of parts and of one, with groups of all kinds, with a bias and what
// is added to.
func TestExactRowsDoNotDependOnTheirNumber(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, disable := range []string{"", "avx512", "avx2,neon"} {
		t.Setenv("COMPRESS_CPU_DISABLE", disable)
		d := New(Options{Threads: 2})
		for _, f := range kernels.QuantFormats() {
			for _, cols := range []int{32, 288, 1088, 2304, 5376} {
				w := randomQuantised(rng, f, 37, quantisedColumns(f, cols), kernels.NewHost)
				compareRows(t, d, rng, w)
				if !f.Grouped() {
					continue
				}
				for _, group := range []int{32, 128, w.Cols} {
					regroup(rng, &w, group)
					compareRows(t, d, rng, w)
				}
				zeros := kernels.MatOf(kernels.NewHost(kernels.F32, w.Rows()*w.Groups()), w.Rows(), w.Groups())
				for i := range zeros.Len() {
					zeros.Buf.F32()[i] = 16 * rng.Float32()
				}
				w.Zeros = zeros
				compareRows(t, d, rng, w)
			}
		}
	}
}

// compareRows holds rows of exact products to those of products of a single row.
func compareRows(t *testing.T, d *Device, rng *rand.Rand, w kernels.Quantised) {
	t.Helper()
	for _, m := range []int{2, 3, 4, 5, 7, 16} {
		x := randomMat(rng, kernels.F32, m, w.Cols, 3)
		all, alone := newMat(kernels.F32, m, w.Rows(), 5), newMat(kernels.F32, m, w.Rows(), 0)
		o := kernels.MatMul{}
		if m%2 == 1 {
			o.Bias = randomMat(rng, kernels.BF16, 1, w.Rows(), 0)
			o.Accumulate = true
			before := randomMat(rng, kernels.F32, m, w.Rows(), 0)
			for i := range m {
				copy(all.RowF32(i), before.RowF32(i))
				copy(alone.RowF32(i), before.RowF32(i))
			}
		}

		d.ops.MatMulQuantised(all, x, w, o)
		for i := range m {
			d.ops.MatMulQuantised(alone.RowRange(i, i+1), x.RowRange(i, i+1), w, o)
			for j, v := range alone.RowF32(i) {
				if got := all.RowF32(i)[j]; math.Float32bits(got) != math.Float32bits(v) {
					t.Fatalf("%s, %d columns in groups of %d: row %d of %d, column %d: %v, alone %v", w.Format, w.Cols,
						w.Group, i, m, j, got, v)
				}
			}
		}
	}
}

// TestQuantisedBytesAreUsed: where the processor multiplies bytes, a product under Fast differs from the exact one,
// by less than the rounding of activations allows.
func TestQuantisedBytesAreUsed(t *testing.T) {
	d := New(Options{Threads: 1})
	if !d.Info().Bytes {
		t.Skip("no instructions for products of bytes")
	}

	rng := rand.New(rand.NewPCG(5, 6))
	for _, f := range kernels.QuantFormats() {
		w := randomQuantised(rng, f, 33, 256, kernels.NewHost)
		for _, m := range []int{1, 50} {
			x := randomMat(rng, kernels.F32, m, 256, 0)
			exact, fast := newMat(kernels.F32, m, 33, 0), newMat(kernels.F32, m, 33, 0)
			d.ops.MatMulQuantised(exact, x, w, kernels.MatMul{})
			d.ops.MatMulQuantised(fast, x, w, kernels.MatMul{Precision: kernels.Fast})
			same := 0
			for i := range m {
				for j, v := range exact.RowF32(i) {
					if v == fast.RowF32(i)[j] {
						same++
					}
				}
			}
			if same > m*33/10 {
				t.Errorf("%s m=%d: %d of %d elements are not rounded", f, m, same, m*33)
			}
		}
	}
}
