package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestTallTilesAreTheSameBits: products of bytes by AMX's tiles, or on Arm by products of matrices, are bit for bit
// those without, for numbers of rows about those of a tile and of four, weights that end in the middle of one, a bias,
// sums that are added to, groups of every size with zeros and without, and several threads.
func TestTallTilesAreTheSameBits(t *testing.T) {
	tall, other := New(Options{Threads: 3}), deviceWithout(t, "amx,i8mm")
	if !tall.isa.AMXInt8 && !tall.isa.I8MM {
		t.Skip("the processor has neither AMX for bytes nor products of matrices of bytes")
	}

	rng := rand.New(rand.NewPCG(9, 10))
	for _, f := range kernels.QuantFormats() {
		for _, cols := range []int{32, 96, 544, 1056} {
			k := quantisedColumns(f, cols)
			for _, n := range []int{5, 16, 50} {
				w := randomQuantised(rng, f, n, k, kernels.NewHost)
				for _, group := range groupsOf(f, k) {
					if f.Grouped() {
						regroup(rng, &w, group)
						withZeros(rng, &w, rng.IntN(3))
					}
					for _, rows := range []int{12, 13, 16, 17, 63, 64, 65, 83} {
						t.Run(fmt.Sprintf("%s %dx%dx%d/%d", f, rows, n, k, group), func(t *testing.T) {
							compareTall(t, rng, tall, other, randomMat(rng, kernels.F32, rows, k, 0), w)
						})
					}
				}
			}
		}
	}
}

// groupsOf are the sizes of groups to be tested.
func groupsOf(f kernels.QuantFormat, k int) []int {
	if !f.Grouped() {
		return []int{0}
	}
	return []int{32, 128, k}
}

// withZeros gives a weight in groups no zeros, some in bytes or some in floats.
func withZeros(rng *rand.Rand, w *kernels.Quantised, kind int) {
	w.Zeros = kernels.Mat{}
	if kind == 0 {
		return
	}

	zeros := []kernels.DType{kernels.U8, kernels.F32}[kind-1]
	w.Zeros = kernels.MatOf(kernels.NewHost(zeros, w.Rows()*w.Groups()), w.Rows(), w.Groups())
	for i := range w.Zeros.Len() {
		if zeros == kernels.U8 {
			w.Zeros.Buf.U8()[i] = byte(rng.Uint32() % 16)
		} else {
			w.Zeros.Buf.F32()[i] = 16 * rng.Float32()
		}
	}
}

// deviceWithout is the processor without some instruction sets.
func deviceWithout(t *testing.T, disable string) *Device {
	t.Setenv("COMPRESS_CPU_DISABLE", disable)
	return New(Options{Threads: 1})
}

// compareTall holds the products of one device to those of another, bit for bit: alone, and added to what is there,
// with a bias. Some rows have values whose codes are the largest.
func compareTall(t *testing.T, rng *rand.Rand, tall, other *Device, x kernels.Mat, w kernels.Quantised) {
	for i := 0; i < x.Rows; i += 5 {
		for p, row := 0, x.RowF32(i); p < len(row); p++ {
			row[p] = float32(math.Copysign(3, float64(row[p])))
		}
	}

	bias := randomMat(rng, kernels.F32, 1, w.Rows(), 0)
	for _, o := range []kernels.MatMul{
		{Precision: kernels.Fast},
		{Precision: kernels.Fast, Bias: bias, Accumulate: true},
	} {
		want := randomMat(rng, kernels.F32, x.Rows, w.Rows(), 0)
		got := newMat(kernels.F32, x.Rows, w.Rows(), 0)
		for i := range got.Rows {
			copy(got.RowF32(i), want.RowF32(i))
		}

		other.ops.MatMulQuantised(want, x, w, o)
		tall.ops.MatMulQuantised(got, x, w, o)
		for i := range got.Rows {
			for j, v := range got.RowF32(i) {
				if math.Float32bits(v) != math.Float32bits(want.RowF32(i)[j]) {
					t.Fatalf("row %d column %d: %v, without them %v", i, j, v, want.RowF32(i)[j])
				}
			}
		}
	}
}
