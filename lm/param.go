package lm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/internal/layer"
	"github.com/modelcompress/compress/lm/internal/packed"
	"github.com/modelcompress/compress/safetensors"
)

// param is one tensor of the model and where its value is.
type param struct {
	layer.Weight // name, and the value on the device; zero: not resident

	block      int // -1 outside of blocks
	rows, cols int // storage layout; one-dimensional tensors are [1, n]
	stored     safetensors.DType

	packed     *packed.Matrix // how the file has it; nil: as it is
	linear     bool           // a matrix of a block
	multiplied bool           // kept packed: what multiplies with it can
	kept       bool           // quantised, and multiplied in its bits

	view  bool   // the value is a view of the file mapping
	owned bool   // the value differs from the file: only this copy has it
	saver *Saver // holds the changed value, once saved
	users int    // passes that run on it now
}

func newParam(a arch.Param, stored safetensors.DType) *param {
	p := &param{
		Weight: layer.Weight{Name: a.Name}, block: a.Block, stored: stored, rows: 1, cols: int(a.Shape[len(a.Shape)-1]),
	}
	if len(a.Shape) == 2 {
		p.rows = int(a.Shape[0])
	}
	return p
}

// group is the parameters that are needed at the same time.
type group []*param

// Param gives the current value of a parameter in storage layout; a one-dimensional tensor is [1, n]. It must
// not be changed, and with [Options].Stream it is only good until the next pass through its block. A packed or
// quantised matrix is expanded; the expanded copy stays, beside the packed one, until [Model.ReleaseBlock].
func (m *Model) Param(name string) (kernels.Mat, error) {
	p, err := m.param(name)
	if err != nil {
		return kernels.Mat{}, err
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	if err := m.bind(p); err != nil {
		return kernels.Mat{}, err
	}
	if err := m.expand(p); err != nil {
		return kernels.Mat{}, err
	}

	return p.Value, nil
}

// MutableParam gives an owned copy of a parameter that may be changed, through operations or directly followed by
// [kernels.Buffer.Changed]. The first call copies, from the file where that is possible, so that no second copy of the
// matrix is in memory; later ones give the same matrix. The model computes with the new value at once.
func (m *Model) MutableParam(name string) (kernels.Mat, error) {
	p, err := m.param(name)
	if err != nil {
		return kernels.Mat{}, err
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	switch {
	case p.packed != nil, p.kept && p.Value.Buf != nil:
		err = m.expand(p)
	case m.host && p.saver == nil && p.stored != safetensors.F64 && (p.view || p.Value.Buf == nil):
		err = m.readOwned(p)
	default:
		err = m.bindDense(p) // a copy of the file already, or made here
	}
	if err != nil {
		return kernels.Mat{}, err
	}

	packed.Free(&p.Sparse)
	freeCoded(&p.Coded)
	p.view = false
	p.owned = true
	p.saver = nil

	return p.Value, nil
}

// Restore gives parameters the values of the files again: what was changed in memory is lost, and its memory is given
// back. No pass may run.
func (m *Model) Restore(names ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	for _, name := range names {
		p, err := m.param(name)
		if err != nil {
			return err
		}
		if p.view {
			_ = m.dense.Drop(p.Name) // its pages, which nobody would give back without the view
		}
		m.drop(p)
		p.saver = nil
	}

	return nil
}

// readOwned reads a parameter from its file into memory of its own. The lock is held.
func (m *Model) readOwned(p *param) error {
	buf, err := m.dev.Alloc(dtype.Of(p.stored), p.rows*p.cols)
	if err != nil {
		return m.tensorError(p.Name, err)
	}

	if _, err := m.dense.ReadAt(p.Name, buf.Bytes(), 0); err != nil {
		buf.Free()
		return err
	}
	if p.view || m.dense.Decoded(p.Name) {
		_ = m.dense.Drop(p.Name) // the copy is what counts now
	}

	m.drop(p)
	p.Value = kernels.MatOf(buf, p.rows, p.cols)
	return nil
}

// WidenParam lets an F32 copy of a parameter, which may be changed like that of [Model.MutableParam], stand for
// it until undo is called: so a change smaller than the stored type resolves counts too. No pass may run at
// either moment, and of several copies the latest is undone first.
func (m *Model) WidenParam(name string) (v kernels.Mat, undo func(), err error) {
	if v, err = m.Param(name); err == nil {
		v, err = m.converted(name, v, kernels.F32)
	}
	if err != nil {
		return kernels.Mat{}, nil, err
	}

	p := m.params[name]
	was := *p
	p.Value = v
	p.Sparse = kernels.Sparse{}
	p.Coded = kernels.Quantised{}

	p.Quant = nil
	p.view = false
	p.owned = true
	p.saver = nil

	return v, func() {
		m.drop(p)
		*p = was
	}, nil
}

// converted gives a copy of a value as numbers of a type.
func (m *Model) converted(name string, v kernels.Mat, t kernels.DType) (kernels.Mat, error) {
	buf, err := m.dev.Alloc(t, v.Len())
	if err != nil {
		return kernels.Mat{}, m.tensorError(name, err)
	}
	c := kernels.MatOf(buf, v.Rows, v.Cols)
	m.ops.Convert(c, v)
	return c, nil
}

// Untie gives a model whose head is its token table a head of its own, a copy under the name that such a
// checkpoint has for it, until undo is called. No pass may run at either moment. The error wraps
// [ErrUnknownTensor] where there is nothing to untie.
func (m *Model) Untie() (name string, undo func(), err error) {
	name = m.config.Arch.HeadName()
	if m.head != m.embed || name == "" {
		return "", nil, fmt.Errorf("%s: %w: no head besides the token table", m.dir, ErrUnknownTensor)
	}

	v, err := m.Param(m.embed.Name)
	if err == nil {
		v, err = m.converted(name, v, v.DType())
	}
	if err != nil {
		return "", nil, err
	}

	p := &param{
		Weight: layer.Weight{Name: name, Value: v}, block: -1, rows: v.Rows, cols: v.Cols,
		stored: m.embed.stored, owned: true,
	}

	// The old list is kept as it was, since undo puts it back.
	tied := m.output
	m.output = append(slices.DeleteFunc(slices.Clone(tied), func(p *param) bool { return p == m.embed }), p)
	m.head, m.params[name] = p, p

	return name, func() {
		m.head, m.output = m.embed, tied
		delete(m.params, name)
		v.Buf.Free()
	}, nil
}

// ReleaseBlock gives the memory of a block's weights back: pages of the files, copies and what backends
// derived. They come back when needed. Changed weights stay, except with dropSaved those that a [Saver] has
// written, which are then read from there.
func (m *Model) ReleaseBlock(l int, dropSaved bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.release(m.blocks[l].params, dropSaved)
}

// hold makes the parameters of a group resident for a pass.
func (m *Model) hold(g group) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	// All of them first, so that nobody is counted for a group that could not be held.
	for _, p := range g {
		if err := m.bind(p); err != nil {
			return err
		}
	}

	for _, p := range g {
		p.users++
	}

	return nil
}

// done ends a pass over a group.
func (m *Model) done(g group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range g {
		p.users--
	}
	if m.opts.Stream {
		m.release(g, false)
	}
}

// release drops what the files can give again and nobody is using. The lock is held.
func (m *Model) release(g group, dropSaved bool) {
	for _, p := range g {
		if p.users == 0 && (!p.owned || dropSaved && p.saver != nil) {
			m.forget(p)
		}
	}
}

// forget gives the memory of a parameter back. A view stays: it is valid and costs nothing. The lock is held.
func (m *Model) forget(p *param) {
	switch {
	case p.packed != nil || p.Quant != nil:
		m.forgetPacked(p)
		return
	case !p.Coded.IsZero():
		m.forgetCoded(p)
		return
	}

	if p.Value.Buf == nil || !p.view {
		m.drop(p)
		return
	}

	p.Value.Buf.Changed()
	if m.dense.Drop(p.Name) != nil {
		m.drop(p)
	}
}

// drop ends a parameter's residence, whatever it is. The lock is held.
func (m *Model) drop(p *param) {
	if p.Value.Buf != nil {
		p.Value.Buf.Free()
	}
	packed.Free(&p.Sparse)
	freeCoded(&p.Coded)
	p.Value = kernels.Mat{}
	p.Quant = nil
	p.view = false
	p.owned = false
}

// bind makes a parameter resident. The lock is held.
func (m *Model) bind(p *param) error {
	switch {
	case p.packed != nil && !p.owned:
		return m.bindPacked(p)
	case p.kept && !p.owned && p.saver == nil:
		return m.bindCoded(p)
	}
	return m.bindDense(p)
}

// bindDense makes a parameter that is neither packed nor kept in its bits resident. The lock is held.
func (m *Model) bindDense(p *param) error {
	if p.Value.Buf != nil || p.Quant != nil {
		return nil
	}

	var err error
	if p.saver != nil {
		p.Value, err = p.saver.load(p)
		p.owned = err == nil
		return err
	}

	if m.dense.Decoded(p.Name) {
		p.Value, err = m.decode(p)
		return err
	}

	data, err := m.dense.Bytes(p.Name)
	if err != nil {
		return err
	}

	// On the host the mapped file is the weight: nothing is read before it is used, and the system may drop its pages.
	t := dtype.Of(p.stored)
	if m.host && t != kernels.F64 {
		buf, err := kernels.Wrap(t, data)
		if err == nil {
			p.Value, p.view = kernels.MatOf(buf, p.rows, p.cols), true
			return nil
		}

		if !errors.Is(err, kernels.ErrMisaligned) {
			return m.tensorError(p.Name, err)
		}
	}

	p.Value, err = m.upload(p, t, data)
	return err
}

// decodePiece is how many bytes of a quantised matrix are decoded at a time on their way to a device.
const decodePiece = 32 << 20

// decode makes a device's copy of a quantised parameter: in its place where the device has the host's memory, otherwise
// piece by piece.
func (m *Model) decode(p *param) (kernels.Mat, error) {
	t, n := dtype.Of(p.stored), p.rows*p.cols
	buf, err := m.dev.Alloc(t, n)
	if err != nil {
		return kernels.Mat{}, m.tensorError(p.Name, err)
	}

	if m.host {
		_, err = m.dense.ReadAt(p.Name, buf.Bytes(), 0)
	} else {
		piece := make([]byte, min(decodePiece, n*t.Size()))
		for at := 0; err == nil && at < n*t.Size(); at += len(piece) {
			piece = piece[:min(len(piece), n*t.Size()-at)]
			if _, err = m.dense.ReadAt(p.Name, piece, int64(at)); err == nil {
				err = m.dev.Upload(buf, at/t.Size(), piece)
			}
		}
	}
	if err != nil {
		buf.Free()
		return kernels.Mat{}, err
	}

	_ = m.dense.Drop(p.Name) // the copy is what counts now
	return kernels.MatOf(buf, p.rows, p.cols), nil
}

// upload copies stored bytes to the device; F64 becomes F32.
func (m *Model) upload(p *param, t kernels.DType, data []byte) (kernels.Mat, error) {
	buf, err := m.dev.Alloc(t, p.rows*p.cols)
	if err != nil {
		return kernels.Mat{}, m.tensorError(p.Name, err)
	}

	if err := m.dev.Upload(buf, 0, data); err != nil {
		return kernels.Mat{}, m.tensorError(p.Name, err)
	}

	mat := kernels.MatOf(buf, p.rows, p.cols)
	kernels.Keep(m.dev, buf, data)
	if t != kernels.F64 {
		return mat, nil
	}
	defer buf.Free()

	return m.converted(p.Name, mat, kernels.F32)
}

// tensorError names the file and the tensor of a failure.
func (m *Model) tensorError(name string, err error) error {
	return fmt.Errorf("%s: tensor %q: %w", m.dense.File(name), name, err)
}
