package device_test

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
)

// TestCost checks the estimates of 16 GiB of weights by hand: 2³⁴ bytes, products of 1024 operations for each
// byte and pass of a batch, on the host 2·10¹¹ of them a second; 12·10⁹ bytes a second on the bus, 20·10⁹ on
// the host.
func TestCost(t *testing.T) {
	const bytes = 1 << 34
	for _, c := range []struct {
		use         device.Use
		fits        bool
		host, board float64
	}{
		{device.Batches, true, 16 * 1024 * bytes / 2e11, 1 + 16*1024*bytes/3e13 + bytes/12e9},
		{device.Batches, false, 16 * 1024 * bytes / 2e11, 1 + 16*bytes/12e9}, // the bus takes longer than the products
		{device.Tokens, true, 256 * bytes / 20e9, 1 + 256*bytes/1e12 + bytes/12e9},
		{device.Tokens, false, 256 * bytes / 20e9, 1 + 256*bytes/12e9},
		{device.Once, true, bytes / 20e9, 1 + bytes/1e12 + 2*bytes/12e9},
	} {
		host, board := c.use.Cost(bytes, c.fits)
		if math.Abs(host-c.host) > 1e-9 || math.Abs(board-c.board) > 1e-9 {
			t.Errorf("%s, fits %t: %g and %g s, want %g and %g", c.use, c.fits, host, board, c.host, c.board)
		}
	}
}

// TestSuits: on weights of any size, batches go to a graphics processor from the threshold on, single tokens if
// they fit, and what is used once never.
func TestSuits(t *testing.T) {
	for _, weights := range []int64{0, device.LargeWork - 1, device.LargeWork, 1 << 34, 1 << 40} {
		large := weights >= device.LargeWork
		for use, want := range map[device.Use][2]bool{
			device.Batches: {large, large}, device.Tokens: {large, false},
			device.Once: {false, false},
		} {
			for i, fits := range []bool{true, false} {
				if got, why := use.Suits(weights, fits); got != want[i] || why == "" {
					t.Errorf("%s, %d bytes, fits %t: %t, %s", use, weights, fits, got, why)
				}
			}
		}
	}
}
