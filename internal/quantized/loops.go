package quantized

import (
	"encoding/binary"

	"github.com/modelcompress/compress/internal/isa"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// loops are the loops of one instruction set. They give the same bits in every version, but for the payloads of NaNs of
// float16. Lengths are multiples of 32 and not 0.
type loops struct {
	// scale computes dst[i] = mul[i/group]·q[i] for int8 q; group is 16 or a multiple of it, and divides len(dst).
	scale func(dst []float32, q []byte, mul []float32, group int)
	// affine computes dst[i] = mul[i/group]·q[i] - sub[i/group], both operations rounded.
	affine func(dst []float32, q []byte, mul, sub []float32, group int)
	// scaleBF16 and affineBF16 are these with dst rounded to bfloat16, nearest with ties to even, of two bytes each.
	// There are no NaNs among the results. len(q) says how many there are.
	scaleBF16  func(dst []byte, q []byte, mul []float32, group int)
	affineBF16 func(dst []byte, q []byte, mul, sub []float32, group int)
	// translate replaces q[i], 0 to 15, by table[q[i]].
	translate func(q []byte, table *[16]int8)

	// Loops of encoders, over whole groups; see rounding.go.
	largest    func(x []float32) int
	extremes   func(x, out []float32)
	bounds32   func(x, low, high []float32)
	round      func(q []byte, x, mul, sub []float32, n, half, top int)
	codes      func(q []byte, x, inverse []float32, book *codebook)
	truncate   func(q []byte, x, least, inverse []float32, shift float32, top int)
	away       func(q []byte, x, inverse []float32)
	e2m1       func(q []byte, x, d []float32)
	extents    func(low, high, x []float32, group int)
	quotients  func(x, by []float32, group int)
	wholes     func(q []byte, x, scale, zero []float32, group int, low, high float32)
	weigh      func(weights, x, importance []float32, square float32)
	narrowF16  func(dst []byte, x []float32)
	narrowBF16 func(dst []byte, x []float32)

	// lanes is how many groups are searched at once, 0 for one after the other.
	lanes                                    int
	offsetLanes                              func(b *batch, n int, factors []float32, top, absolute int)
	symmetricLanes                           func(b *batch, n int, factors []float32, half int)
	tableLanes                               func(b *batch, factors []float32, book *codebook)
	descentLanes                             func(b *batch, n, half, rounds int)
	spreadLanes, magnitudeLanes, squareLanes func(b *batch, n int)

	// widenF16 and widenBF16 convert two bytes each; dst may be of any multiple of 16.
	widenF16, widenBF16 func(dst []float32, x []byte)
	// roundF16 and roundBF16 round to what 16 bits hold, nearest with ties to even; x may be of any multiple of 16.
	roundF16, roundBF16 func(x []float32)
}

// fastest is what this process uses.
var fastest = choose(isa.Usable(isa.Disabled()))

// portable is plain Go.
var portable = loops{
	scale: scalePortable, affine: affinePortable, scaleBF16: scaleBF16Portable, affineBF16: affineBF16Portable,
	translate: translatePortable,
	codes:     codesPortable, largest: largestPortable, extremes: extremesPortable,
	bounds32: bounds32Portable, round: roundPortable, truncate: truncatePortable, away: awayPortable,
	e2m1: e2m1Portable, extents: extentsPortable, quotients: quotientsPortable, wholes: wholesPortable,
	weigh: weighPortable, narrowF16: narrowF16Portable, narrowBF16: narrowBF16Portable,
	widenF16: widenF16Portable, widenBF16: widenBF16Portable, roundF16: roundF16Portable, roundBF16: roundBF16Portable,
}

func scalePortable(dst []float32, q []byte, mul []float32, group int) {
	for g := 0; len(dst) > 0; g++ {
		d := mul[g]
		out := dst[:group]
		for i, v := range q[:len(out)] {
			out[i] = d * float32(int8(v))
		}
		dst = dst[group:]
		q = q[group:]
	}
}

func affinePortable(dst []float32, q []byte, mul, sub []float32, group int) {
	for g := 0; len(dst) > 0; g++ {
		d := mul[g]
		m := sub[g]
		out := dst[:group]
		for i, v := range q[:len(out)] {
			out[i] = float32(d*float32(int8(v))) - m // the conversion keeps compilers from fusing the two
		}
		dst = dst[group:]
		q = q[group:]
	}
}

func scaleBF16Portable(dst []byte, q []byte, mul []float32, group int) {
	for i := range q {
		binary.LittleEndian.PutUint16(dst[2*i:], kernels.ToBF16(mul[i/group]*float32(int8(q[i]))))
	}
}

func affineBF16Portable(dst []byte, q []byte, mul, sub []float32, group int) {
	for i := range q {
		v := float32(mul[i/group]*float32(int8(q[i]))) - sub[i/group] // not fused, as above
		binary.LittleEndian.PutUint16(dst[2*i:], kernels.ToBF16(v))
	}
}

func translatePortable(q []byte, table *[16]int8) {
	for i, v := range q {
		q[i] = byte(table[v&15])
	}
}

func widenF16Portable(dst []float32, x []byte) {
	for i := range dst {
		dst[i] = kernels.FromF16(binary.LittleEndian.Uint16(x[2*i:]))
	}
}

func widenBF16Portable(dst []float32, x []byte) {
	for i := range dst {
		dst[i] = kernels.FromBF16(binary.LittleEndian.Uint16(x[2*i:]))
	}
}

// widen runs a loop over what it takes, and the portable one over the rest.
func widen(dst []float32, x []byte, fast, rest func([]float32, []byte)) {
	n := len(dst) / 16 * 16
	if n > 0 {
		fast(dst[:n], x)
	}
	rest(dst[n:], x[2*n:])
}

func roundF16Portable(x []float32) {
	for i, v := range x {
		x[i] = kernels.FromF16(kernels.ToF16(v))
	}
}

func roundBF16Portable(x []float32) {
	for i, v := range x {
		x[i] = kernels.FromBF16(kernels.ToBF16(v))
	}
}

// round rounds to the numbers of a type.
func round(x []float32, d safetensors.DType) {
	fast, rest := fastest.roundBF16, roundBF16Portable
	switch d {
	case safetensors.F32:
		return
	case safetensors.F16:
		fast, rest = fastest.roundF16, roundF16Portable
	}

	n := len(x) / 16 * 16
	if n > 0 {
		fast(x[:n])
	}
	rest(x[n:])
}
