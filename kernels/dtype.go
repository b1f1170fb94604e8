package kernels

// DType is the element type of a buffer.
type DType uint8

// The element types that operations compute on. Checkpoints hold more (see package safetensors); those are converted.
const (
	F32 DType = iota + 1
	BF16
	F16
	F64
	I64
	I32
	U8
)

var dtypeNames = [...]string{F32: "F32", BF16: "BF16", F16: "F16", F64: "F64", I64: "I64", I32: "I32", U8: "U8"}

var dtypeSizes = [...]int{F32: 4, BF16: 2, F16: 2, F64: 8, I64: 8, I32: 4, U8: 1}

// Size is the width of one element in bytes.
func (d DType) Size() int { return dtypeSizes[d] }

// String gives the name that safetensors uses.
func (d DType) String() string {
	if int(d) < len(dtypeNames) && dtypeNames[d] != "" {
		return dtypeNames[d]
	}
	return "invalid"
}

// IsFloat reports whether the type is a floating-point type.
func (d DType) IsFloat() bool { return d >= F32 && d <= F64 }
