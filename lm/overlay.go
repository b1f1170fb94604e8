package lm

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// Overlay is a [Delta] that acts on the [Work] of a [Batch] that names it, instead of on all: an adapter of some
// sequences, beside others and the model itself in one pass. [Model.Overlay] makes it; it is never changed, and may be
// used by several batches of the model.
type Overlay struct {
	m  *Model
	of map[*layer.Linear]layer.Delta
	d  Delta
}

// LowRank is a [Delta] whose change of a linear may be a product of low rank and nothing else. Such changes are
// computed together for rows of several overlays.
type LowRank interface {
	// LowRank gives the factors, or reports that the change is more than their product.
	LowRank(l Linear) (pair kernels.LowRank, ok bool)
}

// Overlay prepares a delta of the named linears ([Linear].Name), or of all when none is named. Its Forward gets rows of
// the work that names the overlay alone, and must give a row the same whatever other rows there are, but for how sums
// of products are ordered.
func (m *Model) Overlay(d Delta, names ...string) (*Overlay, error) {
	chosen, err := m.choose(names)
	if err != nil {
		return nil, err
	}

	o := &Overlay{m: m, of: make(map[*layer.Linear]layer.Delta, len(chosen)), d: d}
	low, _ := d.(LowRank)
	for _, l := range chosen {
		o.of[l.at] = attached{l.Linear, d}
		if low == nil {
			continue
		}
		if pair, ok := low.LowRank(l.Linear); ok {
			o.of[l.at] = lowRank{attached{l.Linear, d}, pair}
		}
	}
	return o, nil
}

// MemorySize is how many bytes of memory the delta takes, if it has a method of this name that says it; 0 otherwise.
func (o *Overlay) MemorySize() int64 {
	if d, ok := o.d.(interface{ MemorySize() int64 }); ok {
		return d.MemorySize()
	}
	return 0
}

// lowRank is an attached delta that is a product of low rank.
type lowRank struct {
	attached
	pair kernels.LowRank
}

// LowRank implements [layer.LowRank].
func (a lowRank) LowRank() (kernels.LowRank, bool) { return a.pair, true }

// choose finds linears by name; all where none is named.
func (m *Model) choose(names []string) ([]linear, error) {
	wanted := make(map[string]bool, len(names))
	for _, n := range names {
		wanted[n] = true
	}

	var chosen []linear
	for _, b := range m.blocks {
		for _, l := range b.linears {
			if len(names) == 0 || wanted[l.Name] {
				chosen = append(chosen, l)
			}
		}
	}

	// A name that fits nothing would leave the model as it is, without a word.
	for _, n := range names {
		if !slices.ContainsFunc(chosen, func(l linear) bool { return l.Name == n }) {
			return nil, fmt.Errorf("%s: %.200q is not a linear of a block: %w", m.dir, n, ErrUnknownTensor)
		}
	}
	return chosen, nil
}
