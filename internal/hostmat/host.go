// Package hostmat brings matrices to host memory and back, and works on them there.
package hostmat

import (
	"encoding/binary"
	"errors"
	"math"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// ErrNonFinite: a number is NaN or infinite.
var ErrNonFinite = errors.New("not a finite number")

// Transposed makes a copy of a dense matrix with rows and columns exchanged, on the same device; exact for every type.
// It is how matrices stored as [in, out] get output neurons for rows. The caller frees the buffer.
func Transposed(dev kernels.Device, m kernels.Mat) (kernels.Mat, error) {
	buf, err := dev.Alloc(m.DType(), m.Len())
	if err != nil {
		return kernels.Mat{}, err
	}

	out := kernels.MatOf(buf, m.Cols, m.Rows)
	src, err := Bytes(dev, m)
	if err != nil {
		buf.Free()
		return kernels.Mat{}, err
	}

	if err := dev.Upload(buf, 0, TransposedBytes(src, m.Rows, m.Cols, m.DType().Size())); err != nil {
		buf.Free()
		return kernels.Mat{}, err
	}

	return out, nil
}

// Bytes gives the elements of a dense matrix: its own memory on a host device, a copy elsewhere.
func Bytes(dev kernels.Device, m kernels.Mat) ([]byte, error) {
	if !m.Dense() {
		panic("host: a strided matrix")
	}
	size := m.DType().Size()
	if p := m.Buf.Bytes(); p != nil {
		return p[m.Off*size : (m.Off+m.Len())*size], nil
	}
	p := make([]byte, m.Len()*size)
	return p, dev.Download(p, m.Buf, m.Off)
}

// F32 copies a dense matrix to the host as F32.
func F32(dev kernels.Device, m kernels.Mat) (kernels.Mat, error) {
	out := kernels.MatOf(kernels.NewHost(kernels.F32, m.Len()), m.Rows, m.Cols)
	if dev.Info().Host {
		dev.Ops().Convert(out, m)
		return out, dev.Ops().Sync()
	}

	raw, err := Bytes(dev, m)
	if err != nil {
		return out, err
	}

	for i, dst := 0, out.Buf.F32(); i < len(dst); i++ {
		dst[i] = Element(raw, m.DType(), i)
	}

	return out, nil
}

// Store writes values, F32 in host memory, to a matrix of a device in the type of that, rounded; transposed turns them
// first.
func Store(dev kernels.Device, to, values kernels.Mat, transposed bool) error {
	// By way of the device, which turns and rounds.
	buf, err := dev.Alloc(kernels.F32, values.Len())
	if err != nil {
		return err
	}
	defer buf.Free()

	if err := dev.Upload(buf, 0, values.Buf.Bytes()); err != nil {
		return err
	}

	m := kernels.MatOf(buf, values.Rows, values.Cols)
	if transposed {
		if m, err = Transposed(dev, m); err != nil {
			return err
		}
		defer m.Buf.Free()
	}

	dev.Ops().Convert(to, m)
	return nil
}

// Element reads Element i of a run of F32, BF16 or F16.
func Element(raw []byte, t kernels.DType, i int) float32 {
	switch t {
	case kernels.BF16:
		return kernels.FromBF16(binary.LittleEndian.Uint16(raw[2*i:]))
	case kernels.F16:
		return kernels.FromF16(binary.LittleEndian.Uint16(raw[2*i:]))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
}

// BytesOf views float64 values as bytes.
func BytesOf(v []float64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 8*len(v))
}

// TransposedBytes copies src [rows, cols] as [cols, rows], in tiles that fit the cache. Elements have size bytes.
func TransposedBytes(src []byte, rows, cols, size int) []byte {
	dst := make([]byte, len(src))
	const tile = 32
	for i0 := 0; i0 < rows; i0 += tile {
		for j0 := 0; j0 < cols; j0 += tile {
			for i := i0; i < min(i0+tile, rows); i++ {
				for j := j0; j < min(j0+tile, cols); j++ {
					copy(dst[(j*rows+i)*size:(j*rows+i+1)*size], src[(i*cols+j)*size:])
				}
			}
		}
	}

	return dst
}

// F64 copies an F64 matrix to the host.
func F64(dev kernels.Device, m kernels.Mat) ([]float64, error) {
	if m.IsZero() {
		return nil, nil
	}

	raw := make([]byte, 8*m.Len())
	if err := dev.Download(raw, m.Buf, m.Off); err != nil {
		return nil, err
	}

	out := make([]float64, m.Len())
	for j := range out {
		out[j] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*j:]))
	}

	return out, nil
}

// Same reports whether all elements of an F32 matrix are v, which is not NaN.
func Same(m kernels.Mat, v float32) bool {
	for i := range m.Rows {
		for _, x := range m.RowF32(i) {
			if x != v {
				return false
			}
		}
	}
	return true
}

// Constant reports whether all scores of a matrix are the same, and which. It looks no further than it has to.
func Constant(dev kernels.Device, s kernels.Score) (first float32, same bool, err error) {
	var col kernels.Mat
	if !s.Col.IsZero() {
		if col, err = F32(dev, s.Col); err != nil {
			return 0, false, err
		}
	}

	for i := range s.X.Rows {
		x, err := F32(dev, s.X.RowRange(i, i+1))
		if err != nil {
			return 0, false, err
		}

		for j, v := range x.RowF32(0) {
			if !s.Raw {
				v = max(v, -v)
			}
			if !col.IsZero() {
				v *= col.RowF32(0)[j]
			}
			if i+j == 0 {
				first = v
			}
			if v != first {
				return first, false, nil
			}
		}
	}

	return first, true, nil
}
