package hostmat

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// filled is a matrix of a type whose elements are integers from -3 to 3, which every type holds.
func filled(d kernels.DType, rows, cols int, seed uint64) kernels.Mat {
	random := rand.New(rand.NewPCG(seed, 1))
	m := kernels.MatOf(kernels.NewHost(d, rows*cols), rows, cols)
	for i := range rows * cols {
		v := float32(random.IntN(7) - 3)
		switch d {
		case kernels.F32:
			m.Buf.F32()[i] = v
		case kernels.BF16:
			m.Buf.U16()[i] = kernels.ToBF16(v)
		default:
			m.Buf.U16()[i] = kernels.ToF16(v)
		}
	}
	return m
}

var types = []kernels.DType{kernels.F32, kernels.BF16, kernels.F16}

// TestTransposed: element (i, j) is where (j, i) was, in shapes around the tiles of 32.
func TestTransposed(t *testing.T) {
	dev := ref.New()
	for _, d := range types {
		for _, shape := range [][2]int{{1, 1}, {3, 5}, {31, 33}, {32, 64}, {65, 2}} {
			m := filled(d, shape[0], shape[1], 2)
			turned, err := Transposed(dev, m)
			if err != nil || turned.Rows != m.Cols || turned.Cols != m.Rows {
				t.Fatalf("%v %v: %d x %d, %v", d, shape, turned.Rows, turned.Cols, err)
			}

			from, to := m.Buf.Bytes(), turned.Buf.Bytes()
			for i := range m.Rows {
				for j := range m.Cols {
					if Element(to, d, j*m.Rows+i) != Element(from, d, i*m.Cols+j) {
						t.Fatalf("%v %v: element %d, %d", d, shape, i, j)
					}
				}
			}

			back, err := Transposed(dev, turned)
			if err != nil || !bytes.Equal(back.Buf.Bytes(), from) {
				t.Errorf("%v %v: not the same after two turns, %v", d, shape, err)
			}
		}
	}
}

// TestBadGroups counts by the definition, in order and in another one.
func TestBadGroups(t *testing.T) {
	dev := ref.New()
	for _, d := range types {
		for _, c := range []struct{ rows, cols, n, m int }{{4, 8, 2, 4}, {3, 10, 2, 4}, {5, 7, 1, 2}, {2, 9, 4, 8}} {
			m := filled(d, c.rows, c.cols, uint64(c.cols))
			order := make([]int32, c.cols)
			for p, j := range rand.New(rand.NewPCG(3, 3)).Perm(c.cols) {
				order[p] = int32(j)
			}

			for _, o := range [][]int32{nil, order} {
				got, err := BadGroups(dev, m, c.n, c.m, o)
				if want := badGroups(m, c.n, c.m, o); err != nil || got != want {
					t.Errorf("%v %+v, ordered %t: %d %v, want %d", d, c, o != nil, got, err, want)
				}
			}
		}
	}
}

// badGroups is the definition.
func badGroups(m kernels.Mat, n, size int, order []int32) (bad int64) {
	for i := range m.Rows {
		for lo := 0; lo < m.Cols; lo += size {
			hi := min(lo+size, m.Cols)
			zeros := 0
			for p := lo; p < hi; p++ {
				j := p
				if order != nil {
					j = int(order[p])
				}
				if Element(m.Buf.Bytes(), m.DType(), i*m.Cols+j) == 0 {
					zeros++
				}
			}
			if zeros < min(n, hi-lo) {
				bad++
			}
		}
	}
	return bad
}

// TestNegativeZeroIsZero: a pruned weight may have kept its sign.
func TestNegativeZeroIsZero(t *testing.T) {
	m := kernels.MatOf(kernels.NewHost(kernels.F32, 4), 1, 4)
	copy(m.Buf.F32(), []float32{float32(math.Copysign(0, -1)), 1, 0, 2})
	if bad, err := BadGroups(ref.New(), m, 2, 4, nil); err != nil || bad != 0 {
		t.Errorf("%d bad groups, %v", bad, err)
	}
}

// TestMultiplyAdds: whole numbers leave nothing to rounding, and dst keeps what it had.
func TestMultiplyAdds(t *testing.T) {
	x, y := filled(kernels.F32, 3, 4, 5), filled(kernels.F32, 4, 2, 6)
	dst := filled(kernels.F32, 3, 2, 7)
	want := make([]float32, dst.Len())
	for i := range 3 {
		for j := range 2 {
			want[i*2+j] = dst.RowF32(i)[j]
			for k := range 4 {
				want[i*2+j] += x.RowF32(i)[k] * y.RowF32(k)[j]
			}
		}
	}

	Multiply(ref.New(), dst, x, y)
	for i, v := range dst.Buf.F32() {
		if v != want[i] {
			t.Errorf("element %d: %g, want %g", i, v, want[i])
		}
	}
}

// TestThereClosesGaps: rows of a part of a matrix stand one after the other in the copy.
func TestThereClosesGaps(t *testing.T) {
	whole := filled(kernels.F32, 4, 6, 8)
	part := whole.ColRange(1, 4)
	there, err := There(ref.New(), part)
	if err != nil || !there.Dense() {
		t.Fatalf("%+v %v", there, err)
	}

	for i := range part.Rows {
		for j, v := range part.RowF32(i) {
			if there.Buf.F32()[i*part.Cols+j] != v {
				t.Errorf("element %d, %d", i, j)
			}
		}
	}
}

// TestConstant: scores are magnitudes times the factors of their columns, unless they are taken as they are.
func TestConstant(t *testing.T) {
	mat := func(rows, cols int, v ...float32) kernels.Mat {
		m := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
		copy(m.Buf.F32(), v)
		return m
	}

	for name, c := range map[string]struct {
		score kernels.Score
		first float32
		same  bool
	}{
		"magnitudes":   {kernels.Score{X: mat(2, 2, 1, -1, -1, 1)}, 1, true},
		"raw":          {kernels.Score{X: mat(2, 2, 1, -1, -1, 1), Raw: true}, 1, false},
		"last differs": {kernels.Score{X: mat(2, 2, 3, 3, 3, 4)}, 3, false},
		"by factors":   {kernels.Score{X: mat(2, 2, 1, 2, -1, 2), Col: mat(1, 2, 2, 1)}, 2, true},
		"not by them":  {kernels.Score{X: mat(2, 2, 1, 1, 1, 1), Col: mat(1, 2, 2, 1)}, 2, false},
	} {
		first, same, err := Constant(ref.New(), c.score)
		if err != nil || same != c.same || same && first != c.first {
			t.Errorf("%s: %g %t %v", name, first, same, err)
		}
	}

	if m := mat(1, 3, 2, 2, 2); !Same(m, 2) || Same(m, 1) {
		t.Error("Same")
	}
	if m := mat(1, 3, 2, 2, float32(math.NaN())); Same(m, 2) {
		t.Error("a NaN is the same as a number")
	}
}
