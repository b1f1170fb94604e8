package kernels

import (
	"errors"
	"fmt"
)

// QuantFormat names how the codes of a [Quantised] weight lie in its bytes, and what number each stands for.
type QuantFormat uint8

// The formats. Those that begin with Q are the blocks of a GGUF file as they lie there, with their scales inside: d and
// m are F16 numbers of the block, sc and mc small integers of a group of its elements.
const (
	// Q8_0 has 32 elements in 34 bytes: d·q of signed bytes.
	Q8_0 QuantFormat = iota + 1
	// Q4_0 has 32 elements in 18 bytes: d·(q - 8).
	Q4_0
	// Q4_1 has 32 elements in 20 bytes: d·q + m.
	Q4_1
	// Q5_0 has 32 elements in 22 bytes: d·(q - 16).
	Q5_0
	// Q5_1 has 32 elements in 24 bytes: d·q + m.
	Q5_1
	// Q4_K has 256 elements in 144 bytes: (d·sc)·q - m·mc, with sc and mc of 32 elements.
	Q4_K
	// Q5_K has 256 elements in 176 bytes: (d·sc)·q - m·mc, with sc and mc of 32 elements.
	Q5_K
	// Q6_K has 256 elements in 210 bytes: (d·sc)·(q - 32), with sc of 16 elements.
	Q6_K
	// Int4 has two codes from 0 to 15 in a byte, the lower four bits first: scale·(q - zero), zero 8 where there are
	// no Zeros.
	Int4
	// Int8 has signed bytes: scale·(q - zero), zero 0 where there are no Zeros. Zeros of element type U8 are signed
	// bytes too.
	Int8
)

// quantBlocks are the names of the formats, and how many elements lie in how many bytes.
var quantBlocks = [...]struct {
	name            string
	elements, bytes int
}{
	Q8_0: {"Q8_0", 32, 34}, Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q5_0: {"Q5_0", 32, 22},
	Q5_1: {"Q5_1", 32, 24}, Q4_K: {"Q4_K", 256, 144}, Q5_K: {"Q5_K", 256, 176}, Q6_K: {"Q6_K", 256, 210},
	Int4: {"Int4", 2, 1}, Int8: {"Int8", 1, 1},
}

// QuantFormats lists the formats.
func QuantFormats() []QuantFormat {
	return []QuantFormat{Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Int4, Int8}
}

// valid reports whether f is one of the formats.
func (f QuantFormat) valid() bool { return f > 0 && int(f) < len(quantBlocks) }

// String gives the name, for GGUF's formats that of the file.
func (f QuantFormat) String() string {
	if !f.valid() {
		return "invalid"
	}
	return quantBlocks[f].name
}

// Block is how many elements lie in how many bytes.
func (f QuantFormat) Block() (elements, bytes int) {
	b := quantBlocks[f]
	return b.elements, b.bytes
}

// Grouped reports whether the scales lie in a matrix of their own, not in the blocks.
func (f QuantFormat) Grouped() bool { return f == Int4 || f == Int8 }

// RowBytes is the size of a row of so many columns. Int4 rows of odd length end with an unused half byte.
func (f QuantFormat) RowBytes(cols int) int {
	b := quantBlocks[f]
	return (cols + b.elements - 1) / b.elements * b.bytes
}

// Quantised is a weight [rows, Cols] in few bits. The zero Quantised means "absent". [NewQuantised] makes one of memory
// that may be wrong; operations check the sizes of the parts but trust their contents: a scale that is not finite makes
// what is computed with it not finite.
//
// The value of an element is that of its format in F32, with every operation rounded as it is written; [Ops].
// ExpandQuantised gives it. Products do as if they computed with these values, see [Ops].MatMulQuantised.
type Quantised struct {
	Format QuantFormat
	Cols   int
	// Data is U8 [rows, Format.RowBytes(Cols)].
	Data Mat
	// Scales is F32 [rows, groups]: one for Group columns each, the last of which may be fewer. Absent for formats
	// whose blocks carry their own.
	Scales Mat
	// Zeros, U8 or F32 [rows, groups], is what is subtracted from codes; absent for symmetric weights and for formats
	// whose blocks carry their own.
	Zeros Mat
	// Group is how many columns share a scale; 0, for formats whose blocks carry their own, otherwise at least 1.
	Group int
}

// Ways in which the parts of a quantised weight fail to be one; [NewQuantised] wraps them.
var (
	ErrQuantFormat = errors.New("quantised weight has a format that is not known")
	ErrQuantType   = errors.New("quantised weight has a part of the wrong element type")
	ErrQuantSize   = errors.New("quantised weight has a part of the wrong size")
)

// NewQuantised makes a quantised weight of host memory without a copy, after a check of types and sizes. Formats whose
// blocks carry their scales take neither scales nor zeros (nil) and the group 0; for the others a group of 0 means the
// whole row, and zeros may be nil.
func NewQuantised(f QuantFormat, rows, cols, group int, data, scales, zeros *Buffer) (Quantised, error) {
	switch {
	case !f.valid():
		return Quantised{}, fmt.Errorf("%w: number %d", ErrQuantFormat, f)
	case data == nil || data.DType != U8:
		return Quantised{}, fmt.Errorf("%w: the codes are not U8", ErrQuantType)
	case rows < 0 || cols < 0 || group < 0 || cols > maxSparseCols:
		return Quantised{}, fmt.Errorf("%w: shape [%d, %d] in groups of %d", ErrQuantSize, rows, cols, group)
	case cols == 0 && rows > maxEmptyRows:
		return Quantised{}, fmt.Errorf("%w: %d rows without columns", ErrQuantSize, rows)
	}

	elements, _ := f.Block()
	width := f.RowBytes(cols)
	if !f.Grouped() && cols%elements != 0 {
		return Quantised{}, fmt.Errorf("%w: %d columns are not whole blocks of %d", ErrQuantSize, cols, elements)
	}

	if !holds(data.Len, rows, width) {
		return Quantised{}, fmt.Errorf("%w: %d bytes of %s for shape [%d, %d]", ErrQuantSize, data.Len, f, rows, cols)
	}

	w := Quantised{Format: f, Cols: cols, Data: MatOf(data, rows, width)}
	if err := w.addGroups(group, scales, zeros); err != nil {
		return Quantised{}, err
	}

	for _, b := range []*Buffer{data, scales, zeros} {
		if b != nil && b.Addr != 0 {
			return Quantised{}, fmt.Errorf("%w: the parts are not in host memory", ErrQuantType)
		}
	}

	return w, nil
}

// addGroups adds the parts that lie beside the codes.
func (w *Quantised) addGroups(group int, scales, zeros *Buffer) error {
	if !w.Format.Grouped() {
		if scales != nil || zeros != nil || group != 0 {
			return fmt.Errorf("%w: blocks of %s carry their scales", ErrQuantSize, w.Format)
		}
		return nil
	}

	w.Group = group
	if group == 0 {
		w.Group = max(w.Cols, 1)
	}

	switch groups := w.Groups(); {
	case scales == nil || scales.DType != F32:
		return fmt.Errorf("%w: the scales are not F32", ErrQuantType)
	case zeros != nil && zeros.DType != U8 && zeros.DType != F32:
		return fmt.Errorf("%w: the zeros are not U8 or F32", ErrQuantType)
	case !holds(scales.Len, w.Data.Rows, groups):
		return fmt.Errorf("%w: %d scales for %d rows of %d groups", ErrQuantSize, scales.Len, w.Data.Rows, groups)
	case zeros != nil && zeros.Len != scales.Len:
		return fmt.Errorf("%w: %d zeros for %d scales", ErrQuantSize, zeros.Len, scales.Len)
	default:
		w.Scales = MatOf(scales, w.Data.Rows, groups)
		if zeros != nil {
			w.Zeros = MatOf(zeros, w.Data.Rows, groups)
		}
	}

	return nil
}

// holds reports whether n is rows·width, which may be beyond an int.
func holds(n, rows, width int) bool {
	if rows == 0 || width == 0 {
		return n == 0
	}
	return n%rows == 0 && n/rows == width
}

// IsZero reports whether the weight is absent.
func (w Quantised) IsZero() bool { return w.Data.Buf == nil }

// Rows is the number of rows, the outputs of a linear layer.
func (w Quantised) Rows() int { return w.Data.Rows }

// Groups is the number of scales of a row; 0 where blocks carry their own.
func (w Quantised) Groups() int {
	if w.Group < 1 {
		return 0
	}
	return (w.Cols + w.Group - 1) / w.Group
}

// RowRange views rows [lo, hi).
func (w Quantised) RowRange(lo, hi int) Quantised {
	w.Data = w.Data.RowRange(lo, hi)
	if !w.Scales.IsZero() {
		w.Scales = w.Scales.RowRange(lo, hi)
	}
	if !w.Zeros.IsZero() {
		w.Zeros = w.Zeros.RowRange(lo, hi)
	}
	return w
}

// SizeBytes is the memory that the parts take.
func (w Quantised) SizeBytes() int64 {
	total := int64(0)
	for _, m := range []Mat{w.Data, w.Scales, w.Zeros} {
		if !m.IsZero() {
			total += int64(m.Len() * m.DType().Size())
		}
	}
	return total
}

// Consistent reports whether the parts have the types and shapes of one weight. It does not look at their contents.
func (w Quantised) Consistent() bool {
	if !w.Format.valid() || w.Data.IsZero() || w.Cols < 0 || w.Data.DType() != U8 ||
		w.Data.Cols != w.Format.RowBytes(w.Cols) {
		return false
	}

	if !w.Format.Grouped() {
		elements, _ := w.Format.Block()
		return w.Cols%elements == 0 && w.Group == 0 && w.Scales.IsZero() && w.Zeros.IsZero()
	}

	beside := func(m Mat) bool { return m.Rows == w.Data.Rows && m.Cols == w.Groups() }
	if w.Group < 1 || w.Scales.IsZero() || w.Scales.DType() != F32 || !beside(w.Scales) {
		return false
	}

	return w.Zeros.IsZero() || (w.Zeros.DType() == U8 || w.Zeros.DType() == F32) && beside(w.Zeros)
}
