package cpu

import (
	"encoding/binary"

	"github.com/modelcompress/compress/kernels"
)

// codeGroup is how many elements are taken apart together: no format has more with a scale of their own. Those of Q6_K
// have two scales.
const codeGroup = 32

// codes is a group of elements taken apart: element j is mul[j/16]·q[j] + add[j/16], where nothing is added for formats
// that are symmetric.
type codes struct {
	q        [codeGroup]int8
	mul, add [2]float32
	affine   bool
}

// set makes both halves of the group alike.
func (c *codes) set(mul, add float32, affine bool) {
	c.mul = [2]float32{mul, mul}
	c.add = [2]float32{add, add}
	c.affine = affine
}

// decodePortable writes the elements of row i from column j on to dst, in Go. j is a multiple of 32.
func decodePortable(dst []float32, w kernels.Quantised, i, j int) {
	data := w.Data.RowU8(i)
	if w.Format.Grouped() {
		decodeGrouped(dst, w, data, i, j)
		return
	}

	elements, bytes := w.Format.Block()
	var c codes
	for ; len(dst) > 0; dst = dst[codeGroup:] {
		c.takeApart(w.Format, data[j/elements*bytes:][:bytes], j%elements/codeGroup)
		for half := range c.mul {
			out := dst[16*half:][:16]
			for p := range out {
				v := c.mul[half] * float32(c.q[16*half+p])
				if c.affine {
					v = float32(v) + c.add[half]
				}
				out[p] = v
			}
		}
		j += codeGroup
	}
}

// decodeGrouped is decodePortable for formats whose scales lie beside the codes.
func decodeGrouped(dst []float32, w kernels.Quantised, data []uint8, i, j int) {
	for len(dst) > 0 {
		g := j / w.Group
		n := min(len(dst), (g+1)*w.Group-j)
		scale, zero := w.Scales.RowF32(i)[g], zeroOf(w, i, g)

		if w.Format == kernels.Int8 {
			for p, v := range data[j : j+n] {
				dst[p] = scale * (float32(int8(v)) - zero)
			}
		} else {
			for p := range n {
				dst[p] = scale * (float32(data[(j+p)/2]>>((j+p)%2*4)&15) - zero)
			}
		}

		dst = dst[n:]
		j += n
	}
}

// zeroOf is what is subtracted from the codes of group g of row i.
func zeroOf(w kernels.Quantised, i, g int) float32 {
	var z [1]float32
	zerosOf(z[:], w, i, g)
	return z[0]
}

// zerosOf writes what is subtracted from the codes of groups of row i, from group first on.
func zerosOf(dst []float32, w kernels.Quantised, i, first int) {
	switch {
	case w.Zeros.IsZero():
		usual := float32(0)
		if w.Format == kernels.Int4 {
			usual = 8
		}
		for g := range dst {
			dst[g] = usual
		}
	case w.Zeros.DType() == kernels.F32:
		copy(dst, w.Zeros.RowF32(i)[first:])
	case w.Format == kernels.Int8:
		for g, z := range w.Zeros.RowU8(i)[first:][:len(dst)] {
			dst[g] = float32(int8(z))
		}
	default:
		for g, z := range w.Zeros.RowU8(i)[first:][:len(dst)] {
			dst[g] = float32(z)
		}
	}
}

// half16 is the F16 number at the start of b.
func half16(b []byte) float32 { return kernels.FromF16(binary.LittleEndian.Uint16(b)) }

// takeApart takes group g of a block apart. How the blocks lie is said at [kernels.QuantFormat] and in package ref.
func (c *codes) takeApart(f kernels.QuantFormat, b []byte, g int) {
	switch f {
	case kernels.Q8_0:
		c.set(half16(b), 0, false)
		for p, v := range b[2:34] {
			c.q[p] = int8(v)
		}
	case kernels.Q4_0:
		c.set(half16(b), 0, false)
		c.nibbles(b[2:], 8)
	case kernels.Q4_1:
		c.set(half16(b), half16(b[2:]), true)
		c.nibbles(b[4:], 0)
	case kernels.Q5_0:
		c.set(half16(b), 0, false)
		c.nibbles(b[6:], 16)
		c.fifths(binary.LittleEndian.Uint32(b[2:]))
	case kernels.Q5_1:
		c.set(half16(b), half16(b[2:]), true)
		c.nibbles(b[8:], 0)
		c.fifths(binary.LittleEndian.Uint32(b[4:]))
	case kernels.Q4_K:
		c.superscales(b, g)
		c.half(b[16:], g)
	case kernels.Q5_K:
		c.superscales(b, g)
		c.half(b[48:], g)
		for p, v := range b[16:48] {
			c.q[p] |= int8(v >> g & 1 << 4)
		}
	case kernels.Q6_K:
		c.affine = false
		c.mul[0] = half16(b[208:]) * float32(int8(b[192+2*g]))
		c.mul[1] = half16(b[208:]) * float32(int8(b[193+2*g]))
		low := b[g/4*64+g%2*32:]
		high := b[128+g/4*32:]
		for p := range c.q {
			c.q[p] = int8(low[p]>>(g%4/2*4)&15|high[p]>>(g%4*2)&3<<4) - 32
		}
	}
}

// nibbles reads 16 bytes whose low nibbles are the first half, less minus.
func (c *codes) nibbles(b []byte, minus int8) {
	for p, v := range b[:16] {
		c.q[p] = int8(v&15) - minus
		c.q[16+p] = int8(v>>4) - minus
	}
}

// fifths adds bit 4 of every element.
func (c *codes) fifths(bits uint32) {
	for p := range c.q {
		c.q[p] += int8(bits >> p & 1 << 4)
	}
}

// half reads the nibbles of group g: of every 64 elements, 32 bytes have the first 32 in their low ones.
func (c *codes) half(b []byte, g int) {
	for p, v := range b[g/2*32:][:32] {
		c.q[p] = int8(v >> (g % 2 * 4) & 15)
	}
}

// superscales reads the scale and the minimum of group g of a block of Q4_K or Q5_K.
func (c *codes) superscales(b []byte, g int) {
	s := b[4:16]
	scale, low := s[g%4]&63, s[4+g%4]&63
	if g >= 4 {
		scale, low = s[4+g]&15|s[g-4]>>6<<4, s[4+g]>>4|s[g]>>6<<4
	}
	c.set(half16(b)*float32(scale), -(half16(b[2:]) * float32(low)), true)
}
