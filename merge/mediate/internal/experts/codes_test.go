package experts

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// TestCodesOfANormalDistribution: what codes lose of normal differences is what evenly spaced levels lose (Max,
// 1960), and is read back as it was coded, whatever the length.
func TestCodesOfANormalDistribution(t *testing.T) {
	want := []float64{0, 0.3634, 0.1188, 0.03744, 0.01154, 0.003495, 0.00104}
	for bits := 1; bits < len(want); bits++ {
		for _, n := range []int{1 << 16, 1000, 5} {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			x, code := make([]float32, n), make([]uint8, (n+7)/8*8)
			energy, lost := 0.0, 0.0
			s := &Stored{}
			s.Bits = bits

			for i := range x {
				x[i] = float32(rng.NormFloat64() * 0.01)
				energy += float64(x[i]) * float64(x[i])
			}

			for at := 0; at < n; at += codeRun {
				end := min(at+codeRun, n)
				scale, gone := fitted(code[at:end], x[at:end], bits)
				s.scale = binary.LittleEndian.AppendUint16(s.scale, scale)
				lost += gone
			}

			s.codes = packCodes(code, bits)
			if int64(len(s.codes)) != codeBytes(int64(n), bits) || int64(len(s.scale)) != 2*codeRuns(int64(n)) {
				t.Errorf("%d elements of %d bits: %d bytes of codes, %d of scales", n, bits, len(s.codes), len(s.scale))
			}

			back, again := make([]float32, n), 0.0
			s.decode(back, 0)
			for i := range x {
				again += (float64(x[i]) - float64(back[i])) * (float64(x[i]) - float64(back[i]))
			}
			// sums in another order, of differences that are rounded once more
			if math.Abs(again-lost) > 1e-5*energy {
				t.Errorf("%d elements of %d bits lose %v, noted %v", n, bits, again/energy, lost/energy)
			}
			// runs of 128 are short of the distribution's tails, and their scales fit them: a little less is lost
			if r := lost / energy / want[bits]; n == 1<<16 && (r < 0.6 || r > 1.02) {
				t.Errorf("%d bits lose %v of the energy, want about %v", bits, lost/energy, want[bits])
			}
		}
	}
}

// TestCodesOfSpecialRuns: zeros, a constant and extreme magnitudes are coded without a fault.
func TestCodesOfSpecialRuns(t *testing.T) {
	for _, v := range []float32{0, 1, 1e-42, -3e38} {
		x, code := make([]float32, 128), make([]uint8, 128)
		for i := range x {
			x[i] = v
		}

		scale, lost := fitted(code, x, 3)
		s := &Stored{codes: packCodes(code, 3), scale: binary.LittleEndian.AppendUint16(nil, scale)}
		s.Bits = 3
		s.decode(x, 0)

		// one level fits a constant, but for the eight bits of the scale; subnormal numbers have fewer
		if d := math.Abs(float64(x[7] - v)); math.IsNaN(lost) || math.IsInf(lost, 0) && v > -1e38 ||
			d > 0.01*math.Abs(float64(v))+1e-40 {
			t.Errorf("%v comes back as %v, lost %v", v, x[7], lost)
		}
	}
}
