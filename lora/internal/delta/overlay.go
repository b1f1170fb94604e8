package delta

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// apart reports, by a nil error, whether an adapter can act on some rows of a pass: it changes matrices of blocks by
// low-rank factors, and nothing that all rows share.
func apart(a *adapter.Adapter) error {
	if len(a.Whole)+len(a.Rows) > 0 {
		return fmt.Errorf("%w: it trains whole tensors, which all rows of a pass share", adapter.ErrUnsupported)
	}
	for _, l := range a.Low {
		if !l.Module.Linear() || l.Module.Block < 0 {
			return fmt.Errorf("%w: it changes %s, which all rows of a pass share", adapter.ErrUnsupported,
				l.Module.Path)
		}
	}
	return nil
}

// Overlay is the adapter for single sequences of a batch; nil where it was attached to the whole model.
func (r *Runtime) Overlay() *lm.Overlay { return r.over }

// lay makes the overlay, and lets go of the parameters, of which the factors are copies.
func (r *Runtime) lay(names []string) error {
	var err error
	if r.over, err = r.m.Overlay(linears{r}, names...); err != nil {
		r.Detach()
		return err
	}

	r.a = &adapter.Adapter{Config: r.a.Config}
	for _, m := range r.modules {
		low := *m.low
		low.Factors = nil
		low.Bias = nil
		low.Magnitude = nil
		m.low = &low
	}
	return nil
}

// MemorySize is how many bytes of memory the factors take, and what DoRA knows about the matrices.
func (r *Runtime) MemorySize() int64 {
	n := int64(0)
	for _, m := range r.modules {
		// fa and fb have no memory of their own: they are a and bt, or ownA and ownB.
		for _, x := range []kernels.Mat{m.a, m.bt, m.ownA, m.ownB, m.bias} {
			if x.Buf != nil {
				n += int64(x.Buf.Len) * int64(x.DType().Size())
			}
		}
		if s := m.elements; s != nil {
			n += 12 * int64(len(s.Rows))
		}
		if d := m.dora; d != nil {
			n += 8*int64(len(d.squares)) + 4*int64(len(d.norm)+len(d.gain)+len(d.bias))
		}
	}
	return n
}

// LowRank implements [lm.LowRank]: what DoRA, a bias and the zeros of the base make of a change is more than a product.
func (r *Runtime) LowRank(l lm.Linear) (kernels.LowRank, bool) {
	m := r.modules[l.Name]
	if m == nil || m.dora != nil || !m.bias.IsZero() || r.keeps() || m.fa.IsZero() {
		return kernels.LowRank{}, false
	}
	return kernels.LowRank{A: m.fa, B: m.fb}, m.fa.DType() == kernels.F32 && m.fb.DType() == kernels.F32
}
