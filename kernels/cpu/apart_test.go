package cpu

import (
	"math"
	"runtime"
	"testing"

	"github.com/modelcompress/compress/internal/memlimit"
	"github.com/modelcompress/compress/kernels"
)

// TestAllocApart: large buffers are zero, can be written, count as no heap, and are gone once they are freed; small
// ones are as others.
func TestAllocApart(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}

	d := New(Options{})
	before := heap()
	b, err := d.AllocApart(kernels.F32, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	if now := heap(); now > before+16<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, now)
	}
	x := b.F32()
	if len(x) != 32<<20 || x[0] != 0 || x[len(x)-1] != 0 {
		t.Errorf("%d elements, from %v to %v", len(x), x[0], x[len(x)-1])
	}
	x[len(x)-1] = 1
	b.Free()
	b.Free()
	if b.Bytes() != nil {
		t.Error("freed memory can be read")
	}

	for _, n := range []int{0, 1, 1000} {
		b, err := d.AllocApart(kernels.U8, n)
		if err != nil || b.Len != n {
			t.Errorf("%d bytes: %v", n, err)
		}
		b.Free()
	}
	for _, n := range []int{-1, math.MaxInt, memlimit.Large << 24} {
		if b, err := d.AllocApart(kernels.F32, n); err == nil {
			b.Free()
			t.Errorf("%d elements are there", n)
		}
	}
}
