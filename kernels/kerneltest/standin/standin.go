//go:build linux && (amd64 || arm64)

// Package standin opens a graphics device without a graphics processor, for tests: the driver's stand-in of
// package kerneltest runs the host build of the kernels. Only tests import it.
package standin

import (
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest"
)

// Open opens the device for the length of a test; its fallbacks are counted, as those of [device.Open]. What
// the device itself offers is found with [kernels.As]. Without a C++ compiler the test is skipped.
func Open(t testing.TB) kernels.Device {
	t.Helper()
	d, err := cuda.Open(0, cuda.Options{Library: kerneltest.StandIn(t), BLAS: "off"})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return device.Complete(d)
}
