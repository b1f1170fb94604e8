package optim

import (
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// chunk is how many elements one piece of work covers. Sums over chunks are added in order, so that neither
// they nor anything else depends on the number of threads.
const chunk = 1 << 15

func pieces(n, per int) int { return (n + per - 1) / per }

// values gives float32 access to a parameter.
type values struct {
	m      kernels.Mat
	master []float32 // nil: none
}

// change calls f for stretches of the value, from element lo on, which f changes in place.
func (v values) change(threads int, f func(lo int, p []float32)) {
	n := v.m.Len()
	mmapsafe.Each(threads, pieces(n, chunk), func(i int) {
		lo, hi := i*chunk, min(n, (i+1)*chunk)
		switch {
		case v.m.DType() == kernels.F32:
			f(lo, v.m.Buf.F32()[v.m.Off:][lo:hi])
		case v.master != nil:
			f(lo, v.master[lo:hi])
			v.narrow(lo, v.master[lo:hi])
		default:
			v.changeHalf(lo, hi, f)
		}
	})

	v.m.Buf.Changed()
}

// changeHalf widens, changes and rounds a stretch that fits the first-level cache at a time.
func (v values) changeHalf(lo, hi int, f func(lo int, p []float32)) {
	var buf [1024]float32
	for ; lo < hi; lo += len(buf) {
		p := buf[:min(len(buf), hi-lo)]
		v.widen(p, lo)
		f(lo, p)
		v.narrow(lo, p)
	}
}

// widen copies elements from lo on to dst.
func (v values) widen(dst []float32, lo int) {
	switch v.m.DType() {
	case kernels.F32:
		copy(dst, v.m.Buf.F32()[v.m.Off+lo:])
	case kernels.BF16:
		for i, h := range v.m.Buf.U16()[v.m.Off+lo:][:len(dst)] {
			dst[i] = kernels.FromBF16(h)
		}
	default:
		for i, h := range v.m.Buf.U16()[v.m.Off+lo:][:len(dst)] {
			dst[i] = kernels.FromF16(h)
		}
	}
}

// narrow rounds src to the elements from lo on.
func (v values) narrow(lo int, src []float32) {
	dst := v.m.Buf.U16()[v.m.Off+lo:][:len(src)]
	if v.m.DType() == kernels.BF16 {
		for i, f := range src {
			dst[i] = kernels.ToBF16(f)
		}
		return
	}

	for i, f := range src {
		dst[i] = kernels.ToF16(f)
	}
}

// newMaster is a float32 copy of a value that is not F32, else nil.
func newMaster(m kernels.Mat) []float32 {
	if m.DType() == kernels.F32 {
		return nil
	}
	c := make([]float32, m.Len())
	values{m: m}.widen(c, 0)
	return c
}
