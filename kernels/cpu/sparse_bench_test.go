package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/modelcompress/compress/kernels"
)

// sparseMasks are the kinds of pruned weights that are measured.
var sparseMasks = []struct {
	name string
	keep func(r *rand.Rand) uint8 // mask of 8 columns
}{
	{"50", func(r *rand.Rand) uint8 { return uint8(r.Uint32()) }},
	{"60", func(r *rand.Rand) uint8 { return randomByte(r, 0.4) }},
	{"70", func(r *rand.Rand) uint8 { return randomByte(r, 0.3) }},
	{"2:4", func(r *rand.Rand) uint8 {
		pairs := [6]uint8{3, 5, 6, 9, 10, 12}
		return pairs[r.IntN(6)] | pairs[r.IntN(6)]<<4
	}},
}

func randomByte(r *rand.Rand, p float64) (m uint8) {
	for b := range 8 {
		if r.Float64() < p {
			m |= 1 << b
		}
	}
	return m
}

// BenchmarkSparse measures products with sparse weights turn by turn with the same weights dense, and with
// plain reading of as many bytes as the sparse ones take; the shortest times count. The weights are together
// larger than most caches.
func BenchmarkSparse(b *testing.B) {
	const n, count = 8192, 4
	for _, mask := range sparseMasks {
		for _, t := range []kernels.DType{kernels.BF16, kernels.F32} {
			var weights []sparsePair
			for _, m := range []int{1, 4, 16, 64, 256} {
				for _, threads := range benchThreads {
					b.Run(fmt.Sprintf("%s/%s/m=%d/threads=%d", mask.name, t, m, threads), func(b *testing.B) {
						if weights == nil {
							weights = sparsePairs(t, n, count, mask.keep)
						}
						benchmarkSparse(b, sparseDevice(detect(""), threads), m, weights)
					})
				}
			}
		}
	}
}

// sparsePair is a weight in both forms.
type sparsePair struct {
	sparse kernels.Sparse
	dense  kernels.Mat
}

// sparsePairs makes count weights n×n, equal but for where they are in memory.
func sparsePairs(t kernels.DType, n, count int, keep func(r *rand.Rand) uint8) []sparsePair {
	r, d := rand.New(rand.NewPCG(1, 2)), sparseDevice(detect(""), 2)
	mask := kernels.NewHost(kernels.U8, n*n/8)
	stored := 0
	for i := range mask.U8() {
		mask.U8()[i] = keep(r)
		for m := mask.U8()[i]; m != 0; m &= m - 1 {
			stored++
		}
	}

	list := make([]sparsePair, count)
	for i := range list {
		m := kernels.NewHost(kernels.U8, mask.Len)
		copy(m.U8(), mask.U8())
		w, err := kernels.NewSparse(n, n, m, repeating(t, 1, stored).Buf, nil)
		if err != nil {
			panic(err)
		}

		list[i] = sparsePair{w, kernels.MatOf(kernels.NewHost(t, n*n), n, n)}
		d.ops.Expand(list[i].dense, w)
	}

	return list
}

func benchmarkSparse(b *testing.B, d *Device, m int, weights []sparsePair) {
	n, k := weights[0].dense.Rows, weights[0].dense.Cols
	x := randomMat(rand.New(rand.NewPCG(1, 1)), kernels.F32, m, k, 0)
	dst := newMat(kernels.F32, m, n, 0)
	o := kernels.MatMul{Precision: kernels.Fast}

	sparse := time.Duration(1 << 62)
	dense := time.Duration(1 << 62)
	reading := time.Duration(1 << 62)
	for i := 0; b.Loop(); i++ {
		w := weights[i%len(weights)]
		start := time.Now()
		d.ops.MatMulSparse(dst, x, w.sparse, o)
		sparse = min(sparse, time.Since(start))
		start = time.Now()

		d.ops.MatMulNT(dst, x, w.dense, o)
		dense = min(dense, time.Since(start))
		size := int(w.sparse.SizeBytes())
		start = time.Now()
		d.readShares(weights[(i+2)%len(weights)].dense.Buf.Bytes()[:size], d.threads)
		reading = min(reading, time.Since(start))
	}

	b.ReportMetric(dense.Seconds()/sparse.Seconds(), "x-dense")
	b.ReportMetric(reading.Seconds()/sparse.Seconds(), "of-reading")
	b.ReportMetric(1e3*dense.Seconds(), "dense-ms")
	b.ReportMetric(1e3*sparse.Seconds(), "sparse-ms")
	b.ReportMetric(float64(weights[0].sparse.SizeBytes())/float64(len(weights[0].dense.Buf.Bytes())), "of-size")
	b.ReportMetric(0, "ns/op")
}

// sparseDevice opens the processor for products with the given instruction sets.
func sparseDevice(f features, threads int) *Device {
	d := deviceWith(f, threads)
	d.sparseOps(&d.ops)
	return d
}
