package floats_test

import (
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/lora/internal/floats"
	"github.com/modelcompress/compress/safetensors"
)

// TestRoundTrip: values that a type holds come back; others are rounded to nearest, ties to even.
func TestRoundTrip(t *testing.T) {
	x := []float32{0, 1, -2.5, 1 << 14, -0x1p-14, float32(math.Inf(1))}
	for _, dtype := range []safetensors.DType{safetensors.F32, safetensors.F64, safetensors.BF16, safetensors.F16} {
		data, y := make([]byte, len(x)*floats.Size(dtype)), make([]float32, len(x))
		if err := errors.Join(floats.Encode(data, x, dtype), floats.Decode(y, data, dtype)); err != nil {
			t.Fatal(err)
		}
		for i, v := range x {
			if y[i] != v {
				t.Errorf("%s: %v came back as %v", dtype, v, y[i])
			}
		}
		if floats.NonFinite(y) != len(x)-1 || floats.NonFinite(y[:2]) != -1 {
			t.Errorf("%s: NonFinite", dtype)
		}
	}
	data, y := make([]byte, 4), make([]float32, 2)
	if err := errors.Join(floats.Encode(data, []float32{1 + 1.0/256, 1 + 3.0/256}, safetensors.BF16), floats.Decode(y, data, safetensors.BF16)); err != nil {
		t.Fatal(err)
	}
	if y[0] != 1 || y[1] != 1+4.0/256 {
		t.Errorf("ties go to %v", y)
	}
	for _, dtype := range []safetensors.DType{safetensors.I32, safetensors.BOOL, 0} {
		if floats.Known(dtype) || !errors.Is(floats.Decode(nil, nil, dtype), floats.ErrDType) || !errors.Is(floats.Encode(nil, nil, dtype), floats.ErrDType) {
			t.Errorf("%v is taken for a float", dtype)
		}
	}
}
