package cpu

import (
	"syscall"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// fence is memory whose end is the end of a page that no other page follows: a read or write past it ends the program.
type fence struct{ page []byte }

func newFence(t *testing.T, size int) fence {
	t.Helper()
	unit := syscall.Getpagesize()
	size = (size + unit - 1) / unit * unit
	p, err := syscall.Mmap(-1, 0, size+unit, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = syscall.Munmap(p) })
	if err := syscall.Mprotect(p[size:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}

	return fence{p[:size:size]}
}

// mat is a rows×cols matrix that ends at the fence.
func (f fence) mat(t *testing.T, d kernels.DType, rows, cols int) kernels.Mat {
	t.Helper()
	b, err := kernels.Wrap(d, f.page[len(f.page)-rows*cols*d.Size():])
	if err != nil {
		t.Fatal(err)
	}
	return kernels.MatOf(b, rows, cols)
}

// TestNothingIsReadPastTheEnd runs the operations on operands that end where memory ends.
func TestNothingIsReadPastTheEnd(t *testing.T) {
	var fences [4]fence
	for i := range fences {
		fences[i] = newFence(t, 1<<16)
	}

	for _, disable := range []string{"", "avx512"} {
		t.Setenv("COMPRESS_CPU_DISABLE", disable)
		o := New(Options{Threads: 1}).Ops()
		for n := 1; n <= 70; n++ {
			at := func(i int, d kernels.DType, rows, cols int) kernels.Mat { return fences[i].mat(t, d, rows, cols) }
			x := at(0, kernels.F32, 2, n)
			y := at(1, kernels.F32, 2, n)
			z := at(2, kernels.F32, 2, n)
			for f := kernels.SiLU; f <= kernels.ReLU; f++ {
				o.Activate(x, y, f)
				o.Gate(x, y, z, f)
			}

			o.Add(x, y, z, 0.5)
			o.Softcap(x, y, 3)
			o.Softmax(x, y)
			o.CrossEntropy(at(1, kernels.F64, 1, 2), x, []int32{0, int32(n - 1)})

			for _, d := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
				w := at(3, d, 1, n)
				o.RMSNorm(x, y, w, 1e-5, true)
				o.LayerNorm(x, y, w, w, 1e-5)
				o.Gather(x, w, []int32{0, 0}, 2)
				o.Convert(w, at(0, kernels.F32, 1, n))
				o.Convert(at(0, kernels.F32, 1, n), w)
			}

			o.ScatterAdd(x, at(1, kernels.F32, 1, n), []int32{1}, []float32{1})
			for rank := 1; rank < 9; rank++ {
				pair := kernels.LowRank{A: at(1, kernels.F32, rank, n), B: at(3, kernels.F32, rank, n)}
				o.AddLowRank(x, at(2, kernels.F32, 2, n), []kernels.LowRank{pair, pair})
			}
			r := kernels.Rope{
				Heads: 1, HeadDim: 2 * n, Dim: 2 * n, Cos: at(1, kernels.F32, 1, n),
				Sin: at(2, kernels.F32, 1, n), Pos: []int32{0},
			}
			o.RoPE(at(0, kernels.F32, 1, 2*n), r)
			r.Interleaved = true
			o.RoPE(at(0, kernels.F32, 1, 2*n), r)

			for _, rows := range []int{1, 3, 20, 40} {
				m := func(i int) kernels.Mat { return at(i, kernels.F32, rows, 2*n) }
				o.Attention(m(0), m(1), m(2), m(3), kernels.Attention{Heads: 2, KVHeads: 2, HeadDim: n, Scale: 1})
			}
		}
	}
}
