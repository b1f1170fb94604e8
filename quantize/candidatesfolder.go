package quantize

import (
	"context"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// ofFolder lists the matrices of a folder that runtimes run as one.
func (c *candidates) ofFolder(ctx context.Context) error {
	o := Options{Group: c.o.Group, Ignore: c.o.Ignore, Types: c.o.Fixed}
	for _, level := range c.o.Levels {
		if level != Keep {
			o.Scheme, _ = SchemeByName(level)
			break
		}
	}
	o.Out = "-"
	w, err := newWalk(ctx, c.m, corpus.Windows{}, o)
	if err != nil {
		return err
	}
	defer w.free()

	fixed := func(lin lm.Linear) bool {
		return slices.ContainsFunc(c.o.Fixed, func(r TypeRule) bool { return names(r.Pattern, module(lin.Name)) })
	}
	chosen := map[string]bool{}
	for _, list := range w.chosen {
		homes := map[joint]*candidate{}
		for _, lin := range list {
			chosen[lin.Name] = true
			if !fixed(lin) {
				if err := c.linear(w, lin, homes); err != nil {
					return fmt.Errorf("%s: tensor %q: %w", c.m.File(lin.Name), lin.Name, err)
				}
				continue
			}
			size, err := sizeAs(w, lin, w.o.schemeOf(module(lin.Name)))
			if err != nil {
				return err
			}
			c.rest += size
			c.weights += int64(lin.Out) * int64(lin.In)
		}
	}
	for _, name := range c.tensors.Names() {
		info, _ := c.tensors.Info(name)
		if !chosen[name] {
			c.beside += info.Size
		}
	}
	return nil
}

// linear adds a matrix to those that are run as one with it.
func (c *candidates) linear(w *walk, lin lm.Linear, homes map[joint]*candidate) error {
	one := member{name: lin.Name, rows: lin.Out, cols: lin.In, transposed: lin.Transposed}
	var sizes []levels.Level
	for _, level := range c.o.Levels {
		if level == Keep {
			info, _ := c.m.Info(lin.Name)
			sizes = append(sizes, levels.Level{Size: info.Size})
			one.round = append(one.round, func(kernels.Mat) error { return nil })
			continue
		}

		s, err := w.o.typed(TypeRule{Type: level})
		if err != nil {
			return err
		}
		size, err := sizeAs(w, lin, s)
		if err != nil {
			return err
		}
		sizes = append(sizes, levels.Level{Size: size})
		one.round = append(one.round, func(m kernels.Mat) error {
			g, err := w.gridOf(lin, s)
			if err != nil {
				return err
			}
			g.code = make([]byte, m.Len())
			g.roundQuotients()
			g.fit(m, 0, c.threads)
			g.roundAll(m, c.threads)
			return g.nonFinite()
		})
	}

	p := homes[jointOf(lin)]
	if p == nil {
		p = &candidate{levels: c.o.Levels}
		homes[jointOf(lin)] = p
		c.parts = append(c.parts, p)
		c.problem.Parts = append(c.problem.Parts, make([]levels.Level, len(sizes)))
	}
	at := slices.Index(c.parts, p)
	for k := range sizes {
		c.problem.Parts[at][k].Size += sizes[k].Size
	}

	values := int64(lin.Out) * int64(lin.In)
	p.names = append(p.names, module(lin.Name))
	p.members = append(p.members, one)
	p.weights += values
	c.weights += values
	return nil
}

// sizeAs is what a matrix takes in a scheme.
func sizeAs(w *walk, lin lm.Linear, s Scheme) (n int64, err error) {
	g, err := w.gridOf(lin, s)
	if err != nil {
		return 0, err
	}
	parts, err := s.parts(lin.Name, g)
	for _, one := range parts {
		n += one.Size
	}
	return n, err
}
