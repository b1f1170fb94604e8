package quantized

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/modelcompress/compress/safetensors"
)

// Block is a format whose rows are sequences of blocks. An element is mul·q - sub, with a small integer q, and mul and
// sub of the group of elements that it is in.
type Block struct {
	Name     string
	Elements int // of a block
	Bytes    int // of a block

	group  int   // elements that share mul and sub: 16 or 32; 0 for formats that widen
	offset bool  // whether there is a sub; without, an element is mul·q, which keeps the sign of a zero
	halves []int // where in a block the float16 scales are, which must be finite

	// unpack takes a block apart: Elements bytes of q, as int8, and a mul and sub for every group.
	unpack func(b []byte, q []byte, mul, sub []float32)
	// translate, where there is one, replaces q by its entry.
	translate *[16]int8
	// bad reports whether a scale that is no float16 stands for no number.
	bad func(b []byte) bool
	// widen decodes formats without groups.
	widen func(dst []float32, src []byte)

	// encode writes at most a chunk of elements as blocks; nil for formats that are only read. importance is nil or has
	// a weight for each element.
	encode func(dst []byte, x, importance []float32, w *encoder)
	// weighted is whether encode makes use of an importance, and rowSquare whether it needs the mean square of the row
	// then.
	weighted, rowSquare bool
	// limit is the least magnitude that would become infinite, in formats without scales.
	limit float32
}

// chunk is how many elements are taken apart at a time: few enough to stay in the first-level cache with their results.
const chunk = 2048

// minGroup is the smallest group of elements with a scale of its own.
const minGroup = 16

// work is the space for one chunk.
type work struct {
	q        [chunk]byte
	mul, sub [chunk / minGroup]float32
}

// works keeps the space of earlier calls; what functions of a table are given escapes from the stack.
var works = sync.Pool{New: func() any { return new(work) }}

// Blocks is the matrix of rows of blocks of one of GGUF's types, by its name there: for code that takes weights of
// every format. rows and cols must fit data.
func Blocks(format, name string, rows, cols int, data []byte) (*Matrix, error) {
	b, ok := BlockNamed(format)
	if !ok {
		return nil, fmt.Errorf("tensor %q: %w: %s", name, ErrNotDecodable, format)
	}

	size := cols / b.Elements * b.Bytes
	if rows < 0 || cols < 1 || cols%b.Elements != 0 || len(data)%size != 0 || len(data)/size != rows {
		return nil, fmt.Errorf("tensor %q: %w: %d bytes of %s for %d×%d elements", name, ErrShape, len(data), format,
			rows, cols)
	}

	m := &Matrix{Name: name, Format: format, Rows: rows, Cols: cols, Stack: 1, Band: 1, DType: b.dtype()}
	m.decode = func(dst []float32, first, n int) error { return b.Decode(dst, data[first*size:][:n*size]) }
	return m, nil
}

// dtype is the type whose numbers the values are.
func (f *Block) dtype() safetensors.DType {
	switch f {
	case &F16:
		return safetensors.F16
	case &BF16:
		return safetensors.BF16
	}
	return safetensors.F32
}

// blocks is the table.
var blocks = []*Block{
	&F32, &F16, &BF16, &Q4_0, &Q4_1, &Q5_0, &Q5_1, &Q8_0, &Q2_K, &Q3_K, &Q4_K, &Q5_K, &Q6_K, &IQ4_NL, &IQ4_XS, &MXFP4,
	&NVFP4,
}

// Decode writes the elements of whole blocks to dst, which has exactly as many. The error wraps [ErrNotFinite].
func (f *Block) Decode(dst []float32, src []byte) error {
	if len(dst)/f.Elements*f.Bytes != len(src) || len(dst)%f.Elements != 0 {
		panic("quantized: blocks and elements differ in number")
	}

	if f.widen != nil {
		f.widen(dst, src)
		return nil
	}

	return f.each(src, len(dst), func(w *work, first, n int) {
		if f.offset {
			fastest.affine(dst[first:][:n], w.q[:n], w.mul[:], w.sub[:], f.group)
		} else {
			fastest.scale(dst[first:][:n], w.q[:n], w.mul[:], f.group)
		}
	})
}

// Narrow reports whether [Block.DecodeBF16] knows the format: one of groups that share scales.
func (f *Block) Narrow() bool { return f.widen == nil }

// DecodeBF16 is [Block.Decode] with the elements rounded to bfloat16, of two bytes each: nearest with ties to even, as
// kernels.ToBF16 does it.
func (f *Block) DecodeBF16(dst []byte, src []byte) error {
	if n := len(dst) / 2; n/f.Elements*f.Bytes != len(src) || n%f.Elements != 0 || !f.Narrow() {
		panic("quantized: blocks and elements differ in number")
	}

	return f.each(src, len(dst)/2, func(w *work, first, n int) {
		if f.offset {
			fastest.affineBF16(dst[2*first:][:2*n], w.q[:n], w.mul[:], w.sub[:], f.group)
		} else {
			fastest.scaleBF16(dst[2*first:][:2*n], w.q[:n], w.mul[:], f.group)
		}
	})
}

// each takes whole blocks apart, a chunk at a time, and passes each chunk on.
func (f *Block) each(src []byte, elements int, use func(w *work, first, n int)) error {
	w := works.Get().(*work)
	defer works.Put(w)

	for first := 0; first < elements; first += chunk {
		n := min(elements-first, chunk)
		size := n / f.Elements * f.Bytes
		if block := f.takeApart(src[:size], n, w); block >= 0 {
			return fmt.Errorf("%w: the block of %s from element %d on", ErrNotFinite, f.Name, first+block*f.Elements)
		}
		use(w, first, n)
		src = src[size:]
	}

	return nil
}

// takeApart returns the block that has a scale which is no number, -1 if there is none.
func (f *Block) takeApart(src []byte, elements int, w *work) int {
	groups := f.Elements / f.group
	for i := range elements / f.Elements {
		b := src[i*f.Bytes:][:f.Bytes]
		if !f.finite(b) {
			return i
		}
		f.unpack(b, w.q[i*f.Elements:][:f.Elements], w.mul[i*groups:][:groups], w.sub[i*groups:][:groups])
	}

	if f.translate != nil {
		fastest.translate(w.q[:elements], f.translate)
	}
	return -1
}

// finite reports whether the scales of a block are numbers. Those of groups within it are integers.
func (f *Block) finite(b []byte) bool {
	for _, at := range f.halves {
		if binary.LittleEndian.Uint16(b[at:])&0x7c00 == 0x7c00 {
			return false
		}
	}
	return f.bad == nil || !f.bad(b)
}

// half reads a float16 that is finite. The product is exact: it moves the exponent, whose bias is 15 and not 127, and
// makes normal numbers of those that were below.
func half(b []byte) float32 {
	h := uint32(binary.LittleEndian.Uint16(b))
	v := math.Float32frombits(h&0x7fff<<13) * 0x1p112
	return math.Float32frombits(math.Float32bits(v) | h&0x8000<<16)
}

// Bytes are handled eight at a time; each is called ones where all eight are 1.
const (
	ones  = 0x0101010101010101
	low4  = 0x0f * ones
	low2  = 0x03 * ones
	signs = 0x80 * ones
)

// load and store move eight bytes.
func load(b []byte) uint64     { return binary.LittleEndian.Uint64(b) }
func store(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }

// minus subtracts n, at most 127, from eight bytes that are less than 128, to int8: the borrow of no byte reaches the
// next one, since the sign bit is set for the subtraction.
func minus(v uint64, n byte) uint64 { return ((v | signs) - uint64(n)*ones) ^ signs }

// nibbles writes the low halves of 16 bytes and then the high ones.
func nibbles(q, b []byte) {
	to := (*[32]byte)(q)
	from := (*[16]byte)(b)
	x := load(from[:])
	y := load(from[8:])
	store(to[:], x&low4)
	store(to[8:], y&low4)
	store(to[16:], x>>4&low4)
	store(to[24:], y>>4&low4)
}

// spread makes eight bytes of eight bits, 0 or 1 each, the lowest bit first.
func spread(bits byte) uint64 {
	// The multiplication puts a copy of the bits into every byte, of which the mask keeps bit i in byte i; adding
	// 0x7f then carries into the sign bit where it is set.
	v := uint64(bits) * ones & 0x8040201008040201
	return (v + (0x7f * ones)) >> 7 & ones
}
