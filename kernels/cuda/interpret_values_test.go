//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// number64 is the value of a register that holds a floating-point number.
func number64(t string, v uint64) float64 {
	if t == "f32" {
		return float64(math.Float32frombits(uint32(v)))
	}
	return math.Float64frombits(v)
}

// compared compares floating-point numbers: only neu and nan hold for a NaN.
func compared(op string, a, b float64) (uint64, error) {
	switch op {
	case "eq":
		return truth(a == b), nil
	case "neu":
		return truth(a != b), nil
	case "lt":
		return truth(a < b), nil
	case "gt":
		return truth(a > b), nil
	case "nan":
		return truth(a != a || b != b), nil
	}

	return 0, fmt.Errorf("unknown comparison")
}

// extended is the value of an integer register, by its type.
func extended(t string, v uint64) int64 {
	switch t {
	case "s32":
		return int64(int32(v))
	case "u32", "b32":
		return int64(uint32(v))
	case "s16":
		return int64(int16(v))
	case "u16", "b16":
		return int64(uint16(v))
	}

	return int64(v)
}

func ordered(op, t string, a, b uint64) (uint64, error) {
	x, y := extended(t, a), extended(t, b)
	if t == "u64" && (x < 0 || y < 0) {
		return 0, fmt.Errorf("numbers above 2⁶³")
	}

	switch op {
	case "eq":
		return truth(x == y), nil
	case "ne":
		return truth(x != y), nil
	case "lt":
		return truth(x < y), nil
	case "le":
		return truth(x <= y), nil
	case "gt":
		return truth(x > y), nil
	case "ge":
		return truth(x >= y), nil
	}

	return 0, fmt.Errorf("unknown comparison")
}

// integer computes with integers; results are cut to the width of the type, twice as wide for mul.wide.
func integer(op, t string, v []uint64) (uint64, error) {
	x := make([]int64, len(v))
	for k := range v {
		x[k] = extended(t, v[k])
	}

	var out int64
	switch op {
	case "add":
		out = x[0] + x[1]
	case "sub":
		out = x[0] - x[1]
	case "mul.lo":
		out = x[0] * x[1]
	case "mul.wide":
		return uint64(x[0] * x[1]), nil
	case "mad.lo":
		out = x[0]*x[1] + x[2]
	case "div":
		if x[1] == 0 {
			return 0, fmt.Errorf("division by 0")
		}
		out = x[0] / x[1]
	case "and":
		out = x[0] & x[1]
	case "or":
		out = x[0] | x[1]
	case "xor":
		out = x[0] ^ x[1]
	case "not":
		out = ^x[0]
	case "shl":
		out = x[0] << min(uint32(v[1]), 63)
	case "shr":
		if t == "u64" || t == "b64" {
			return v[0] >> min(uint32(v[1]), 63), nil
		}
		out = x[0] >> min(uint32(v[1]), 63)
	case "max":
		out = max(x[0], x[1])
	case "min":
		out = min(x[0], x[1])
	default:
		return 0, fmt.Errorf("unknown operation on %s", t)
	}

	if t[1:] == "32" {
		return uint64(uint32(out)), nil
	}

	return uint64(out), nil
}

// converted changes the type of a number: op is cvt, perhaps a rounding, the new type, the old one.
func converted(op []string, v uint64) (uint64, error) {
	to, from := op[len(op)-2], op[len(op)-1]
	switch to + " " + from {
	case "u16 u32", "u32 u16":
		return v & math.MaxUint16, nil
	case "s64 s32", "u32 u64", "u64 u32", "s64 u32":
		if to == "u32" {
			return uint64(uint32(v)), nil
		}
		return uint64(extended(from, v)), nil
	case "f64 f32":
		return math.Float64bits(float64(math.Float32frombits(uint32(v)))), nil
	case "f32 f64":
		return uint64(math.Float32bits(float32(math.Float64frombits(v)))), nil
	case "f64 s32", "f64 u32":
		return math.Float64bits(float64(extended(from, v))), nil
	case "f32 f16":
		return uint64(math.Float32bits(kernels.FromF16(uint16(v)))), nil
	}

	return 0, fmt.Errorf("unknown conversion")
}

// single computes with float32: exact in float64, then rounded once. The approximate functions are the exact ones here.
func single(op []string, v []uint64) (uint64, error) {
	x := make([]float64, len(v))
	for k := range v {
		x[k] = number64("f32", v[k])
	}

	var out float64
	switch op[0] {
	case "abs":
		return v[0] &^ (1 << 31), nil
	case "neg":
		return v[0] ^ 1<<31, nil
	case "copysign": // the sign of the first, the value of the second
		return v[0]&(1<<31) | v[1]&^(1<<31), nil
	case "add":
		out = x[0] + x[1]
	case "sub":
		out = x[0] - x[1]
	case "mul":
		out = x[0] * x[1]
	case "div":
		out = x[0] / x[1]
	case "fma":
		out = math.FMA(x[0], x[1], x[2])
	case "sqrt":
		out = math.Sqrt(x[0])
	case "lg2":
		out = math.Log2(x[0])
	case "ex2":
		out = math.Exp2(x[0])
	case "min", "max":
		if op[1] != "NaN" {
			return 0, fmt.Errorf("a minimum that hides NaN")
		}

		out = min(x[0], x[1])
		if op[0] == "max" {
			out = max(x[0], x[1])
		}
	default:
		return 0, fmt.Errorf("unknown operation")
	}

	return uint64(math.Float32bits(float32(out))), nil
}

func double(op string, v []uint64) (uint64, error) {
	x := make([]float64, len(v))
	for k := range v {
		x[k] = number64("f64", v[k])
	}

	var out float64
	switch op {
	case "abs":
		out = math.Abs(x[0])
	case "neg":
		out = -x[0]
	case "add":
		out = x[0] + x[1]
	case "sub":
		out = x[0] - x[1]
	case "mul":
		out = x[0] * x[1]
	case "div":
		out = x[0] / x[1]
	case "fma":
		out = math.FMA(x[0], x[1], x[2])
	case "sqrt":
		out = math.Sqrt(x[0])
	default:
		return 0, fmt.Errorf("unknown operation")
	}

	return math.Float64bits(out), nil
}
