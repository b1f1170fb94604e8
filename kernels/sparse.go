package kernels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Sparse is a pruned weight [rows, cols] as a bitmask and the elements that are stored, in the form of the
// sparse-bitmask and sparse-24-bitmask files of compressed-tensors: their tensors serve as they lie in the
// file. Elements that are not stored are +0. The zero Sparse means "absent". [NewSparse] makes one of memory
// that may be wrong; operations check the sizes of the parts but trust their contents.
type Sparse struct {
	Cols int
	// Mask is U8 [rows, ⌈Cols/8⌉]: bit b of byte k of a row, the lowest first, says that column 8k+b is stored.
	// Bits beyond the last column are 0.
	Mask Mat
	// Values is F32, BF16 or F16 [1, n] with the stored elements, row after row.
	Values Mat
	// Offsets is I64 [1, rows]: how many elements of Values lie before the first of a row.
	Offsets Mat
}

// Ways in which the parts of a sparse weight fail to be one; [NewSparse] wraps them.
var (
	ErrSparseType    = errors.New("sparse weight has a part of the wrong element type")
	ErrSparseSize    = errors.New("sparse weight has a part of the wrong size")
	ErrSparsePadding = errors.New("bitmask has bits beyond the last column")
	ErrSparseCount   = errors.New("bitmask does not count as many elements as are stored")
	ErrSparseOffsets = errors.New("row offsets do not agree with the bitmask")
)

// NewSparse makes a sparse weight of host memory without a copy, after a check that reads the whole mask. Without
// offsets (nil) they are counted. The memory must not change afterwards: operations trust it.
func NewSparse(rows, cols int, mask, values, offsets *Buffer) (Sparse, error) {
	if err := sparseParts(rows, cols, mask, values, offsets); err != nil {
		return Sparse{}, err
	}

	w := Sparse{Cols: cols, Mask: MatOf(mask, rows, (cols+7)/8), Values: MatOf(values, 1, values.Len)}
	var given []int64
	if offsets != nil {
		given = offsets.I64()
	} else {
		offsets = NewHost(I64, rows)
	}

	w.Offsets = MatOf(offsets, 1, rows)
	count, found := int64(0), offsets.I64()
	for i := range rows {
		row := w.Mask.RowU8(i)
		switch {
		case cols%8 != 0 && row[len(row)-1]>>(cols%8) != 0:
			return Sparse{}, fmt.Errorf("%w: row %d of %d columns ends with byte %#02x", ErrSparsePadding, i, cols,
				row[len(row)-1])
		case given == nil:
			found[i] = count
		case given[i] != count:
			return Sparse{}, fmt.Errorf("%w: offset of row %d is %d, want %d", ErrSparseOffsets, i, given[i], count)
		}

		count += int64(onesCount(row))
	}

	if count != int64(values.Len) {
		return Sparse{}, fmt.Errorf("%w: %d bits are set for %d elements", ErrSparseCount, count, values.Len)
	}

	return w, nil
}

// sparseParts checks what can be seen without reading the contents.
func sparseParts(rows, cols int, mask, values, offsets *Buffer) error {
	switch {
	case mask == nil || mask.DType != U8:
		return fmt.Errorf("%w: the bitmask is not U8", ErrSparseType)
	case values == nil || values.DType != F32 && values.DType != BF16 && values.DType != F16:
		return fmt.Errorf("%w: the elements are not F32, BF16 or F16", ErrSparseType)
	case offsets != nil && offsets.DType != I64:
		return fmt.Errorf("%w: the row offsets are not I64", ErrSparseType)
	case rows < 0 || cols < 0 || cols > maxSparseCols:
		return fmt.Errorf("%w: shape [%d, %d]", ErrSparseSize, rows, cols)
	}

	width := cols/8 + (cols%8+7)/8
	switch {
	case rows == 0 && mask.Len != 0, rows > 0 && (mask.Len%rows != 0 || mask.Len/rows != width):
		return fmt.Errorf("%w: a bitmask of %d bytes for shape [%d, %d]", ErrSparseSize, mask.Len, rows, cols)
	case cols == 0 && rows > maxEmptyRows:
		return fmt.Errorf("%w: %d rows without columns", ErrSparseSize, rows)
	case offsets != nil && offsets.Len != rows:
		return fmt.Errorf("%w: %d row offsets for %d rows", ErrSparseSize, offsets.Len, rows)
	case mask.Addr != 0 || values.Addr != 0 || offsets != nil && offsets.Addr != 0:
		return fmt.Errorf("%w: the parts are not in host memory", ErrSparseType)
	}

	return nil
}

// maxSparseCols keeps sums with a number of columns inside an int.
const maxSparseCols = 1 << 48

// maxEmptyRows bounds the offsets made for a weight whose mask takes no memory.
const maxEmptyRows = 1 << 20

// onesCount is the number of bits that are set in p.
func onesCount(p []uint8) int {
	n := 0
	for ; len(p) >= 8; p = p[8:] {
		n += bits.OnesCount64(binary.LittleEndian.Uint64(p))
	}
	for _, b := range p {
		n += bits.OnesCount8(b)
	}
	return n
}

// IsZero reports whether the weight is absent.
func (w Sparse) IsZero() bool { return w.Mask.Buf == nil }

// Rows is the number of rows, the outputs of a linear layer.
func (w Sparse) Rows() int { return w.Mask.Rows }

// DType is the element type of the stored elements.
func (w Sparse) DType() DType { return w.Values.DType() }

// RowRange views rows [lo, hi). Values stays whole, since Offsets count from its start.
func (w Sparse) RowRange(lo, hi int) Sparse {
	w.Mask, w.Offsets = w.Mask.RowRange(lo, hi), w.Offsets.ColRange(lo, hi)
	return w
}

// SizeBytes is the memory that the parts take; for a view of rows it counts all elements of the whole.
func (w Sparse) SizeBytes() int64 {
	if w.IsZero() {
		return 0
	}
	return int64(w.Mask.Len()) + int64(w.Values.Len()*w.DType().Size()) + int64(8*w.Offsets.Len())
}

// Consistent reports whether the parts have the types and shapes of one weight. It does not look at their contents.
func (w Sparse) Consistent() bool {
	if w.Mask.IsZero() || w.Values.IsZero() || w.Offsets.IsZero() || w.Cols < 0 {
		return false
	}
	t := w.DType()
	return w.Mask.DType() == U8 && w.Offsets.DType() == I64 && (t == F32 || t == BF16 || t == F16) &&
		w.Mask.Cols == (w.Cols+7)/8 && w.Values.Rows == 1 && w.Offsets.Rows == 1 && w.Offsets.Cols == w.Mask.Rows
}

// I64 is the host memory as int64. It panics when the element type is another.
func (b *Buffer) I64() []int64 { return view[int64](b, I64) }
