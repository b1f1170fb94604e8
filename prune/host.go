package prune

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/modelcompress/compress/kernels"
)

// transposed makes a copy of a dense matrix with rows and columns exchanged, on the same device; exact for every type.
// It is how matrices stored as [in, out] get output neurons for rows. The caller frees the buffer.
func transposed(dev kernels.Device, m kernels.Mat) (kernels.Mat, error) {
	buf, err := dev.Alloc(m.DType(), m.Len())
	if err != nil {
		return kernels.Mat{}, err
	}
	out := kernels.MatOf(buf, m.Cols, m.Rows)
	src, err := hostBytes(dev, m)
	if err != nil {
		buf.Free()
		return kernels.Mat{}, err
	}
	dst := make([]byte, len(src))
	transposeBytes(dst, src, m.Rows, m.Cols, m.DType().Size())
	if err := dev.Upload(buf, 0, dst); err != nil {
		buf.Free()
		return kernels.Mat{}, err
	}
	return out, nil
}

// hostBytes gives the elements of a dense matrix: its own memory on a host device, a copy elsewhere.
func hostBytes(dev kernels.Device, m kernels.Mat) ([]byte, error) {
	if !m.Dense() {
		panic("prune: a strided matrix")
	}
	size := m.DType().Size()
	if p := m.Buf.Bytes(); p != nil {
		return p[m.Off*size : (m.Off+m.Len())*size], nil
	}
	p := make([]byte, m.Len()*size)
	return p, dev.Download(p, m.Buf, m.Off)
}

// hostF32 copies a dense matrix to the host as F32.
func hostF32(dev kernels.Device, m kernels.Mat) (kernels.Mat, error) {
	out := kernels.MatOf(kernels.NewHost(kernels.F32, m.Len()), m.Rows, m.Cols)
	if dev.Info().Host {
		dev.Ops().Convert(out, m)
		return out, dev.Ops().Sync()
	}
	raw, err := hostBytes(dev, m)
	if err != nil {
		return out, err
	}
	for i, dst := 0, out.Buf.F32(); i < len(dst); i++ {
		dst[i] = element(raw, m.DType(), i)
	}
	return out, nil
}

// element reads element i of a run of F32, BF16 or F16.
func element(raw []byte, t kernels.DType, i int) float32 {
	switch t {
	case kernels.BF16:
		return kernels.FromBF16(binary.LittleEndian.Uint16(raw[2*i:]))
	case kernels.F16:
		return kernels.FromF16(binary.LittleEndian.Uint16(raw[2*i:]))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
}

// bytesOf views float64 values as bytes.
func bytesOf(v []float64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 8*len(v))
}

// transposeBytes writes src [rows, cols] to dst as [cols, rows], in tiles that fit the cache. Elements have size bytes.
func transposeBytes(dst, src []byte, rows, cols, size int) {
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
}
