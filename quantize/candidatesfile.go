package quantize

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/quantize/internal/typemix"
)

// ofFile lists the tensors of a GGUF file that llama.cpp would quantise.
func (c *candidates) ofFile(ctx context.Context) error {
	every, _ := SchemeByName("q8_0") // which has a type for any of them
	f, err := openFile(ctx, c.m.Path(), FileOptions{Scheme: every, Importance: c.o.Importance})
	if err != nil {
		return err
	}
	c.file = f
	if err := f.assign(); err != nil {
		return err
	}
	if err := f.checkImportance(); err != nil {
		return err
	}

	linears := map[string]lm.Linear{}
	for l := range c.m.Blocks() {
		for _, lin := range c.m.Linears(l) {
			linears[lin.Name] = lin
		}
	}

	homes := map[string]*candidate{} // by tensors of the model
	fixed := make([]bool, len(c.o.Fixed))
	for i, t := range f.export.Tensors {
		values := int64(t.Rows()) * int64(t.Cols())
		c.weights += values
		as, err := c.fixedType(t.Name, f.types[i], fixed)
		if err != nil {
			return err
		}
		if kept := f.kept(t); as != "" || f.types[i] == kept {
			if as == "" {
				as = kept
			}
			_, block, err := typeNamed(as)
			if err != nil {
				return err
			}
			c.rest += int64(block.Size(int(values)))
			continue
		}
		if err := c.target(t, linears, homes); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return unused(c.o.Fixed, fixed)
}

// fixedType is the type that a rule gives a tensor; "" for none.
func (c *candidates) fixedType(name, now string, used []bool) (as string, err error) {
	for i, r := range c.o.Fixed {
		if ok, _ := path.Match(r.Pattern, name); !ok || now == "F32" {
			continue
		}
		_, block, err := typeNamed(r.Type)
		if err != nil {
			return "", err
		}
		as = block.Name
		used[i] = true
	}
	return as, nil
}

func unused(rules []TypeRule, used []bool) error {
	for i, ok := range used {
		if !ok {
			return fmt.Errorf("%w: type %s: no matrix is named like %q", ErrOptions, rules[i].Type, rules[i].Pattern)
		}
	}
	return nil
}

// target adds a tensor of a GGUF file: to the others that are made of the same tensors of the model, if there are any.
func (c *candidates) target(t *ggufmodel.Target, linears map[string]lm.Linear, homes map[string]*candidate) error {
	var p *candidate
	for _, source := range t.Sources {
		if homes[source] != nil {
			p = homes[source]
		}
	}
	var sizes []levels.Level
	var names []string
	var blocks []*quantized.Block
	for _, level := range c.o.Levels {
		_, block, err := typeNamed(level)
		if err != nil {
			return err
		}
		if _, block, err = typeNamed(typemix.Fit(block.Name, uint64(t.Cols()))); err != nil {
			return err
		}
		names = append(names, strings.ToLower(block.Name))
		blocks = append(blocks, block)
		sizes = append(sizes, levels.Level{Size: int64(block.Size(t.Rows() * t.Cols()))})
	}

	if p == nil {
		p = &candidate{levels: names}
		c.parts = append(c.parts, p)
		c.problem.Parts = append(c.problem.Parts, sizes)
	} else {
		if !slices.Equal(p.levels, names) {
			return fmt.Errorf("%w: it shares a tensor of the model with %q, which cannot have the same types",
				ErrLayout, p.names[0])
		}
		at := slices.Index(c.parts, p)
		for k := range sizes {
			c.problem.Parts[at][k].Size += sizes[k].Size
		}
	}
	p.names = append(p.names, t.Name)
	p.weights += int64(t.Rows()) * int64(t.Cols())

	for k, source := range t.Sources {
		if homes[source] != nil {
			continue
		}
		homes[source] = p
		one, err := c.member(source, linears)
		if err != nil {
			return err
		}
		if one.cols != t.Cols() {
			return fmt.Errorf("%w: rows of %d are made of %q, whose rows have %d", ErrLayout, t.Cols(), source,
				one.cols)
		}
		for _, block := range blocks {
			var weigh []float32
			if f := c.file.importance(t, block); f != nil {
				weigh = f(k)
			}
			one.round = append(one.round, c.asBlocks(block, weigh))
		}
		p.members = append(p.members, one)
	}
	return nil
}

// member describes a matrix of the model.
func (c *candidates) member(name string, linears map[string]lm.Linear) (member, error) {
	if lin, ok := linears[name]; ok {
		return member{name: name, rows: lin.Out, cols: lin.In, transposed: lin.Transposed}, nil
	}
	shape, ok := c.tensors.Shape(name)
	if !ok || len(shape) != 2 {
		return member{}, fmt.Errorf("%w: %q is no matrix", ErrLayout, name)
	}
	return member{name: name, rows: int(shape[0]), cols: int(shape[1])}, nil
}

// asBlocks rounds to the values of a type of GGUF files.
func (c *candidates) asBlocks(block *quantized.Block, weigh []float32) func(kernels.Mat) error {
	return func(w kernels.Mat) error {
		faults := make([]error, w.Rows)
		mmapsafe.Split(c.threads, w.Rows, func(lo, hi int) {
			bytes := make([]byte, block.Size(w.Cols))
			for i := lo; i < hi; i++ {
				row := w.RowF32(i)
				faults[i] = block.Encode(bytes, row, w.Cols, weigh)
				if faults[i] == nil {
					faults[i] = block.Decode(row, bytes)
				}
			}
		})
		return errors.Join(faults...)
	}
}
