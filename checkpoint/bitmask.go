package checkpoint

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/weights"
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

// isZero reports whether a little-endian float is zero, of either sign.
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
	offsets    bool // the file has row offsets
}

// findPacked lists the packed matrices of a source by module, and checks that their parts fit together.
func findPacked(src *weights.Source) ([]packed, error) {
	var out []packed
	seen := map[string]bool{}
	for _, name := range src.Names() {
		for _, part := range []string{partBitmask, partValues, partRowOffsets} { // a name may end in shape by chance
			module, ok := strings.CutSuffix(name, part)
			if !ok || seen[module] {
				continue
			}

			p, err := readPacked(src, module)
			if err != nil {
				return nil, p.fault(src, part, "%w", err)
			}

			seen[module] = true
			out = append(out, p)
		}
	}

	return out, nil
}

// packedParts finds the packed matrix that a tensor is a part of.
func packedParts(src *weights.Source) (map[string]*packed, error) {
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

// readPacked compares what the headers say about the parts of a packed matrix. The row offsets may be absent, since the
// bitmask determines them and readers of the format ignore them.
func readPacked(src *weights.Source, module string) (packed, error) {
	p := packed{module: module}
	info := map[string]safetensors.Info{}
	for _, part := range []string{partShape, partBitmask, partValues, partRowOffsets} {
		found, ok := src.Info(module + part)
		if !ok && part != partRowOffsets {
			return p, fmt.Errorf("the packed matrix lacks its tensor %q", module+part)
		}
		info[part], p.offsets = found, ok
	}

	var shape [16]byte
	if s := info[partShape]; s.DType != safetensors.I64 || s.Size != int64(len(shape)) {
		return p, fmt.Errorf("%q is %s %v, which does not hold two I64", module+partShape, s.DType, s.Shape)
	}
	if n, err := src.ReadAt(module+partShape, shape[:], 0); n < len(shape) {
		return p, fmt.Errorf("%q: %w", module+partShape, err)
	}

	values := info[partValues]
	mask := info[partBitmask]
	offsets := info[partRowOffsets]

	p.rows, p.cols = int64(binary.LittleEndian.Uint64(shape[:])), int64(binary.LittleEndian.Uint64(shape[8:]))
	p.dtype = values.DType
	const most = 1 << 40
	switch {
	case p.rows <= 0 || p.cols <= 0 || p.rows > most || p.cols > most || mask.DType != safetensors.U8 ||
		!slices.Equal(mask.Shape, []int64{p.rows, (p.cols + 7) / 8}):
		return p, fmt.Errorf("%s %v is not the bitmask of a matrix [%d, %d]", mask.DType, mask.Shape, p.rows, p.cols)
	case len(values.Shape) != 1:
		return p, fmt.Errorf("%q has %d dimensions, not one", module+partValues, len(values.Shape))
	case p.dtype.Bits()%8 != 0:
		return p, fmt.Errorf("packed %s is not supported", p.dtype)
	case p.offsets && (offsets.DType != safetensors.I64 || !slices.Equal(offsets.Shape, []int64{p.rows})):
		return p, fmt.Errorf("%q is %s %v, not I64 [%d]", module+partRowOffsets, offsets.DType, offsets.Shape, p.rows)
	}

	p.nonZero = values.Shape[0]
	return p, nil
}

// check reads the bitmask of a packed matrix, and its row offsets if it has them, and reports whether they name
// its values.
func (p *packed) check(ctx context.Context, src *weights.Source) error {
	width := (p.cols + 7) / 8
	rows := max(1, pieceBytes/(width+8))
	mask, offsets := make([]byte, min(rows, p.rows)*width), make([]byte, 8*min(rows, p.rows))
	total := int64(0)
	for row := int64(0); row < p.rows; row += rows {
		if err := ctx.Err(); err != nil {
			return err
		}

		n := min(rows, p.rows-row)
		if _, err := src.ReadAt(p.module+partBitmask, mask[:n*width], row*width); err != nil {
			return err
		}

		if p.offsets {
			if _, err := src.ReadAt(p.module+partRowOffsets, offsets[:8*n], 8*row); err != nil {
				return err
			}
		}

		for i := range n {
			if at := int64(binary.LittleEndian.Uint64(offsets[8*i:])); p.offsets && at != total {
				return p.fault(src, partRowOffsets, "row %d begins at value %d, but the bitmask has %d before it",
					row+i, at, total)
			}

			line := mask[i*width:][:width]
			if used := p.cols - 8*(width-1); line[width-1]>>used != 0 {
				return p.fault(src, partBitmask, "row %d has a bit beyond its %d columns", row+i, p.cols)
			}
			for _, m := range line {
				total += int64(bits.OnesCount8(m))
			}
		}
	}

	if total != p.nonZero {
		return p.fault(src, partBitmask, "it names %d values, and there are %d", total, p.nonZero)
	}

	return nil
}

// fault names file and tensor of a part that does not fit.
func (p *packed) fault(src *weights.Source, part, format string, args ...any) error {
	name := p.module + part
	return fmt.Errorf("%s: tensor %q: %w", src.File(name), name,
		fmt.Errorf(format, args...))
}

// unpackRow writes one row: the values of the set bits, zero elsewhere. It returns the values that are left; ok
// is false when there are too few, or a bit beyond the last column is set.
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
