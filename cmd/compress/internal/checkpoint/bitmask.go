package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/modelcompress/compress/safetensors"
)

// The sparse-bitmask form of compressed-tensors keeps, instead of <module>.weight, the non-zero values row by row
// (.compressed), one bit for every element (.bitmask, bit b of byte k is column 8k+b, 1 is non-zero), the place of
// each row's first value (.row_offsets) and the shape (.shape). Zeros of either sign are left out; NaN is kept.
const (
	partShape      = ".shape"
	partValues     = ".compressed"
	partBitmask    = ".bitmask"
	partRowOffsets = ".row_offsets"
	sparseBitmask  = "sparse-bitmask"
)

// packer packs the rows of one matrix.
type packer struct {
	size, cols int // bytes of an element, elements of a row
	values     []byte
	mask       []byte
	offsets    []byte
	total      int64 // non-zero values so far
	off24      bool  // a group of four columns had more than two
}

// pack appends the rows in p to values, mask and offsets.
func (k *packer) pack(p []byte) {
	width := k.cols * k.size
	for ; len(p) > 0; p = p[width:] {
		k.offsets = binary.LittleEndian.AppendUint64(k.offsets, uint64(k.total))
		first := len(k.mask)
		k.mark(p[:width])
		k.keep(p[:width], k.mask[first:])
	}
}

// mark appends the mask of a row and counts its values.
func (k *packer) mark(row []byte) {
	for len(row) > 0 {
		n := min(len(row), 8*k.size)
		m := k.bits(row[:n])
		k.mask = append(k.mask, m)
		k.total += int64(bits.OnesCount8(m))
		k.off24 = k.off24 || bits.OnesCount8(m&15) > 2 || bits.OnesCount8(m>>4) > 2
		row = row[n:]
	}
}

// bits is the mask of up to eight elements.
func (k *packer) bits(p []byte) (m byte) {
	if k.size == 2 && len(p) == 16 {
		for h, w := range [2]uint64{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])} {
			// The top bit of every 16-bit lane becomes 1 where the lane, without its sign, is not zero; a
			// multiplication gathers the four bits.
			w &= 0x7fff_7fff_7fff_7fff
			w = (w + 0x7fff_7fff_7fff_7fff) & 0x8000_8000_8000_8000 >> 15
			m |= byte(w*0x0001_0002_0004_0008>>48&15) << (4 * h)
		}
		return m
	}
	for b := 0; b*k.size < len(p); b++ {
		if !isZero(p[b*k.size:][:k.size]) {
			m |= 1 << b
		}
	}
	return m
}

// keep appends the values of a row that its mask names.
func (k *packer) keep(row, mask []byte) {
	for i, m := range mask {
		for ; m != 0; m &= m - 1 {
			at := (8*i + bits.TrailingZeros8(m)) * k.size
			k.values = append(k.values, row[at:at+k.size]...)
		}
	}
}

// isZero tells whether a little-endian float is zero, of either sign.
func isZero(v []byte) bool {
	last := len(v) - 1
	for _, b := range v[:last] {
		if b != 0 {
			return false
		}
	}
	return v[last]&0x7f == 0
}

// packedSize is the bytes of the four tensors of a packed matrix.
func packedSize(rows, cols, nonZero int64, size int) int64 {
	return 16 + nonZero*int64(size) + rows*((cols+7)/8) + rows*8
}

// packed is a matrix in packed form in a source.
type packed struct {
	module     string
	dtype      safetensors.DType
	rows, cols int64
	nonZero    int64
}

// findPacked lists the packed matrices of a source by module, and checks that their parts fit together.
func findPacked(src *safetensors.Dir) ([]packed, error) {
	var out []packed
	for _, name := range src.Names() {
		module, ok := strings.CutSuffix(name, partBitmask)
		if !ok {
			continue
		}
		p, err := readPacked(src, module)
		if err != nil {
			return nil, fmt.Errorf("%s: tensor %q: %w", src.Path(), name, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// packedParts finds the packed matrix that a tensor is a part of.
func packedParts(src *safetensors.Dir) (map[string]*packed, error) {
	list, err := findPacked(src)
	if err != nil {
		return nil, err
	}
	parts := map[string]*packed{}
	for i, p := range list {
		for _, part := range []string{partShape, partValues, partBitmask, partRowOffsets} {
			parts[p.module+part] = &list[i]
		}
	}
	return parts, nil
}

func readPacked(src *safetensors.Dir, module string) (packed, error) {
	p := packed{module: module}
	shape, values := [16]byte{}, safetensors.Info{}
	for part, want := range map[string]safetensors.DType{partShape: safetensors.I64, partBitmask: safetensors.U8, partRowOffsets: safetensors.I64, partValues: 0} {
		info, ok := src.Info(module + part)
		if !ok || want != 0 && info.DType != want {
			return p, fmt.Errorf("the packed matrix lacks a %s tensor %q", want, module+part)
		}
		if part == partValues {
			values = info
		}
	}
	if n, err := src.ReadAt(module+partShape, shape[:], 0); n < len(shape) {
		return p, fmt.Errorf("%q does not hold two numbers: %v", module+partShape, err)
	}
	p.rows, p.cols = int64(binary.LittleEndian.Uint64(shape[:])), int64(binary.LittleEndian.Uint64(shape[8:]))
	p.dtype, p.nonZero = values.DType, product(values.Shape)
	mask, _ := src.Info(module + partBitmask)
	const most = 1 << 40
	if p.rows <= 0 || p.cols <= 0 || p.rows > most || p.cols > most || !slices.Equal(mask.Shape, []int64{p.rows, (p.cols + 7) / 8}) {
		return p, fmt.Errorf("the bitmask %v does not fit the shape [%d, %d]", mask.Shape, p.rows, p.cols)
	}
	if p.dtype.Bits()%8 != 0 {
		return p, fmt.Errorf("packed %s is not supported", p.dtype)
	}
	return p, nil
}

// unpackRow writes one row: the values of the set bits, zero elsewhere. It returns the values that are left; ok is false
// when there are too few, or a bit beyond the last column is set.
func unpackRow(dst, mask, values []byte, cols, size int) (rest []byte, ok bool) {
	clear(dst)
	for k, m := range mask {
		for ; m != 0; m &= m - 1 {
			c := 8*k + bits.TrailingZeros8(m)
			if c >= cols || len(values) < size {
				return values, false
			}
			copy(dst[c*size:], values[:size])
			values = values[size:]
		}
	}
	return values, true
}
