package lm

import (
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/packed"
)

// bindPacked makes a packed parameter resident: as it is where it is multiplied, otherwise expanded. The lock is held.
func (m *Model) bindPacked(p *param) error {
	if !p.multiplied {
		return m.expand(p)
	}
	if !p.Sparse.IsZero() {
		return nil
	}
	var err error
	p.Sparse, p.view, err = p.packed.Load(m.dense, dtype.Of(p.stored), m.dev)
	return err
}

// quantise keeps the matrices of the blocks in few bits, if that is asked for.
func (m *Model) quantise(p *param) error {
	if m.opts.Bits == 0 || !p.linear || p.packed != nil {
		return nil
	}
	if err := p.Quantise(m.info, m.opts.Bits); err != nil {
		return m.tensorError(p.Name, err)
	}

	q := p.Quant
	_ = m.dense.Drop(p.Name) // a view is not needed any more
	m.drop(p)
	p.Quant = q
	return nil
}

// expand gives a packed parameter a dense value; others have theirs. The lock is held.
func (m *Model) expand(p *param) (err error) {
	switch {
	case p.Value.Buf != nil:
	case p.Quant != nil:
		p.Value, err = p.Widen(m.dev, m.info.Threads)
	case p.packed != nil:
		p.Value, err = p.packed.Expand(m.dense, p.Sparse, dtype.Of(p.stored), m.dev)
	case p.kept:
		p.Value, err = m.decode(p) // what the format says that the values are, to the bit
	}
	return err
}

// forgetPacked gives the memory of a packed parameter back; views of the files stay. The lock is held.
func (m *Model) forgetPacked(p *param) {
	if p.Quant == nil {
		err := p.packed.Release(m.dense) // some parts may be views though not all are
		if err != nil || !p.view {
			m.drop(p)
			return
		}
		packed.Changed(p.Sparse)
	}

	if p.Value.Buf != nil {
		p.Value.Buf.Free()
		p.Value = kernels.Mat{}
	}
}
