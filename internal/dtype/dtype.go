// Package dtype relates the element types of files, package safetensors', to those of computation, package
// kernels', and to the names that configurations and recipes have for them, and converts elements between files
// and F32.
package dtype

import (
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// table has the floating-point types that can be computed with.
var table = []struct {
	stored  safetensors.DType
	compute kernels.DType
	torch   string
}{
	{safetensors.F32, kernels.F32, "float32"},
	{safetensors.BF16, kernels.BF16, "bfloat16"},
	{safetensors.F16, kernels.F16, "float16"},
	{safetensors.F64, kernels.F64, "float64"},
}

// IsFloat reports whether elements of a type can be computed with: F32, BF16, F16 and F64.
func IsFloat(d safetensors.DType) bool { return Of(d) != 0 }

// Of returns the type of the kernels for a stored type, 0 if there is none.
func Of(d safetensors.DType) kernels.DType {
	for i := range table {
		if table[i].stored == d {
			return table[i].compute
		}
	}
	return 0
}

// Matrix is [Of] for matrices of models on devices, which are never F64.
func Matrix(d safetensors.DType) kernels.DType {
	if d == safetensors.F64 {
		return 0
	}
	return Of(d)
}

// Stored returns the type of files for one of the kernels, 0 if there is none.
func Stored(d kernels.DType) safetensors.DType {
	for i := range table {
		if table[i].compute == d {
			return table[i].stored
		}
	}
	return 0
}

// Torch returns PyTorch's name of a type, as in config.json: float32, bfloat16, float16, float64; empty for
// other types.
func Torch(d safetensors.DType) string {
	for i := range table {
		if table[i].stored == d {
			return table[i].torch
		}
	}
	return ""
}

// ParseTorch returns the type that PyTorch has a name for, with or without "torch." before it; 0 if it is none
// of [Torch]'s.
func ParseTorch(name string) safetensors.DType {
	name = strings.TrimPrefix(name, "torch.")
	for i := range table {
		if table[i].torch == name {
			return table[i].stored
		}
	}
	return 0
}
