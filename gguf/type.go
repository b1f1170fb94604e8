package gguf

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/modelcompress/compress/internal/quantized"
)

// Type is the type of a tensor: its number in files. A row of a tensor is divided into blocks of so many elements and
// bytes; the plain types have blocks of one element.
type Type uint32

// The types of the format.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q8_1    Type = 9
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
	Q1_0    Type = 41

	numTypes = 42
)

// layout is a row of the table of types. Those without a name are numbers that the format has given up.
type layout struct {
	name            string
	elements, bytes int64 // of a block
	decoder         *quantized.Block
}

var types = [numTypes]layout{
	F32:     {"F32", 1, 4, &quantized.F32},
	F16:     {"F16", 1, 2, &quantized.F16},
	Q4_0:    {"Q4_0", 32, 18, &quantized.Q4_0},
	Q4_1:    {"Q4_1", 32, 20, &quantized.Q4_1},
	Q5_0:    {"Q5_0", 32, 22, &quantized.Q5_0},
	Q5_1:    {"Q5_1", 32, 24, &quantized.Q5_1},
	Q8_0:    {"Q8_0", 32, 34, &quantized.Q8_0},
	Q8_1:    {"Q8_1", 32, 40, nil},
	Q2_K:    {"Q2_K", 256, 84, &quantized.Q2_K},
	Q3_K:    {"Q3_K", 256, 110, &quantized.Q3_K},
	Q4_K:    {"Q4_K", 256, 144, &quantized.Q4_K},
	Q5_K:    {"Q5_K", 256, 176, &quantized.Q5_K},
	Q6_K:    {"Q6_K", 256, 210, &quantized.Q6_K},
	Q8_K:    {"Q8_K", 256, 292, nil},
	IQ2_XXS: {"IQ2_XXS", 256, 66, nil},
	IQ2_XS:  {"IQ2_XS", 256, 74, nil},
	IQ3_XXS: {"IQ3_XXS", 256, 98, nil},
	IQ1_S:   {"IQ1_S", 256, 50, nil},
	IQ4_NL:  {"IQ4_NL", 32, 18, &quantized.IQ4_NL},
	IQ3_S:   {"IQ3_S", 256, 110, nil},
	IQ2_S:   {"IQ2_S", 256, 82, nil},
	IQ4_XS:  {"IQ4_XS", 256, 136, &quantized.IQ4_XS},
	I8:      {"I8", 1, 1, nil},
	I16:     {"I16", 1, 2, nil},
	I32:     {"I32", 1, 4, nil},
	I64:     {"I64", 1, 8, nil},
	F64:     {"F64", 1, 8, nil},
	IQ1_M:   {"IQ1_M", 256, 56, nil},
	BF16:    {"BF16", 1, 2, &quantized.BF16},
	TQ1_0:   {"TQ1_0", 256, 54, nil},
	TQ2_0:   {"TQ2_0", 256, 66, nil},
	MXFP4:   {"MXFP4", 32, 17, &quantized.MXFP4},
	NVFP4:   {"NVFP4", 64, 36, &quantized.NVFP4},
	Q1_0:    {"Q1_0", 128, 18, nil},
}

// Valid reports whether t is one of the format's types.
func (t Type) Valid() bool { return t < numTypes && types[t].name != "" }

// String gives the format's name, such as "Q4_K".
func (t Type) String() string {
	if !t.Valid() {
		return fmt.Sprintf("Type(%d)", uint32(t))
	}
	return types[t].name
}

// ParseType reads a name as String gives it. For any other name the error wraps [ErrUnknownType] and lists the known
// ones.
func ParseType(name string) (Type, error) {
	for t := range Type(numTypes) {
		if t.Valid() && types[t].name == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("%w %q (known: %s)", ErrUnknownType, clip(name), strings.Join(typeNames(Type.Valid), ", "))
}

// typeNames lists the types of which something holds.
func typeNames(keep func(Type) bool) (names []string) {
	for t := range Type(numTypes) {
		if keep(t) {
			names = append(names, t.String())
		}
	}
	return names
}

// Block gives the elements and the bytes of a block; 0 and 0 for an invalid type.
func (t Type) Block() (elements, bytes int64) {
	if !t.Valid() {
		return 0, 0
	}
	return types[t].elements, types[t].bytes
}

// Quantized reports whether the elements of a block share scales.
func (t Type) Quantized() bool { return t.Valid() && types[t].elements > 1 }

// Decodable reports whether [Type.Decode] knows the type.
func (t Type) Decodable() bool { return t.Valid() && types[t].decoder != nil }

// Decode writes the elements of whole blocks to dst, which has exactly as many: the values of gguf-py's dequantize,
// bit for bit. src may lie in a mapped file; call it within View then. The error wraps [ErrNotDecodable],
// [ErrNotFinite] if a scale is a NaN or an infinity, or [ErrSizeMismatch].
func (t Type) Decode(dst []float32, src []byte) error {
	if !t.Decodable() {
		return fmt.Errorf("%w: %s (known: %s)", ErrNotDecodable, t,
			strings.Join(typeNames(Type.Decodable), ", "))
	}

	elements, size := t.Block()
	if n := int64(len(dst)); n%elements != 0 || n/elements*size != int64(len(src)) {
		return fmt.Errorf("%w: %d bytes of %s are not %d elements", ErrSizeMismatch, len(src), t, n)
	}

	return types[t].decoder.Decode(dst, src)
}

// Narrow reports whether [Type.DecodeBF16] knows the type: all that are quantised and can be decoded.
func (t Type) Narrow() bool { return t.Decodable() && types[t].decoder.Narrow() }

// DecodeBF16 is [Type.Decode] with the elements rounded to bfloat16, nearest with ties to even, of two bytes each,
// little-endian. For types that are not [Type.Narrow] the error wraps [ErrNotDecodable].
func (t Type) DecodeBF16(dst, src []byte) error {
	if !t.Narrow() {
		return fmt.Errorf("%w: %s to BF16", ErrNotDecodable, t)
	}

	elements, size := t.Block()
	if n := int64(len(dst)) / 2; n%elements != 0 || n/elements*size != int64(len(src)) {
		return fmt.Errorf("%w: %d bytes of %s are not %d elements", ErrSizeMismatch, len(src), t, n)
	}

	return types[t].decoder.DecodeBF16(dst, src)
}

// ByteSize gives the bytes that a tensor of this type and shape takes, shape being outermost first. The errors wrap
// [ErrUnknownType], [ErrShapeOverflow] (a negative dimension, or a product over 2^63-1) or [ErrRowSize].
func (t Type) ByteSize(shape []int64) (int64, error) {
	if !t.Valid() {
		return 0, fault(ErrUnknownType, -1, "%d (known: %s)", uint32(t), strings.Join(typeNames(Type.Valid), ", "))
	}

	n, ok := product(shape)
	if !ok {
		return 0, fault(ErrShapeOverflow, -1, "%s", clip(fmt.Sprint(shape)))
	}

	elements, bytes := t.Block()
	if row := rowLength(shape); row%elements != 0 {
		return 0, fault(ErrRowSize, -1, "%s has blocks of %d elements, the rows have %d", t, elements, row)
	}

	size, ok := mul(n/elements, bytes)
	if !ok {
		return 0, fault(ErrShapeOverflow, -1, "%s %s", t, clip(fmt.Sprint(shape)))
	}

	return size, nil
}

// rowLength is the number of elements of a row, 1 for a scalar.
func rowLength(shape []int64) int64 {
	if len(shape) == 0 {
		return 1
	}
	return shape[len(shape)-1]
}

// product multiplies dimensions; !ok if one is negative or the product leaves int64 on the way, also where a
// dimension of 0 further on would bring it back.
func product(shape []int64) (n int64, ok bool) {
	n = 1
	for _, dim := range shape {
		if n, ok = mul(n, dim); !ok {
			return 0, false
		}
	}
	return n, true
}

func mul(a, b int64) (int64, bool) {
	if a < 0 || b < 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}

// Info says what a tensor is and where it lies.
type Info struct {
	Name  string
	Type  Type
	Shape []int64 // dimensions, outermost first, at most 4; empty for a scalar

	// Offset is the tensor's first byte counted from the start of the FILE (the offsets in the header count from the
	// start of the data), Size its length in bytes. Functions that take an Info to lay out a new file ignore both.
	Offset, Size int64
}

// Cols is the number of elements of a row: the last dimension, 1 for a scalar.
func (i Info) Cols() int64 { return rowLength(i.Shape) }

// Rows is the number of rows: the product of all dimensions but the last; -1 if it exceeds an int64, which that of
// no Info from an opened file does.
func (i Info) Rows() int64 {
	n, ok := product(i.Shape[:max(0, len(i.Shape)-1)])
	if !ok {
		return -1
	}
	return n
}

// RowSize is the number of bytes of a row, 0 for an invalid type.
func (i Info) RowSize() int64 {
	elements, bytes := i.Type.Block()
	if elements == 0 {
		return 0
	}
	return i.Cols() / elements * bytes
}
