package sparse

import (
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// matrix has the values of a function in an element type.
func matrix(t kernels.DType, rows, cols int, f func(i, j int) float32) kernels.Mat {
	m := kernels.MatOf(kernels.NewHost(t, rows*cols), rows, cols)
	for i := range rows {
		for j := range cols {
			v := f(i, j)
			switch t {
			case kernels.F32:
				m.RowF32(i)[j] = v
			case kernels.BF16:
				m.RowU16(i)[j] = kernels.ToBF16(v)
			default:
				m.RowU16(i)[j] = kernels.ToF16(v)
			}
		}
	}
	return m
}

// value is zero, of either sign, in every third element, and now and then smaller or larger than any other number.
func value(i, j int) float32 {
	switch (5*i + j) % 9 {
	case 0, 3:
		return 0
	case 6:
		return float32(math.Copysign(0, -1))
	case 1:
		return 6e-8 // the smallest of F16, as large as that of no other type
	case 2:
		return float32(math.NaN())
	}
	return float32(i - j)
}

func zero(i, j int) bool { return value(i, j) == 0 }

// TestZeros: what counts as zero, in every element type and for fewer rows than goroutines too, and that it stays.
func TestZeros(t *testing.T) {
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
		for _, size := range [][2]int{{1, 1}, {3, 7}, {8, 5}, {37, 11}, {0, 4}} {
			rows, cols := size[0], size[1]
			like := matrix(dtype, rows, cols, value)

			want := int64(0)
			for i := range rows {
				for j := range cols {
					if zero(i, j) {
						want++
					}
				}
			}
			for _, threads := range []int{1, 8} {
				if n, err := Count(like, threads); n != want || err != nil {
					t.Errorf("%v %v, %d threads: %d zeros, want %d (%v)", dtype, size, threads, n, want, err)
				}
			}

			x := matrix(kernels.F32, rows, cols, func(i, j int) float32 { return float32(100 + i + j) })
			if err := Clear(x, like, 8); err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				for j, v := range x.RowF32(i) {
					if zero(i, j) != (v == 0) || v != 0 && v != float32(100+i+j) {
						t.Fatalf("%v %v: element %d, %d is %g", dtype, size, i, j, v)
					}
				}
			}
		}
	}
}

// TestRefused: matrices of other sizes, and element types whose zeros are not those of the base.
func TestRefused(t *testing.T) {
	x := matrix(kernels.F32, 2, 3, value)
	if err := Clear(x, matrix(kernels.F32, 3, 2, value), 1); !errors.Is(err, adapter.ErrBase) {
		t.Errorf("other sizes: %v", err)
	}
	_, err := Count(kernels.MatOf(kernels.NewHost(kernels.I32, 6), 2, 3), 1)
	if !errors.Is(err, adapter.ErrUnsupported) {
		t.Errorf("integers: %v", err)
	}
}
