package hostmat

import (
	"errors"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
)

// worthMoving is the number of products from which matrices in host memory are multiplied on a device elsewhere.
const worthMoving = 1 << 24

// Multiply adds x·y to dst, F32 matrices in host memory: on the device if they are large, in float64 on the
// host if they are not or if the device has no room, of which it is told.
func Multiply(dev kernels.Device, dst, x, y kernels.Mat) {
	if dst.Rows*dst.Cols*x.Cols >= worthMoving {
		if multiplyThere(dev, dst, x, y) == nil {
			return
		}
		kernels.Missed(dev, "MatMulNN")
	}
	sum := linalg.FromMat(dst)
	linalg.Solver{}.Mul(sum, linalg.FromMat(x), linalg.FromMat(y), linalg.Product{Accumulate: true})
	sum.ToF32(dst)
}

// multiplyThere leaves dst as it is on an error.
func multiplyThere(dev kernels.Device, dst, x, y kernels.Mat) error {
	a, err := There(dev, x)
	if err != nil {
		return err
	}
	defer a.Buf.Free()

	b, err := There(dev, y)
	if err != nil {
		return err
	}
	defer b.Buf.Free()

	buf, err := dev.Alloc(kernels.F32, dst.Len())
	if err != nil {
		return err
	}
	defer buf.Free()

	product := kernels.MatOf(buf, dst.Rows, dst.Cols)
	dev.Ops().MatMulNN(product, a, b, kernels.MatMul{})
	out := kernels.NewHost(kernels.F32, dst.Len())
	if err := errors.Join(dev.Ops().Sync(), dev.Download(out.Bytes(), buf, 0)); err != nil {
		return err
	}

	for i := range dst.Rows {
		row := dst.RowF32(i)
		for j, v := range out.F32()[i*dst.Cols:][:dst.Cols] {
			row[j] += v
		}
	}

	return nil
}

// There is a copy of an F32 matrix in host memory on a device, without gaps between rows. The caller frees the buffer.
func There(dev kernels.Device, m kernels.Mat) (kernels.Mat, error) {
	buf, err := dev.Alloc(kernels.F32, m.Len())
	if err != nil {
		return kernels.Mat{}, err
	}

	if !m.Dense() {
		packed := kernels.MatOf(kernels.NewHost(kernels.F32, m.Len()), m.Rows, m.Cols)
		for i := range m.Rows {
			copy(packed.RowF32(i), m.RowF32(i))
		}
		m = packed
	}

	if err = dev.Upload(buf, 0, m.Buf.Bytes()[4*m.Off:4*(m.Off+m.Len())]); err != nil {
		buf.Free()
		return kernels.Mat{}, err
	}

	return kernels.MatOf(buf, m.Rows, m.Cols), nil
}
