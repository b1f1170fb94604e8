//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"testing"

	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/kerneltest"
)

// TestConformanceOnHost runs the suite on the host build of the kernels, through the driver's stand-in.
func TestConformanceOnHost(t *testing.T) {
	kerneltest.Run(t, open(t, ""))
}

// TestConformanceOnDevice runs it on every device of the machine.
func TestConformanceOnDevice(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Device) { kerneltest.Run(t, d) })
}

// TestSameBitsOnDevice: two contexts of one device give the same bits.
func TestSameBitsOnDevice(t *testing.T) {
	each(t, func(t *testing.T, d *cuda.Device) {
		other, err := cuda.Open(0, cuda.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		kerneltest.Same(t, d, other)
	})
}

// each runs f on every device of the machine, and skips the test if there is none.
func each(t *testing.T, f func(t *testing.T, d *cuda.Device)) {
	n, err := cuda.Count(cuda.Options{})
	if err != nil || n == 0 {
		t.Skipf("no device: %v", err)
	}
	for i := range n {
		d, err := cuda.Open(i, cuda.Options{})
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
	if n := cuda.Measure(t, open(t, "")); n < 15 {
		t.Errorf("%d figures", n)
	}
}
