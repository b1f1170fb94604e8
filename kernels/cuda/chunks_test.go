//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
)

// TestTiesOfManyPieces: elements equal to a cut are counted in pieces of more than 256, and the first of them stay.
func TestTiesOfManyPieces(t *testing.T) {
	d := open(t, "")
	for _, shape := range [][2]int{{1, 700_001}, {640, 1024}} {
		n := shape[0] * shape[1]
		model := make([]float32, n)
		for i := range model {
			model[i] = float32(i*7919%8-4) / 4 // 8 values: magnitude 1 once, 0 once, the others twice
		}

		base := alloc(t, d, shape[0], shape[1], kernelBytes(make([]float32, n)))
		m := alloc(t, d, shape[0], shape[1], kernelBytes(model))
		out := alloc(t, d, shape[0], shape[1], nil)
		for _, keep := range []int{1, n/8 + 1, n/8 + n/16 + 3, n - n/8 - 5, n - 1} {
			if err := d.Merge(out, base, []cuda.Source{{M: m, Weight: 1, Keep: keep}},
				cuda.Arithmetic{Lambda: 1}); err != nil {
				t.Fatal(err)
			}

			want, left := make([]float32, n), keep
			for _, size := range []float32{1, 0.75, 0.5, 0.25, 0} {
				for i, v := range model {
					if float32(math.Abs(float64(v))) == size && left > 0 {
						want[i] = v
						left--
					}
				}
			}

			if got := read(t, d, out); !slices.Equal(got, want) {
				t.Errorf("%v, keep %d: other elements stay", shape, keep)
			}
		}
	}
}

// spaced is a matrix of a type with gap elements after every row, from element start of its buffer on.
func spaced(t *testing.T, d *cuda.Device, dt kernels.DType, values []float32, rows, cols, start, gap int) kernels.Mat {
	t.Helper()
	b, err := d.Alloc(dt, start+rows*(cols+gap))
	if err != nil {
		t.Fatal(err)
	}

	host := kernels.NewHost(dt, start+rows*(cols+gap))
	for i, v := range values {
		at := start + i/cols*(cols+gap) + i%cols
		switch dt {
		case kernels.F32:
			host.F32()[at] = v
		case kernels.U8:
		default:
			to := kernels.ToBF16
			if dt == kernels.F16 {
				to = kernels.ToF16
			}
			binary.LittleEndian.PutUint16(host.Bytes()[2*at:], to(v))
		}
	}

	if err := d.Upload(b, 0, host.Bytes()); err != nil {
		t.Fatal(err)
	}

	m := kernels.MatOf(b, 1, b.Len)
	m.Off = start
	m.Rows = rows
	m.Cols = cols
	m.Stride = cols + gap

	return m
}

// contents is what rows of a matrix hold.
func contents(t *testing.T, d *cuda.Device, m kernels.Mat) (out []byte) {
	t.Helper()
	all := make([]byte, m.Buf.Len*m.DType().Size())
	if err := d.Download(all, m.Buf, 0); err != nil {
		t.Fatal(err)
	}

	for i := range m.Rows {
		at := (m.Off + i*m.Stride) * m.DType().Size()
		out = append(out, all[at:at+m.Cols*m.DType().Size()]...)
	}

	return out
}

// TestChunksGiveTheBitsOfElements: what reads 16 bytes at a time where rows allow it gives the bits of what
// goes element by element, for every type of weight, with ties, tails and rows that start anywhere.
func TestChunksGiveTheBitsOfElements(t *testing.T) {
	d := open(t, "")
	for _, dt := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
		for _, cols := range []int{64, 1003, 4096, 12296} {
			const rows = 2
			values, factors := floats(uint64(cols), rows*cols), floats(9, cols)
			for i := range values {
				values[i] = float32(math.Round(float64(values[i])*64)) / 64 // ties
			}

			result := func(start, gap int) (all [][]byte) {
				w, col := spaced(t, d, dt, values, rows, cols, start, gap),
					spaced(t, d, kernels.F32, factors, 1, cols, start, 0)
				score := kernels.Score{X: w, Col: col}
				o := d.Ops()
				for _, op := range []func(kernels.Mat){
					func(m kernels.Mat) { o.SelectRows(m, score, cols/3) },
					func(m kernels.Mat) { o.SelectRows(m, kernels.Score{X: w}, cols/2) },
					func(m kernels.Mat) { o.SelectAll(m, score, rows*cols/3) },
					func(m kernels.Mat) { o.SelectNM(m, score, 2, 4) },
					func(m kernels.Mat) { o.SelectNM(m, kernels.Score{X: w, Raw: true}, 5, 8) },
				} {
					mask := spaced(t, d, kernels.U8, values, rows, cols, start, gap)
					op(mask)
					all = append(all, contents(t, d, mask))
				}

				base := spaced(t, d, dt, factors[:1], rows, cols, start, gap)
				list := []cuda.Source{
					{M: w, Weight: 0.7, Keep: rows * cols / 2},
					{M: base, Weight: 0.2},
					{M: w, Weight: -0.3, Share: 1 << 30, A: 5, B: 6},
					{M: w, Weight: 0.1},
					{M: w, Weight: 0.4},
				}

				for _, a := range []cuda.Arithmetic{{Lambda: 0.9}, {Lambda: 1, Consensus: true, Normalise: true}} {
					for _, to := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
						out := spaced(t, d, to, nil, rows, cols, start, gap)
						if err := d.Merge(out, base, list, a); err != nil {
							t.Fatal(err)
						}
						all = append(all, contents(t, d, out))
					}
				}

				return all
			}

			want := result(1, 5)
			for n, layout := range [][2]int{{0, 0}, {0, 8}, {16, 3}, {8, 24}} {
				for op, got := range result(layout[0], layout[1]) {
					if !slices.Equal(got, want[op]) {
						t.Errorf("%v, %d columns, operation %d: layout %d gives other bits%s", dt, cols, op, n,
							first(got, want[op]))
					}
				}
			}
		}
	}
}

// first tells where two results go apart.
func first(a, b []byte) string {
	for i := range a {
		if a[i] != b[i] {
			return fmt.Sprintf(": byte %d is %d, want %d", i, a[i], b[i])
		}
	}
	return ""
}
