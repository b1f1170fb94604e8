package ggufmodel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/lm/arch"
)

// IsAdapter reports whether a file is an adapter of llama.cpp's.
func IsAdapter(f *gguf.File) bool {
	v, _ := f.Metadata().Get("general.type")
	kind, _ := v.Text()
	return kind == "adapter"
}

// ReadAdapter gives the changes that an adapter makes of a model's parameters, by the names of [arch.Resolve], of which
// params is the result. Everything in the file must fit the model; the errors are around this package's.
func ReadAdapter(f *gguf.File, c *arch.Config, params []arch.Param) (map[string]Change, error) {
	r := &adapterReader{file: f, changes: map[string]Change{}, used: map[string]bool{}}
	if err := r.metadata(c); err != nil {
		return nil, err
	}
	targets, err := targetsOf(f.Path(), c, params)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		if err := r.target(t); err != nil {
			return nil, err
		}
	}

	var extra []string
	for _, name := range f.Names() {
		if !r.used[name] {
			extra = append(extra, name)
		}
	}
	if len(extra) > 0 {
		return nil, &Error{File: f.Path(), Tensor: extra[0], Err: ErrExtra, Detail: listed(extra)}
	}

	return r.changes, nil
}

// adapterReader takes an adapter apart.
type adapterReader struct {
	file    *gguf.File
	alpha   float64
	changes map[string]Change
	used    map[string]bool // names of tensors
}

// metadata reads what the file says of itself.
func (r *adapterReader) metadata(c *arch.Config) error {
	meta := r.file.Metadata()
	text := func(key string) string {
		v, _ := meta.Get(key)
		s, _ := v.Text()
		return s
	}
	fault := func(key, format string, args ...any) error {
		return &Error{File: r.file.Path(), Key: key, Err: ErrMetadata, Detail: fmt.Sprintf(format, args...)}
	}

	if name := text("general.architecture"); name != c.GGUFName() {
		return fault("general.architecture", "the adapter is of a %.60q, the model is written as %q", name,
			c.GGUFName())
	}
	if kind := text("adapter.type"); !IsAdapter(r.file) || kind != "lora" {
		return fault("adapter.type", "%.60q, want an adapter of type lora", kind)
	}
	if _, ok := meta.Get("adapter.alora.invocation_tokens"); ok {
		return fault("adapter.alora.invocation_tokens", "it acts behind certain tokens only")
	}

	v, ok := meta.Get("adapter.lora.alpha")
	if r.alpha, _ = v.Float(); ok && r.alpha-r.alpha != 0 {
		return fault("adapter.lora.alpha", "%v", v)
	}
	return nil
}

// target reads the change of a tensor, if there is one.
func (r *adapterReader) target(t *Target) error {
	infoA, hasA := r.file.Info(t.Name + loraA)
	infoB, hasB := r.file.Info(t.Name + loraB)
	if !hasA && !hasB {
		return nil
	}

	r.used[t.Name+loraA] = true
	r.used[t.Name+loraB] = true
	fault := func(err error, format string, args ...any) error {
		return &Error{File: r.file.Path(), Tensor: t.Name, Err: err, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case !hasA || !hasB:
		return fault(ErrMissing, "it has one of its two factors")
	case len(infoB.Shape) < 2 || infoB.Cols() < 1:
		return fault(ErrShape, "factors %v and %v, want matrices", infoA.Shape, infoB.Shape)
	case len(t.Shape) == 1 || t.flipped || len(t.matrices) > 1 && len(t.Shape) != 3:
		return fault(ErrExtra, "adapters do not change it")
	}

	p := &AdapterPair{target: t, table: t.Role == arch.Embed}
	p.Rank = int(infoB.Cols())
	p.shapes()
	if !slices.Equal(infoA.Shape, p.A) || !slices.Equal(infoB.Shape, p.B) {
		return fault(ErrShape, "factors %v and %v, want %v and %v", infoA.Shape, infoB.Shape, p.A, p.B)
	}

	a, err := r.values(t.Name + loraA)
	if err != nil {
		return err
	}
	b, err := r.values(t.Name + loraB)
	if err != nil {
		return err
	}
	return r.matrices(p, a, b)
}

// values decodes a tensor.
func (r *adapterReader) values(name string) ([]float32, error) {
	info, _ := r.file.Info(name)
	if !decodable(&info) {
		return nil, &Error{
			File: r.file.Path(), Tensor: name, Err: ErrShape,
			Detail: fmt.Sprintf("%v of shape %v has no values that are decoded", info.Type, info.Shape),
		}
	}

	x := make([]float32, info.Rows()*info.Cols())
	err := r.file.View(name, func(data []byte) error { return info.Type.Decode(x, data) })
	if err != nil {
		return nil, &Error{File: r.file.Path(), Tensor: name, Err: err}
	}
	if i := dtype.NonFinite(x); i >= 0 {
		return nil, &Error{
			File: r.file.Path(), Tensor: name, Err: ErrValue, Detail: fmt.Sprintf("element %d is %v", i, x[i]),
		}
	}
	return x, nil
}

// matrices makes changes of the factors of a tensor: of what lies one above the other in a matrix, each has the rows of
// lora_b that are its own.
func (r *adapterReader) matrices(p *AdapterPair, a, b []float32) error {
	scale := 1.0 // as llama.cpp has it without an alpha
	if r.alpha != 0 {
		scale = r.alpha / float64(p.Rank)
	}
	if p.table {
		left := a
		a = turned(b, p.target.width, p.Rank)
		b = left
	}

	t := p.target
	for m, slots := range t.matrices {
		right := a[m*p.Rank*t.width:][:p.Rank*t.width]
		below := b[m*p.Rank*t.height:][:p.Rank*t.height]
		for i := range slots {
			s := &slots[i]
			rows := s.height
			if s.transposed {
				rows = s.width
			}
			if _, twice := r.changes[s.source]; twice || rows != s.rows {
				return &Error{
					File: r.file.Path(), Tensor: t.Name, Err: ErrExtra,
					Detail: fmt.Sprintf("%s is spread over several tensors, whose changes have no common factor",
						strings.TrimSuffix(s.source, ".weight")),
				}
			}

			left := make([]float32, rows*p.Rank)
			for row := range s.rows {
				copy(left[s.at(row)*p.Rank:][:p.Rank], below[(s.first+row)*p.Rank:])
			}
			r.changes[s.source] = Change{
				Rank: p.Rank, Scale: scale,
				Factors: func() ([]float32, []float32, error) { return left, right, nil },
			}
		}
	}
	return nil
}
