package experts

import (
	"encoding/binary"
	"math"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/vec"
	"github.com/modelcompress/compress/safetensors"
)

// codeRun is how many neighbouring elements share a scale; blocks and chunks hold whole runs.
const codeRun = 128

// codeRuns is the number of scales of n elements.
func codeRuns(n int64) int64 { return (n + codeRun - 1) / codeRun }

// codeBytes is what n codes take; eight of them fill whole bytes.
func codeBytes(n int64, bits int) int64 { return (n + 7) / 8 * int64(bits) }

// first steps, in standard deviations: those with which a normal distribution loses least under evenly spaced
// levels (Max, 1960).
var first = [9]float64{0, 1.596, 0.9957, 0.5860, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308}

// refinements is how often codes and step are fitted to each other.
const refinements = 6

// fitted finds the step with which the levels (code + ½ - 2^(bits-1))·step come close to x, and fills the
// codes: from the step for a normal distribution on, codes and the step of least squares for these are found in
// turn. The step is a bfloat16. lost is what remains of the squares.
func fitted(code []uint8, x []float32, bits int) (scale uint16, lost float64) {
	step := bfloat(first[bits] * math.Sqrt(vec.Dot(x, x)/float64(len(x))))
	for i := 0; ; i++ {
		up, down, gone := quantised(code, x, bits, widened(step))
		// A step is rounded to bfloat16, so that one round can make it worse: the best one counts, not the last.
		if i == 0 || gone < lost {
			scale, lost = step, gone
		}

		next := uint16(0)
		if down > 0 {
			next = bfloat(up / down)
		}
		if i == refinements || next == step || next == 0 {
			break
		}

		step = next
	}

	// the codes are those of the last step that was tried
	if step != scale {
		quantised(code, x, bits, widened(scale))
	}

	return scale, lost
}

// quantised codes x under a step; up and down are Σ x·level and Σ level², both in steps, and lost is what remains
// of the squares.
func quantised(code []uint8, x []float32, bits int, step float32) (up, down, lost float64) {
	half, inverse := float32(int(1)<<bits)/2, float32(0)
	if step > 0 {
		inverse = 1 / step
	}

	// The step is so small that its inverse overflows; 0·∞ would make NaN of zeros.
	if math.IsInf(float64(inverse), 0) {
		inverse = math.MaxFloat32
	}

	for i, v := range x {
		c := v*inverse + half
		// Clipped before the conversion: Go leaves open what a float outside of the type's range becomes.
		k := uint8(0)
		switch {
		case c >= 2*half:
			k = uint8(2*half - 1)
		case c > 0:
			k = uint8(c)
		}

		code[i] = k
		level := float32(k) + 0.5 - half
		up, down = up+float64(v)*float64(level), down+float64(level*level)
		gone := float64(v - level*step)
		lost += gone * gone
	}

	return up, down, lost
}

// bfloat rounds to bfloat16.
func bfloat(x float64) uint16 {
	var out [1]uint16
	vec.NarrowBF16(out[:], []float32{float32(x)})
	return out[0]
}

func widened(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// codes is the pass that writes the codes of a part and their scales.
func codes(t *method.Tensor, p *Part, i int, f *safetensors.Writer) method.Pass {
	type written struct {
		lost float64
		err  error
	}
	return method.Pass{
		New: func() any { return &written{} },
		Each: func(stat any, b *method.Block) {
			s := stat.(*written)
			if s.err != nil {
				return
			}

			r := b.Temp(0)
			vec.Sub(r, b.X[i], b.Base)

			var scales []byte
			// Codes are packed eight at a time, so that any number of bits ends at a byte.
			flat := make([]uint8, (len(r)+7)/8*8)
			for at := 0; at < len(r); at += codeRun {
				end := min(at+codeRun, len(r))
				scale, lost := fitted(flat[at:end], r[at:end], p.Bits)
				scales = binary.LittleEndian.AppendUint16(scales, scale)
				s.lost += lost
			}

			// Segments are written in any order, each at its own place.
			if s.err = f.WriteAt(p.Tensor+".codes", packCodes(flat, p.Bits), b.Off/8*int64(p.Bits)); s.err == nil {
				s.err = f.WriteAt(p.Tensor+".scale", scales, b.Off/codeRun*2)
			}
		},
		End: func(stats []any) ([]method.Pass, error) {
			p.Lost = 0
			for _, s := range stats {
				if err := s.(*written).err; err != nil {
					return nil, err
				}
				p.Lost += s.(*written).lost
			}
			return nil, nil
		},
	}
}

// packCodes puts eight codes after the other into as many bytes as a code has bits, the first one lowest.
func packCodes(code []uint8, bits int) []byte {
	out := make([]byte, 0, len(code)/8*bits)
	for ; len(code) >= 8; code = code[8:] {
		word := uint64(0)
		for i, c := range code[:8] {
			word |= uint64(c) << (i * bits)
		}
		for i := range bits {
			out = append(out, byte(word>>(8*i)))
		}
	}

	return out
}

// decode writes the differences of the elements [lo, lo+len(dst)) to dst; lo is the start of a run.
func (s *Stored) decode(dst []float32, lo int64) {
	bits := s.Bits
	mask, half := uint64(1)<<bits-1, float32(int(1)<<bits)/2-0.5
	codes := s.codes[lo/8*int64(bits):]
	for len(dst) > 0 {
		step := widened(binary.LittleEndian.Uint16(s.scale[lo/codeRun*2:]))
		run := dst[:min(codeRun, len(dst))]
		for i := 0; i < len(run); i += 8 {
			word := uint64(0)
			for k := bits - 1; k >= 0; k-- {
				word = word<<8 | uint64(codes[k])
			}

			codes = codes[bits:]

			for k := range run[i:min(i+8, len(run))] {
				run[i+k] = (float32(word&mask) - half) * step
				word >>= bits
			}
		}

		dst, lo = dst[len(run):], lo+codeRun
	}
}
