//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"slices"
	"testing"

	"github.com/ebitengine/purego"

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
	kerneltest.Run(t, d, "MatMulTN")
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

// TestConformanceOnDevice runs it on every device of the machine, and its products with our own kernel.
func TestConformanceOnDevice(t *testing.T) {
	each(t, cuda.Options{}, func(t *testing.T, d *cuda.Device) { kerneltest.Run(t, d) })
	each(t, cuda.Options{BLAS: "off"}, func(t *testing.T, d *cuda.Device) {
		kerneltest.Run(t, d, "MatMulNT", "MatMulNN", "MatMulTN", "MatMulSparse")
	})
}

// TestSameBitsOnDevice: two contexts of one device give the same bits.
func TestSameBitsOnDevice(t *testing.T) {
	each(t, cuda.Options{}, func(t *testing.T, d *cuda.Device) {
		other, err := cuda.Open(0, cuda.Options{})
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
