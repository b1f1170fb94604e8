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

// TestConformanceWithBLAS runs products through a stand-in of cuBLASLt.
func TestConformanceWithBLAS(t *testing.T) {
	lib, f := configure(t, "")
	d, err := cuda.Open(0, cuda.Options{Library: lib, BLAS: lib})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(d.Info().Features, "cublaslt") {
		t.Error("the library is not used")
	}
	kerneltest.Run(t, d, "MatMulTN") // operands that do not start at 16 bytes are left to our own kernel
	alignedProducts(t, d)
	var products func(*int32)
	h, err := purego.Dlopen(lib, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	purego.RegisterLibFunc(&products, h, "fakeProducts")
	n := make([]int32, 2)
	if products(&n[0]); n[0] == 0 {
		t.Error("no product went to the library")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if products(&n[0]); n[1] != 0 {
		t.Errorf("%d descriptions of products were not destroyed", n[1])
	}
	leaks(t, f)
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
