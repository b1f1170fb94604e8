package mediate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
	"github.com/modelcompress/compress/safetensors"
)

// writeExperts makes the files of the experts from the finished dense model.
func (m *mediation) writeExperts(ctx context.Context, dir, side string) error {
	dense, err := safetensors.OpenDir(dir)
	if err != nil {
		return err
	}
	defer dense.Close()

	var choose, write []stream.Group
	files := make([]*safetensors.Writer, len(m.members))

	m.parts = nil
	for i := range m.Plan.Tensors {
		if !m.routed[i] {
			continue
		}

		it, keys, err := m.expertItem(i, dense)
		if err != nil {
			return err
		}

		parts := make([]*experts.Part, len(m.members))
		for k := range parts {
			parts[k] = experts.NewPart(it.Tensor.Name, it.Tensor.Shape, it.DType)
		}

		m.parts = append(m.parts, parts)
		choose = append(choose, stream.Group{Items: []*stream.Item{it}, Program: m.keep.Choose(it.Tensor, parts, keys)})
		write = append(write, stream.Group{Items: []*stream.Item{it}, Program: &method.Program{}})
	}

	if _, err := stream.Inspect(ctx, choose, m.Engine()); err != nil {
		return err
	}

	// What every form loses is known now, for all tensors: only together can they share the bytes.
	if m.keep.Kind == "best" {
		if err := m.keep.Settle(m.parts); err != nil {
			return err
		}

		for i, g := range choose {
			keys := experts.Keys(g.Items[0].Tensor.Name, m.names, m.Options.Seed)
			choose[i].Program = m.keep.Choose(g.Items[0].Tensor, m.parts[i], keys)
		}
		if _, err := stream.Inspect(ctx, choose, m.Engine()); err != nil {
			return err
		}
	}

	for k := range files {
		if len(m.parts) == 0 { // nothing is routed, so there is nothing to store
			break
		}
		if files[k], err = m.create(side, k); err != nil {
			return errors.Join(err, experts.Abort(files))
		}
	}

	for i, g := range write {
		it := g.Items[0]
		keys := experts.Keys(it.Tensor.Name, m.names, m.Options.Seed)
		write[i].Program = m.keep.Write(it.Tensor, m.parts[i], keys, files)
	}

	if _, err := stream.Inspect(ctx, write, m.Engine()); err != nil {
		return errors.Join(err, experts.Abort(files))
	}

	for _, parts := range m.parts {
		experts.Share(parts)
	}
	m.describe()

	for _, f := range files {
		if f == nil {
			continue
		}
		if err := f.Finish(); err != nil {
			return errors.Join(err, experts.Abort(files))
		}
	}

	return nil
}

// create lays out the file of a member.
func (m *mediation) create(side string, member int) (*safetensors.Writer, error) {
	parts := make([]*experts.Part, len(m.parts))
	for i := range parts {
		parts[i] = m.parts[i][member]
	}
	return experts.Create(filepath.Join(side, experts.FileOf(m.names[member])), parts,
		map[string]string{"expert": m.names[member], "job": m.manifest.Job})
}

// describe puts the parts into the manifest.
func (m *mediation) describe() {
	m.manifest.Experts = nil
	same := m.untouched()
	m.manifest.Routed = slices.DeleteFunc(m.manifest.Routed, func(name string) bool { return same[name] })

	for k, name := range m.names {
		e := member{Name: name, Tensors: map[string]experts.Part{}}
		if len(m.parts) > 0 {
			e.File = experts.FileOf(name)
		}
		for _, parts := range m.parts {
			if p := parts[k]; !same[p.Tensor] {
				e.Tensors[p.Tensor] = *p
			}
		}

		m.manifest.Experts = append(m.manifest.Experts, e)
	}
}

// untouched are the tensors in which every expert is the dense model: they need no room where experts change places.
func (m *mediation) untouched() map[string]bool {
	same := map[string]bool{}
	for _, parts := range m.parts {
		kept := func(p *experts.Part) bool { return p.Energy != 0 || p.Encoding != experts.Nothing }
		if !slices.ContainsFunc(parts, kept) {
			same[parts[0].Tensor] = true
		}
	}
	return same
}

// expertItem is the engine's view of a routed tensor: the dense model is the base, the experts are the inputs.
func (m *mediation) expertItem(i int, dense *safetensors.Dir) (*stream.Item, []*method.Tensor, error) {
	t := &m.Plan.Tensors[i]
	tensor := &method.Tensor{Name: t.Name, Shape: t.Shape, N: safetensors.Info{Shape: t.Shape}.Elements(), Base: true}
	it := &stream.Item{Tensor: tensor, DType: t.DType}
	for k, model := range m.members {
		for j := range t.Sources {
			s := &t.Sources[j]
			if s.Model != model {
				continue
			}

			src, err := m.Source(it, t, s)
			if err != nil {
				return nil, nil, err
			}

			it.X, it.Models = append(it.X, src), append(it.Models, m.names[k])
			tensor.Inputs = append(tensor.Inputs, method.Input{Model: model, Name: m.names[k]})
		}
	}

	if len(it.X) != len(m.members) {
		return nil, nil, fmt.Errorf("tensor %q: not every expert has it: %w", t.Name, merge.ErrMissing)
	}

	data, err := dense.Bytes(t.Name)
	if err != nil {
		return nil, nil, err
	}

	// a failing release costs memory alone
	it.Base, err = stream.NewMapped(data, t.DType, 0, func() { _ = dense.Release(t.Name) })
	it.Models = append(it.Models, "the dense model")
	return it, experts.Keys(t.Name, m.names, m.Options.Seed), err
}
