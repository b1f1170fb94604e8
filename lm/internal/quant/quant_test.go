package quant

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// TestLevels compares the table of 4-bit codes with the values published with QLoRA.
func TestLevels(t *testing.T) {
	want := [16]float64{
		-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
		-0.09105003625154495, 0,
		0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
		0.5626170039176941, 0.7229568362236023, 1,
	}

	for i, w := range want {
		if math.Abs(float64(levels[i])-w) > 1e-6 { // the published ones carry the rounding of a float32 offset
			t.Errorf("level %d is %v, want %v", i, levels[i], w)
		}
	}
}

// TestRoundTrip: an element comes back within half a step of its block's scale, zeros exactly, and quantising
// again changes nothing.
func TestRoundTrip(t *testing.T) {
	for _, bits := range []int{4, 8} {
		for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
			const rows, cols = 37, 101
			x := kernels.MatOf(kernels.NewHost(d, rows*cols), rows, cols)
			for i := range rows * cols {
				narrow(x, i, []float32{float32(math.Sin(float64(i*i))) * float32(i%13)})
			}

			m := New(x, bits, 2)
			back := kernels.MatOf(kernels.NewHost(d, rows*cols), rows, cols)
			m.Expand(back, 2)

			// half the widest step; rounding of scale and BF16
			most := map[int]float64{8: 0.5/127 + 0.005, 4: 0.152 + 0.005}[bits]
			for b := range m.scales {
				scale := float64(kernels.FromBF16(m.scales[b]))
				for i := b * Block; i < min((b+1)*Block, rows*cols); i++ {
					var a, c [1]float32
					widen(a[:], x, i)
					widen(c[:], back, i)

					if gap := math.Abs(float64(a[0]) - float64(c[0])); gap > most*scale {
						t.Fatalf("%d bits, %s: element %d, %v comes back as %v, scale %v", bits, d, i, a[0], c[0],
							scale)
					}
				}
			}
		}
	}
}
