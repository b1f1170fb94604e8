package kinds

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Of makes a base of an open model.
func Of(m *lm.Model) (Base, error) {
	modules, err := adapter.ModulesOf(m)
	return open{m, modules}, err
}

// open is an open model as a [Base].
type open struct {
	m       *lm.Model
	modules []adapter.Module
}

// Modules implements [Base].
func (b open) Modules() []adapter.Module { return b.modules }

// Shapes implements [Base].
func (b open) Shapes() ([]string, map[string][]int64) {
	names, shapes := b.m.Tensors(), map[string][]int64{}
	for _, n := range names {
		info, _ := b.m.Info(n)
		shapes[n] = info.Shape
	}
	return names, shapes
}

// Values implements [Base].
func (b open) Values(name string) (kernels.Mat, error) {
	p, err := b.m.Param(name)
	if err != nil {
		return kernels.Mat{}, err
	}

	dev := b.m.Device()
	buf, err := dev.Alloc(kernels.F32, p.Len())
	if err != nil {
		return kernels.Mat{}, err
	}
	defer buf.Free()

	dev.Ops().Convert(kernels.MatOf(buf, p.Rows, p.Cols), p)
	h := kernels.MatOf(kernels.NewHost(kernels.F32, p.Len()), p.Rows, p.Cols)
	return h, dev.Download(h.Buf.Bytes(), buf, 0)
}
