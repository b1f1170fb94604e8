package layer

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/quant"
)

// Quantise keeps the value of a matrix in few bits instead; it does nothing with 0 bits. The value itself is
// the caller's to free. info is that of the device, which is to be a host.
func (w *Weight) Quantise(info kernels.Info, bits int) error {
	if bits == 0 || w.Quant != nil {
		return nil
	}
	if !info.Host {
		return fmt.Errorf("%w on a host device, which %s is not", quant.ErrBits, info.Name)
	}
	if err := quant.Check(bits); err != nil {
		return err
	}

	w.Quant = quant.New(w.Value, bits, info.Threads)
	return nil
}

// Widen is the value of a quantised matrix in memory of its own.
func (w *Weight) Widen(dev kernels.Device, threads int) (kernels.Mat, error) {
	q := w.Quant
	buf, err := dev.Alloc(q.DType, q.Rows*q.Cols)
	if err != nil {
		return kernels.Mat{}, err
	}
	m := kernels.MatOf(buf, q.Rows, q.Cols)
	q.Expand(m, threads)
	return m, nil
}
