package lm

import (
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
	p.Sparse, p.view, err = m.dense.Load(p.packed, dtypes[p.stored], m.dev)
	return err
}

// expand gives a packed parameter a dense value; others have theirs. The lock is held.
func (m *Model) expand(p *param) error {
	if p.packed == nil || p.Value.Buf != nil {
		return nil
	}
	var err error
	p.Value, err = m.dense.Expand(p.packed, p.Sparse, dtypes[p.stored], m.dev)
	return err
}

// forgetPacked gives the memory of a packed parameter back; views of the files stay. The lock is held.
func (m *Model) forgetPacked(p *param) {
	err := m.dense.Release(p.packed) // some parts may be views though not all are
	if err != nil || !p.view {
		m.drop(p)
		return
	}
	packed.Changed(p.Sparse)
	if p.Value.Buf != nil {
		p.Value.Buf.Free()
		p.Value = kernels.Mat{}
	}
}
