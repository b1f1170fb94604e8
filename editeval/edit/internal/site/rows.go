package site

import (
	"encoding/binary"
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
)

// Rows reads and writes rows of F32 matrices, wherever they are.
type Rows struct{ Dev kernels.Device }

// host reports whether a matrix lies in memory.
func host(m kernels.Mat) bool { return m.Buf.Addr == 0 }

// Get copies row i.
func (r Rows) Get(m kernels.Mat, i int) ([]float64, error) {
	out := make([]float64, m.Cols)
	if host(m) {
		for j, v := range m.RowF32(i) {
			out[j] = float64(v)
		}
		return out, nil
	}

	raw := make([]byte, 4*m.Cols)
	if err := r.Dev.Download(raw, m.Buf, m.Off+i*m.Stride); err != nil {
		return nil, err
	}
	for j := range out {
		out[j] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:])))
	}

	return out, nil
}

// Put overwrites row i.
func (r Rows) Put(m kernels.Mat, i int, v []float64) error {
	if host(m) {
		for j, row := 0, m.RowF32(i); j < len(row); j++ {
			row[j] = float32(v[j])
		}
		m.Buf.Changed()
		return nil
	}

	raw := make([]byte, 4*m.Cols)
	for j := range v {
		binary.LittleEndian.PutUint32(raw[4*j:], math.Float32bits(float32(v[j])))
	}

	return r.Dev.Upload(m.Buf, m.Off+i*m.Stride, raw)
}

// Each calls f with every row, which f may change; f must not depend on the order.
func (r Rows) Each(m kernels.Mat, f func(i int, row []float64)) error {
	if host(m) {
		buffer := func() []float64 { return make([]float64, m.Cols) }
		mmapsafe.EachWith(0, m.Rows, buffer, func(wide []float64, i int) {
			row := m.RowF32(i)
			for j, v := range row {
				wide[j] = float64(v)
			}
			f(i, wide)
			for j, v := range wide {
				row[j] = float32(v)
			}
		})

		m.Buf.Changed()
		return nil
	}

	for i := range m.Rows {
		row, err := r.Get(m, i)
		if err != nil {
			return err
		}

		f(i, row)
		if err := r.Put(m, i, row); err != nil {
			return err
		}
	}

	return nil
}

// Add adds v to row i.
func (r Rows) Add(m kernels.Mat, i int, v []float64) error {
	x, err := r.Get(m, i)
	if err != nil {
		return err
	}
	for j := range x {
		x[j] += v[j]
	}
	return r.Put(m, i, x)
}
