package edit

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/modelcompress/compress/kernels"
)

// rows reads and writes rows of F32 matrices, wherever they are.
type rows struct{ dev kernels.Device }

// host reports whether a matrix lies in memory.
func host(m kernels.Mat) bool { return m.Buf.Addr == 0 }

// get copies row i.
func (r rows) get(m kernels.Mat, i int) ([]float64, error) {
	out := make([]float64, m.Cols)
	if host(m) {
		for j, v := range m.RowF32(i) {
			out[j] = float64(v)
		}
		return out, nil
	}
	raw := make([]byte, 4*m.Cols)
	if err := r.dev.Download(raw, m.Buf, m.Off+i*m.Stride); err != nil {
		return nil, err
	}
	for j := range out {
		out[j] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:])))
	}
	return out, nil
}

// put overwrites row i.
func (r rows) put(m kernels.Mat, i int, v []float64) error {
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
	return r.dev.Upload(m.Buf, m.Off+i*m.Stride, raw)
}

// add adds v to row i.
func (r rows) add(m kernels.Mat, i int, v []float64) error {
	x, err := r.get(m, i)
	if err != nil {
		return err
	}
	for j := range x {
		x[j] += v[j]
	}
	return r.put(m, i, x)
}

// parallel calls f for 0 … n-1 on a few goroutines; f must not depend on the order.
func parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	const workers = 8
	for w := range min(workers, n) {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	wg.Wait()
}
