package dtype_test

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// TestRoundTrip: values that a type holds come back; others are rounded to nearest, ties to even.
func TestRoundTrip(t *testing.T) {
	x := []float32{0, 1, -2.5, 1 << 14, -0x1p-14, float32(math.Inf(1))}
	for _, kind := range []safetensors.DType{safetensors.F32, safetensors.F64, safetensors.BF16, safetensors.F16} {
		data, y := make([]byte, len(x)*dtype.Size(kind)), make([]float32, len(x))
		if err := errors.Join(dtype.Encode(data, x, kind), dtype.Decode(y, data, kind)); err != nil {
			t.Fatal(err)
		}

		for i, v := range x {
			if y[i] != v {
				t.Errorf("%s: %v came back as %v", kind, v, y[i])
			}
		}

		if dtype.NonFinite(y) != len(x)-1 || dtype.NonFinite(y[:2]) != -1 {
			t.Errorf("%s: NonFinite", kind)
		}
	}

	data, y := make([]byte, 4), make([]float32, 2)
	if err := errors.Join(dtype.Encode(data, []float32{1 + 1.0/256, 1 + 3.0/256}, safetensors.BF16),
		dtype.Decode(y, data, safetensors.BF16)); err != nil {
		t.Fatal(err)
	}

	if y[0] != 1 || y[1] != 1+4.0/256 {
		t.Errorf("ties go to %v", y)
	}

	for _, kind := range []safetensors.DType{safetensors.I32, safetensors.BOOL, 0} {
		if dtype.IsFloat(kind) || !errors.Is(dtype.Decode(nil, nil, kind), dtype.ErrDType) ||
			!errors.Is(dtype.Encode(nil, nil, kind), dtype.ErrDType) {
			t.Errorf("%v is taken for a float", kind)
		}
	}
}

// TestEveryBF16: all patterns, NaNs with what they carry among them, are read and written in any number and at any
// address as one by one.
func TestEveryBF16(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for first := 0; first+n <= 1<<16; first += n {
			memory := make([]byte, 2*n+1)
			data := memory[n%2:][:2*n]
			for i := range n {
				binary.LittleEndian.PutUint16(data[2*i:], uint16(first+i))
			}
			x, back := make([]float32, n), make([]float32, n)
			wide := make([]byte, 4*n+1)[1:]
			if err := dtype.Decode(x, data, safetensors.BF16); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(dtype.Encode(wide, x, safetensors.F32), dtype.Decode(back, wide, safetensors.F32),
				dtype.Encode(data, back, safetensors.BF16)); err != nil {
				t.Fatal(err)
			}

			for i, v := range x {
				bits := uint32(first+i) << 16
				if math.Float32bits(v) != bits || binary.LittleEndian.Uint32(wide[4*i:]) != bits ||
					math.Float32bits(back[i]) != bits {
					t.Fatalf("%d of %d from %#x: %#x, %#x", i, n, first, math.Float32bits(v), wide[4*i:][:4])
				}
				if got := binary.LittleEndian.Uint16(data[2*i:]); got != kernels.ToBF16(v) {
					t.Fatalf("%d of %d from %#x is written as %#x", i, n, first, got)
				}
			}
		}
	}
}
