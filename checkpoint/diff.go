package checkpoint

import (
	"context"

	"github.com/modelcompress/compress/kernels"
)

// DiffOptions say how two checkpoints are compared.
type DiffOptions struct {
	All bool // list equal tensors too, which otherwise are only counted
	// Device converts types and looks at values, if it works on the host's memory; otherwise, and if it is nil, the
	// CPU does.
	Device   kernels.Device
	Progress func(name string, done, total int64) // told how far the work is; nil: nobody wants to know
}

// Difference is how two checkpoints differ.
type Difference struct {
	A       string       `json:"a"`
	B       string       `json:"b"`
	Equal   bool         `json:"equal"` // same names, types, shapes and values
	Same    int          `json:"equal_tensors"`
	OnlyA   []string     `json:"only_a"`
	OnlyB   []string     `json:"only_b"`
	Tensors []TensorDiff `json:"tensors"`
}

// TensorDiff compares one tensor that both have.
type TensorDiff struct {
	Name     string   `json:"name"`
	Form     string   `json:"form,omitempty"` // how types or shapes differ
	Compared bool     `json:"compared"`       // false where the shapes differ
	Changed  int64    `json:"changed"`        // elements
	Elements int64    `json:"elements"`
	MaxAbs   *float64 `json:"max_abs"`  // largest |a-b|; null where that is no number
	Relative *float64 `json:"relative"` // |a-b| / |a|, Euclidean norms
}

// Diff compares two checkpoints, folders, .safetensors or .gguf files, element by element; experts count as tensors of
// their own, however they are stored.
func Diff(ctx context.Context, pathA, pathB string, o DiffOptions) (*Difference, error) {
	e := env{o.Device, o.Progress}
	a, err := openApart(ctx, pathA)
	if err != nil {
		return nil, err
	}
	defer a.Close()

	b, err := openApart(ctx, pathB)
	if err != nil {
		return nil, err
	}
	defer b.Close()

	if err := alike(a, b); err != nil {
		return nil, err
	}

	c, err := newComparer(ctx, e.device)
	if err != nil {
		return nil, err
	}

	r := &Difference{A: pathA, B: pathB, OnlyA: []string{}, OnlyB: []string{}, Tensors: []TensorDiff{}}
	for i, name := range a.Names() {
		e.progress("comparing", int64(i), int64(len(a.Names())))
		x, _ := a.Info(name)
		y, ok := b.Info(name)
		if !ok {
			r.OnlyA = append(r.OnlyA, name)
			continue
		}

		t, err := c.compare(a, b, x, y)
		if err != nil {
			return nil, err
		}

		if r.Same += count(t.Same()); o.All || !t.Same() {
			r.Tensors = append(r.Tensors, t)
		}
	}

	for _, name := range b.Names() {
		if _, ok := a.Info(name); !ok {
			r.OnlyB = append(r.OnlyB, name)
		}
	}

	r.Equal = r.Same == len(a.Names()) && len(r.OnlyB) == 0
	return r, nil
}

// alike refuses GGUF files that are shown as they are stored, unless both are and every value can be had: names and
// rows of one that is understood are others.
func alike(a, b *apart) error {
	for _, x := range []*apart{a, b} {
		if x.reason != nil && (a.reason == nil || b.reason == nil || len(x.Opaque()) > 0) {
			return x.reason
		}
	}
	return nil
}

// Same reports whether there is no difference at all.
func (t *TensorDiff) Same() bool { return t.Form == "" && t.Changed == 0 }
