package quantized

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// TestRounderRow: rows become what their elements become one by one, in every instruction set, with groups that are
// whole vectors and that are not.
func TestRounderRow(t *testing.T) {
	for _, n := range []Numbers{
		{Bits: 4, Symmetric: true},
		{Bits: 4},
		{Bits: 8, Symmetric: true},
		{Float: true, Bits: 8, Symmetric: true},
		{Float: true, Bits: 4, Symmetric: true},
	} {
		for _, n.DType = range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
			for _, c := range []struct{ group, cols int }{
				{64, 192}, {16, 64}, {16, 70}, {128, 300}, {1000, 1000}, {48, 48}, {24, 100}, {7, 20}, {5, 5},
			} {
				t.Run(fmt.Sprintf("%+v/%+v", n, c), func(t *testing.T) {
					everyISA(t, func(t *testing.T) {
						rowAsOne(t, n, c.group, c.cols, false)
						rowAsOne(t, n, c.group, c.cols, true)
					})
				})
			}
		}
	}
}

func rowAsOne(t *testing.T, n Numbers, group, cols int, typed bool) {
	t.Helper()
	x := rows(uint64(group), cols)
	x[0] = float32(math.Copysign(0, -1))
	round(x, n.DType)

	var scale, zero []float32
	for lo := 0; lo < cols; lo += group {
		low, high := extent(x[lo:min(lo+group, cols)])
		s, z := n.Fit(0.8*low, 0.8*high) // so that some are beyond the limits
		scale = append(scale, s)
		zero = append(zero, float32(z))
	}

	code := make([]byte, cols)
	value := slices.Clone(x)
	r := n.Rounder(typed)
	r.Row(code, value, scale, zero, group)
	for i, v := range x {
		s, z := scale[i/group], int(zero[i/group])
		want := n.Code(v, s, z)
		if typed {
			want = n.CodeRounded(v, s, z)
		}
		near := n.Value(want, s, z)
		if code[i] != want || math.Float32bits(value[i]) != math.Float32bits(near) {
			t.Fatalf("element %d, %g: code %d and %g, want %d and %g", i, v, code[i], value[i], want, near)
		}
		if c, one := r.One(v, s, z); c != want || math.Float32bits(one) != math.Float32bits(near) {
			t.Fatalf("element %d, %g, by itself: code %d and %g, want %d and %g", i, v, c, one, want, near)
		}
	}
}

// TestExtents: the extremes of groups are those of their elements and 0, in every instruction set.
func TestExtents(t *testing.T) {
	everyISA(t, func(t *testing.T) {
		for _, c := range []struct{ group, cols int }{
			{64, 192}, {16, 70}, {128, 300}, {1000, 1000}, {24, 100}, {7, 20},
		} {
			x := rows(3, c.cols)
			for i := range min(16, c.cols) {
				x[i] = max(x[i], -x[i]) // a group without one below 0
			}
			n := (c.cols + c.group - 1) / c.group
			low := make([]float32, n)
			high := make([]float32, n)
			Extents(low, high, x, c.group)
			for g := range n {
				part := append([]float32{0}, x[g*c.group:min((g+1)*c.group, c.cols)]...)
				if low[g] != slices.Min(part) || high[g] != slices.Max(part) {
					t.Errorf("%+v, group %d: %g to %g, want %g to %g", c, g, low[g], high[g], slices.Min(part),
						slices.Max(part))
				}
			}
		}
	})
}

func BenchmarkRounderRow(b *testing.B) {
	const cols, group = 4096, 128
	x := rows(1, cols)
	for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
		b.Run(d.String(), func(b *testing.B) {
			n := Numbers{Bits: 4, Symmetric: true, DType: d}
			scale := slices.Repeat([]float32{0.3}, cols/group)
			zero := make([]float32, cols/group)
			code := make([]byte, cols)
			row := make([]float32, cols)
			r := n.Rounder(true)
			b.SetBytes(4 * cols)
			for range b.N {
				copy(row, x)
				r.Row(code, row, scale, zero, group)
			}
		})
	}
}
