package safetensors

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// DType is the type of a tensor's elements. The zero value is no type.
type DType uint8

// The types of the format. Their order is that of the reference implementation, which
// sorts tensors by it when it writes (see OrderHF).
const (
	_           DType = iota
	BOOL              // one byte, 0 or 1
	F4                // 4-bit float E2M1, two to a byte
	F6_E2M3           // 6-bit float, four to three bytes
	F6_E3M2           // 6-bit float, four to three bytes
	U8                // unsigned, 8 bits
	I8                // signed, 8 bits
	F8_E5M2           // 8-bit float, 5 bits of exponent
	F8_E4M3           // 8-bit float, 4 bits of exponent, no infinities
	F8_E8M0           // power of two, the scale of MX formats
	F8_E4M3FNUZ       // 8-bit float, no infinities, no negative zero
	F8_E5M2FNUZ       // 8-bit float, no infinities, no negative zero
	I16               // signed, 16 bits
	U16               // unsigned, 16 bits
	F16               // IEEE 754 binary16
	BF16              // the upper half of a binary32
	I32               // signed, 32 bits
	U32               // unsigned, 32 bits
	F32               // IEEE 754 binary32
	C64               // two binary32: real, imaginary
	F64               // IEEE 754 binary64
	I64               // signed, 64 bits
	U64               // unsigned, 64 bits
	numDTypes
)

var dtypes = [numDTypes]struct {
	name string
	bits int
}{
	BOOL: {"BOOL", 8},
	F4:   {"F4", 4}, F6_E2M3: {"F6_E2M3", 6}, F6_E3M2: {"F6_E3M2", 6},
	U8: {"U8", 8}, I8: {"I8", 8},
	F8_E5M2: {"F8_E5M2", 8}, F8_E4M3: {"F8_E4M3", 8}, F8_E8M0: {"F8_E8M0", 8},
	F8_E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8_E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	I16: {"I16", 16}, U16: {"U16", 16}, F16: {"F16", 16}, BF16: {"BF16", 16},
	I32: {"I32", 32}, U32: {"U32", 32}, F32: {"F32", 32},
	C64: {"C64", 64}, F64: {"F64", 64}, I64: {"I64", 64}, U64: {"U64", 64},
}

// String gives the name used in headers, such as "BF16".
func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Valid reports whether d is one of the format's types.
func (d DType) Valid() bool { return d > 0 && d < numDTypes }

// Bits gives the size of one element in bits: 4, 6, 8, 16, 32 or 64; 0 for an invalid type.
func (d DType) Bits() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].bits
}

// Align gives the alignment in bytes that an element asks for: its size, or 1 for
// elements smaller than a byte.
func (d DType) Align() int64 { return max(1, int64(d.Bits()/8)) }

// ParseDType reads a name as it stands in headers, in capitals. For any other name the
// error wraps ErrUnknownDType and lists the known ones.
func ParseDType(name string) (DType, error) {
	for d := BOOL; d < numDTypes; d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("%w %q (known: %s)", ErrUnknownDType, clip(name), strings.Join(DTypeNames(), ", "))
}

// DTypeNames lists the names that ParseDType knows, in the order of the constants.
func DTypeNames() []string {
	names := make([]string, 0, numDTypes-1)
	for d := BOOL; d < numDTypes; d++ {
		names = append(names, dtypes[d].name)
	}
	return names
}

// ByteSize gives the bytes that a tensor of this type and shape takes. The errors wrap
// ErrUnknownDType, ErrShapeOverflow (a negative dimension, or more than 2^63-1 bits) or
// ErrNotByteAligned.
func (d DType) ByteSize(shape []int64) (int64, error) {
	if !d.Valid() {
		return 0, fmt.Errorf("%w %s", ErrUnknownDType, d)
	}

	n, ok := product(shape)
	if !ok {
		return 0, fmt.Errorf("%w: shape %v", ErrShapeOverflow, clipShape(shape))
	}

	total, ok := mul(n, int64(d.Bits()))
	if !ok {
		return 0, fmt.Errorf("%w: %s %v", ErrShapeOverflow, d, clipShape(shape))
	}

	if total%8 != 0 {
		return 0, fmt.Errorf("%w: %s %v takes %d bits", ErrNotByteAligned, d, clipShape(shape), total)
	}

	return total / 8, nil
}

// product multiplies the dimensions from the left; !ok if one is negative or the
// product leaves int64 on the way.
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
	DType DType
	Shape []int64 // dimensions, outermost first; empty for a scalar

	// Offset is the tensor's first byte counted from the start of the FILE (the offsets in
	// the header count from the end of the header), Size its length in bytes. Functions that
	// take an Info to lay out a new file ignore both.
	Offset, Size int64
}

// Elements gives the number of elements: the product of the shape, 1 for a scalar, and -1
// if the shape has a negative dimension or the product exceeds an int64, which no
// Info from an opened file does.
func (i Info) Elements() int64 {
	n, ok := product(i.Shape)
	if !ok {
		return -1
	}
	return n
}

// Aligned reports whether the tensor's offset is a multiple of its element size, so that a view
// into a mapping may be reinterpreted as a slice of that type.
func (i Info) Aligned() bool { return i.Offset%i.DType.Align() == 0 }
