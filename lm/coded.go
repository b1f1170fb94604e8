package lm

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcompress/compress/kernels"
)

// keeps reports whether a parameter stays in the bits in which it is stored: all uses that it has must know how to
// compute with them. A table is one that rows are looked up in, or that logits are products with.
func (m *Model) keeps(p *param, table bool) bool {
	return !m.opts.Decode && m.opts.Bits == 0 && (p.multiplied || table) && p.packed == nil &&
		m.dense.Kernel(p.Name) != 0
}

// bindCoded makes a parameter resident in its bits. The lock is held.
func (m *Model) bindCoded(p *param) error {
	if !p.Coded.IsZero() {
		return nil
	}

	w, view, err := m.dense.Codes(p.Name)
	if err != nil {
		return err
	}
	if m.host {
		p.Coded, p.view = w, view
		return nil
	}

	if p.Coded, err = m.uploadCoded(w, view); err != nil {
		return m.tensorError(p.Name, err)
	}
	if view {
		_ = m.dense.Drop(p.Name) // the copy is what counts now
	}
	return nil
}

// uploadCoded copies the parts of a matrix in its bits to a device that is not host memory.
func (m *Model) uploadCoded(w kernels.Quantised, view bool) (kernels.Quantised, error) {
	made := w
	for _, x := range []*kernels.Mat{&made.Data, &made.Scales, &made.Zeros} {
		if x.Buf == nil {
			continue
		}

		from := x.Buf
		to, err := m.dev.Alloc(from.DType, from.Len)
		x.Buf = to
		if err == nil {
			err = m.dev.Upload(to, 0, from.Bytes())
		}
		if err != nil {
			for _, other := range []kernels.Mat{made.Data, made.Scales, made.Zeros} {
				if other.Buf != nil && other.Buf.Addr != 0 {
					other.Buf.Free()
				}
			}
			return kernels.Quantised{}, err
		}
		if view && from == w.Data.Buf {
			kernels.Keep(m.dev, to, from.Bytes())
		}
	}
	return made, nil
}

// forgetCoded gives the memory of a parameter back that is kept in its bits: a view of the files stays. The lock is
// held.
func (m *Model) forgetCoded(p *param) {
	if p.Value.Buf != nil {
		p.Value.Buf.Free()
		p.Value = kernels.Mat{}
	}

	if !p.view || m.dense.Drop(p.Name) != nil {
		m.drop(p)
		return
	}
	p.Coded.Data.Buf.Changed()
}

// freeCoded ends the residence of a matrix in its bits.
func freeCoded(w *kernels.Quantised) {
	for _, m := range []kernels.Mat{w.Data, w.Scales, w.Zeros} {
		if m.Buf != nil {
			m.Buf.Free()
		}
	}
	*w = kernels.Quantised{}
}

// Residence says how quantised matrices of a model are in memory: how many of each format, by the names that
// [Model.Quantisation] has for them.
type Residence struct {
	Kept    map[string]int `json:"kept,omitempty"`    // in their bits
	Decoded map[string]int `json:"decoded,omitempty"` // as floats
}

// Residence tells which of the model's quantised matrices stay in the bits in which they are stored.
func (m *Model) Residence() Residence {
	r := Residence{Kept: map[string]int{}, Decoded: map[string]int{}}
	for _, name := range m.names {
		stored, _ := m.dense.Place(name)
		matrix := m.source.Matrix(stored)
		switch {
		case matrix == nil || m.params[name].rows == 1:
		case m.params[name].kept:
			r.Kept[matrix.Format]++
		default:
			r.Decoded[matrix.Format]++
		}
	}
	return r
}

// String says it in a line; empty where nothing is quantised.
func (r Residence) String() string {
	var parts []string
	if len(r.Kept) > 0 {
		parts = append(parts, "computed with as stored: "+counted(r.Kept))
	}
	if len(r.Decoded) > 0 {
		parts = append(parts, "decoded to floats in memory: "+counted(r.Decoded))
	}
	return strings.Join(parts, "; ")
}

// counted lists formats with their numbers, by name.
func counted(of map[string]int) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list = append(list, fmt.Sprintf("%d %s", of[name], name))
	}
	return strings.Join(list, ", ")
}
