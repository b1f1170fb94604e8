//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/kerneltest"
)

// TestConformanceOnHost runs the suite on the host build of the kernels, through the driver's stand-in.
func TestConformanceOnHost(t *testing.T) {
	kerneltest.Run(t, open(t, ""))
}

// withBLAS opens a device of a stand-in that has cuBLASLt, and gives what its fakeProducts counts: products,
// objects that are left, choices of algorithms, the most memory of one.
func withBLAS(t *testing.T, faults string) (d *cuda.Device, count func() [4]int32, refuse func(), f fake) {
	t.Helper()
	lib, f := configure(t, faults)
	d, err := cuda.Open(0, cuda.Options{Library: lib, BLAS: lib})
	if err != nil {
		t.Fatal(err)
	}

	if !slices.Contains(d.Info().Features, "cublaslt") {
		t.Error("the library is not used")
	}

	h, err := purego.Dlopen(lib, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}

	var products func(*int32)
	purego.RegisterLibFunc(&products, h, "fakeProducts")
	purego.RegisterLibFunc(&refuse, h, "fakeRefuses")

	return d, func() [4]int32 {
		n := new([4]int32)
		products(&n[0])
		return *n
	}, refuse, f
}

// TestConformanceWithBLAS runs products through a stand-in of cuBLASLt.
func TestConformanceWithBLAS(t *testing.T) {
	d, count, _, f := withBLAS(t, "")
	kerneltest.Run(t, d, "MatMulTN") // operands that do not start at 16 bytes are left to our own kernel
	alignedProducts(t, d)
	before := count()
	if before[0] == 0 || before[3] != 4<<20 {
		t.Errorf("%d products went to the library, with %d bytes", before[0], before[3])
	}

	alignedProducts(t, d)

	if after := count(); after[0] == before[0] || after[2] != before[2] {
		t.Errorf("the library was asked %d and then %d times for an algorithm, for %d and then %d products", before[2],
			after[2], before[0], after[0])
	}

	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := count(); n[1] != 0 {
		t.Errorf("%d descriptions of products were not destroyed", n[1])
	}

	leaks(t, f)
}

// TestBLASWithoutMemory: where its memory is refused, the library's algorithms need none; a device with little
// has none for it; and where the library has no algorithm our own kernel computes. Products are right, and
// nothing is moved to the host for them.
func TestBLASWithoutMemory(t *testing.T) {
	for _, c := range []struct {
		name, faults string
		full, refuse bool
		products     bool
	}{
		{"refused", "", true, false, true},
		{"refused by the allocator without a pool", "nopool", true, false, true},
		{"a small device", "memory=67108864", false, false, true},
		{"no algorithm", "", false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, count, refuse, f := withBLAS(t, c.faults)
			if c.refuse {
				refuse()
			}

			if c.full {
				i := d.Info()
				b, err := d.Alloc(kernels.U8, int(i.Free)-8<<20)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Free()
			}

			alignedProducts(t, d)
			if n := count(); (n[0] > 0) != c.products || n[3] != 0 {
				t.Errorf("%d products with %d bytes", n[0], n[3])
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if n := count(); n[1] != 0 {
				t.Errorf("%d descriptions of products were not destroyed", n[1])
			}

			leaks(t, f)
		})
	}
}

// alignedProducts compares products of whole buffers with sums in float64.
func alignedProducts(t *testing.T, d *cuda.Device) {
	t.Helper()
	const n = 176 // above the least size that the library is asked for
	x, w := kernels.NewHost(kernels.F32, n*n), kernels.NewHost(kernels.F32, n*n)
	for i := range x.F32() {
		x.F32()[i], w.F32()[i] = float32(i%13-6)/8, float32(i%11-5)/4
	}

	var m [3]kernels.Mat
	for i := range m {
		b, err := d.Alloc(kernels.F32, n*n)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Free()

		if err := d.Upload(b, 0, []*kernels.Buffer{x, w, x}[i].Bytes()); err != nil {
			t.Fatal(err)
		}

		m[i] = kernels.MatOf(b, n, n)
	}

	d.Ops().MatMulNT(m[2], m[0], m[1], kernels.MatMul{})
	got := kernels.NewHost(kernels.F32, n*n)
	if err := d.Download(got.Bytes(), m[2].Buf, 0); err != nil {
		t.Fatal(err)
	}

	for i := range n * n {
		want := 0.0
		for k := range n {
			want += float64(x.F32()[i/n*n+k]) * float64(w.F32()[i%n*n+k])
		}
		if float64(got.F32()[i]) != want { // multiples of 1/32 below 2^17/32: float32 holds every partial sum
			t.Fatalf("element %d: %v, want %v", i, got.F32()[i], want)
		}
	}
}

// TestConformanceOnDevice runs it on every device of the machine, and its products with our own kernel.
func TestConformanceOnDevice(t *testing.T) {
	each(t, cuda.Options{}, func(t *testing.T, d *cuda.Device) {
		kerneltest.Run(t, d)
		alignedProducts(t, d)
	})
	each(t, cuda.Options{BLAS: "off"}, func(t *testing.T, d *cuda.Device) {
		kerneltest.Run(t, d, "MatMulNT", "MatMulNN", "MatMulTN", "MatMulSparse")
	})
}

// TestSameBitsOnDevice: two contexts of one device give the same bits.
func TestSameBitsOnDevice(t *testing.T) {
	each(t, cuda.Options{}, func(t *testing.T, d *cuda.Device) {
		var index int
		if _, err := fmt.Sscanf(d.Info().Name, "cuda:%d", &index); err != nil {
			t.Fatal(err)
		}

		other, err := cuda.Open(index, cuda.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()

		kerneltest.Same(t, d, other)
	})
}

// each runs f on every device of the machine, and skips the test if there is none.
func each(t *testing.T, o cuda.Options, f func(t *testing.T, d *cuda.Device)) {
	n, err := cuda.Count(cuda.Options{})
	if err != nil || n == 0 {
		t.Skipf("no device: %v", err)
	}

	for i := range n {
		d, err := cuda.Open(i, o)
		if err != nil {
			t.Fatal(err)
		}

		t.Run(d.Info().Name, func(t *testing.T) { f(t, d) })
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkDevice times every operation on the first device.
func BenchmarkDevice(b *testing.B) {
	if n, err := cuda.Count(cuda.Options{}); err != nil || n == 0 {
		b.Skipf("no device: %v", err)
	}
	d, err := cuda.Open(0, cuda.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	kerneltest.Benchmark(b, d)
}

// TestMeasurementsRun: what the device check measures runs on the stand-in, at small sizes.
func TestMeasurementsRun(t *testing.T) {
	if n := cuda.Measure(t, open(t, "")); n < 22 {
		t.Errorf("%d figures", n)
	}
}
