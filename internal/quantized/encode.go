package quantized

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
)

// encoder is the space for encoding one chunk.
type encoder struct {
	square float32 // mean square of the row's elements, where weights need it

	weights [chunk]float32 // how much the error of each element counts in a search
	q       [chunk]byte    // the integer of each element

	// Of each group: what a search finds, the sum of the weights, and what the stored scales stand for.
	scale, low, sum [chunk / minGroup]float32
	mul, sub        [chunk / minGroup]float32
	fits            [chunk / minGroup]fit // how a search rounded the elements of each

	batch batch

	levels, lows [maxGroups]byte // the integers that the scales of one block become
}

// maxGroups is how many groups with a scale of their own a block has at most.
const maxGroups = 16

// encoders keeps the space of earlier calls.
var encoders = sync.Pool{New: func() any { return new(encoder) }}

// BlockNamed finds a format of blocks by the name that it has in GGUF.
func BlockNamed(name string) (*Block, bool) {
	i := slices.IndexFunc(blocks, func(b *Block) bool { return b.Name == name })
	if i < 0 {
		return nil, false
	}
	return blocks[i], true
}

// Encodes reports whether [Block.Encode] knows the format.
func (f *Block) Encodes() bool { return f.encode != nil }

// Weighted reports whether [Block.Encode] makes use of an importance. No format needs one.
func (f *Block) Weighted() bool { return f.weighted }

// Size is how many bytes a row of so many elements takes, which must be whole blocks.
func (f *Block) Size(cols int) int { return cols / f.Elements * f.Bytes }

// Encode writes whole rows of cols elements each as blocks: the bytes that llama.cpp's quantiser writes where it is
// compiled for every x86-64 processor. importance, where it is not nil, has a weight for every column, as an imatrix
// does: how much the squared error of its elements counts; formats that are not [Block.Weighted] ignore it. dst must
// have the size of the rows. The error wraps [ErrShape], [ErrElement], [ErrRange], [ErrImportance] or
// [ErrNotEncodable] and says which element of which row is meant, from 0 on.
func (f *Block) Encode(dst []byte, src []float32, cols int, importance []float32) error {
	if f.encode == nil {
		return fmt.Errorf("%w: %s", ErrNotEncodable, f.Name)
	}
	if cols < 1 || cols%f.Elements != 0 {
		return fmt.Errorf("%w: a row of %d elements is not made of whole blocks of %d, which %s has", ErrShape, cols,
			f.Elements, f.Name)
	}
	if len(src)%cols != 0 || len(dst) != f.Size(len(src)) {
		panic("quantized: rows and their space differ in size")
	}

	if !f.weighted {
		importance = nil
	}
	if importance != nil {
		if err := checkImportance(importance, cols); err != nil {
			return err
		}
	}
	if err := f.checkElements(src, cols); err != nil {
		return err
	}

	w := encoders.Get().(*encoder)
	defer encoders.Put(w)

	size := f.Size(cols)
	for row := range len(src) / cols {
		x := src[row*cols:][:cols]
		b := dst[row*size:][:size]
		if block := f.encodeRow(b, x, importance, w); block >= 0 {
			return fmt.Errorf("%w %s: the block of row %d from column %d on", ErrRange, f.Name, row, block*f.Elements)
		}
	}

	return nil
}

// checkElements refuses rows that are not of numbers, and in formats without scales those that would become infinite.
func (f *Block) checkElements(x []float32, cols int) error {
	limit := int(math.Float32bits(f.limit))
	if limit == 0 {
		limit = 0x7f800000
	}
	n := len(x) / 16 * 16
	if largestPortable(x[n:]) < limit && (n == 0 || fastest.largest(x[:n]) < limit) {
		return nil
	}

	if i := dtype.NonFinite(x); i >= 0 {
		return fmt.Errorf("%w: row %d, column %d is %v", ErrElement, i/cols, i%cols, x[i])
	}
	i := slices.IndexFunc(x, func(v float32) bool { return abs(v) >= f.limit })
	return fmt.Errorf("%w %s: row %d, column %d is %v", ErrRange, f.Name, i/cols, i%cols, x[i])
}

// checkImportance refuses weights that are none.
func checkImportance(importance []float32, cols int) error {
	if len(importance) != cols {
		return fmt.Errorf("%w: %d weights for %d columns", ErrImportance, len(importance), cols)
	}
	for i, v := range importance {
		if !(v >= 0 && v <= math.MaxFloat32) {
			return fmt.Errorf("%w: that of column %d is %v", ErrImportance, i, v)
		}
	}
	return nil
}

// encodeRow returns the block whose scale has become infinite, -1 if there is none.
func (f *Block) encodeRow(dst []byte, x, importance []float32, w *encoder) int {
	if importance != nil && f.rowSquare {
		w.square = sumOfSquares(x) / float32(len(x))
	}

	for first := 0; first < len(x); first += chunk {
		n := min(len(x)-first, chunk)
		var part []float32
		if importance != nil {
			part = importance[first:][:n]
		}
		b := dst[f.Size(first):][:f.Size(n)]
		f.encode(b, x[first:][:n], part, w)
		if f.group == 0 { // without scales
			continue
		}

		for i := range n / f.Elements {
			if !f.finite(b[i*f.Bytes:][:f.Bytes]) || !f.found(i, w) {
				return first/f.Elements + i
			}
		}
	}

	return -1
}

// found reports whether the search for block i of a chunk came to numbers. It does not where squares overflow.
func (f *Block) found(i int, w *encoder) bool {
	if !f.weighted {
		return true
	}
	groups := f.Elements / f.group
	return dtype.NonFinite(w.scale[i*groups:][:groups]) < 0
}

// sumOfSquares adds in order, as the reference does.
func sumOfSquares(x []float32) (sum float32) {
	for _, v := range x {
		sum += float32(v * v)
	}
	return sum
}

func sqrt(v float32) float32 { return float32(math.Sqrt(float64(v))) }

func abs(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

// nearest rounds to the nearest integer, with ties to the even one: of numbers below 2²² by adding 1.5·2²³, after which
// there are no bits below 1. Of greater ones and NaNs it gives what the reference gets in this way.
func nearest(v float32) int32 {
	const shift = 3 << 22
	return int32(math.Float32bits(float32(v)+shift)&0x7fffff) - 0x400000
}

// trunc is the integer part, and -2³¹ for what has none within 32 bits, as x86 converts.
func trunc(v float32) int32 {
	if v > -0x1p31 && v < 0x1p31 {
		return int32(v)
	}
	return math.MinInt32
}

// reciprocal is 1/d, and 0 for 0.
func reciprocal(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// putHalf writes a float16, rounded to nearest with ties to even.
func putHalf(b []byte, v float32) { binary.LittleEndian.PutUint16(b, kernels.ToF16(v)) }

// extreme returns the first of the elements of the largest magnitude, 0 if all are 0.
func extreme(x []float32) (v, magnitude float32) {
	for _, e := range x {
		if a := abs(e); a > magnitude {
			magnitude = a
			v = e
		}
	}
	return v, magnitude
}

// bounds returns the smallest and the largest element.
func bounds(x []float32) (low, high float32) {
	low = x[0]
	high = x[0]
	for _, v := range x[1:] {
		if v < low {
			low = v
		}
		if v > high {
			high = v
		}
	}
	return low, high
}
