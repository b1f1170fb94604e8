package quantize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/quantize/internal/typemix"
	"github.com/modelcompress/compress/safetensors"
)

// candidates is what the matrices of a model may become.
type candidates struct {
	m       *lm.Model
	o       AssignOptions
	tensors *lm.Tensors
	file    *file // of levels that are types of GGUF files
	threads int

	parts   []*candidate
	problem levels.Problem
	weights int64 // that bits are counted for
	rest    int64 // bytes of all else that counts
}

// candidate is what gets one level.
type candidate struct {
	names   []string // tensors of the file, or modules of the folder
	members []member
	levels  []string // the level of each of its choices
	weights int64
}

// member is a matrix of the model.
type member struct {
	name       string
	rows, cols int  // outputs and inputs
	transposed bool // it is stored [inputs, outputs]
	// round gives an F32 matrix [rows, cols] in host memory the values that it would have at a level.
	round []func(w kernels.Mat) error
}

func newCandidates(ctx context.Context, m *lm.Model, o AssignOptions) (_ *candidates, err error) {
	c := &candidates{m: m, o: o, threads: m.Device().Info().Threads}
	defer func() {
		if err != nil {
			c.close()
		}
	}()

	if m.Packed() {
		return nil, fmt.Errorf("%s: %w: its matrices are packed as bitmasks; compress convert unpacks them", m.Path(),
			ErrLayout)
	}
	if c.tensors, err = lm.OpenTensors(ctx, m.Path(), m.Config()); err != nil {
		return nil, err
	}

	into, err := o.intoFile()
	if err != nil {
		return nil, err
	}
	if into {
		err = c.ofFile(ctx)
	} else {
		err = c.ofFolder(ctx)
	}
	if err != nil {
		return nil, err
	}
	if len(c.parts) == 0 {
		return nil, fmt.Errorf("%s: %w: no matrix to choose for", m.Path(), ErrOptions)
	}

	c.problem.Budget = o.Bytes
	if o.Bytes == 0 {
		c.problem.Budget = int64(o.BitsPerWeight * float64(c.weights) / 8)
	}
	c.problem.Budget -= c.rest
	return c, nil
}

func (c *candidates) close() {
	if c.tensors != nil {
		_ = c.tensors.Close()
	}
	if c.file != nil {
		c.file.close()
	}
}

// ofFile lists the tensors of a GGUF file that llama.cpp would quantise.
func (c *candidates) ofFile(ctx context.Context) error {
	every, _ := SchemeByName("q8_0") // which has a type for any of them
	f, err := openFile(ctx, c.m.Path(), FileOptions{Scheme: every, Importance: c.o.Importance})
	if err != nil {
		return err
	}
	c.file = f
	if err := f.checkImportance(); err != nil {
		return err
	}
	if err := f.assign(); err != nil {
		return err
	}

	transposed := map[string]lm.Linear{}
	for l := range c.m.Blocks() {
		for _, lin := range c.m.Linears(l) {
			transposed[lin.Name] = lin
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
		if err := c.target(t, transposed, homes); err != nil {
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
	counted := c.o.Bytes == 0 // of bits, only the matrices of blocks count
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
		if !chosen[name] && !counted {
			c.rest += info.Size
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
			g, err := gridOf(w, lin, s)
			if err != nil {
				return err
			}
			g.code = make([]byte, m.Len())
			g.rounded = true
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

// gridOf is the grid of a matrix in a scheme.
func gridOf(w *walk, lin lm.Linear, s Scheme) (*grid, error) {
	info, _ := w.m.Info(lin.Name)
	stored := info.DType
	if stored == safetensors.F64 {
		stored = safetensors.F32
	}
	g, err := newGrid(s.Weights, lin.Out, lin.In, stored)
	if err == nil {
		g.form = s
	}
	return g, err
}

// sizeAs is what a matrix takes in a scheme.
func sizeAs(w *walk, lin lm.Linear, s Scheme) (n int64, err error) {
	g, err := gridOf(w, lin, s)
	if err != nil {
		return 0, err
	}
	parts, err := s.parts(lin.Name, g)
	for _, one := range parts {
		n += one.Size
	}
	return n, err
}

// read brings a matrix of the model, as its files have it, to host memory: F32 [rows, cols].
func (c *candidates) read(one member) (kernels.Mat, error) {
	info, _ := c.tensors.Info(one.name)
	data := make([]byte, info.Size)
	if _, err := c.tensors.ReadAt(one.name, data, 0); err != nil && !errors.Is(err, io.EOF) {
		return kernels.Mat{}, err
	}

	if one.transposed {
		data = hostmat.TransposedBytes(data, one.cols, one.rows, dtype.Size(info.DType))
	}
	values := make([]float32, one.rows*one.cols)
	if err := dtype.Decode(values, data, info.DType); err != nil {
		return kernels.Mat{}, fmt.Errorf("%s: tensor %q: %w", c.tensors.File(one.name), one.name, err)
	}
	if at := dtype.NonFinite(values); at >= 0 {
		return kernels.Mat{}, fmt.Errorf("%s: tensor %q: element [%d, %d]: %w", c.tensors.File(one.name), one.name,
			at/one.cols, at%one.cols, ErrNonFinite)
	}
	return kernels.MatOf(kernels.WrapF32(values), one.rows, one.cols), nil
}

// weigh measures what each level of each part costs.
func (c *candidates) weigh(ctx context.Context, calib corpus.Windows) error {
	var names []string
	for _, p := range c.parts {
		for _, one := range p.members {
			names = append(names, one.name)
		}
	}
	found, err := sensitivities(ctx, c.m, calib, names, func(done, of int) {
		c.o.Step(AssignStep{Stage: AssignGradients, Done: done, Of: of})
	})
	if err != nil {
		return err
	}

	for i, p := range c.parts {
		c.o.Step(AssignStep{Stage: AssignLosses, Done: i, Of: len(c.parts)})
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, one := range p.members {
			if err := c.losses(c.problem.Parts[i], one, found[one.name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// losses adds what a matrix costs at each level.
func (c *candidates) losses(to []levels.Level, one member, s *sensitivity) error {
	if one.transposed { // it is read [outputs, inputs]
		s.rows, s.cols = s.cols, s.rows
	}
	w, err := c.read(one)
	if err != nil {
		return err
	}

	now := kernels.MatOf(kernels.NewHost(kernels.F32, w.Len()), w.Rows, w.Cols)
	for k := range to {
		copy(now.Buf.F32(), w.Buf.F32())
		if err := one.round[k](now); err != nil {
			return fmt.Errorf("%s: tensor %q: %w", c.tensors.File(one.name), one.name, err)
		}
		for i := range now.Rows {
			before := w.RowF32(i)
			for j, v := range now.RowF32(i) {
				now.RowF32(i)[j] = v - before[j]
			}
		}
		to[k].Loss += s.loss(c.threads, now.RowF32)
	}
	return nil
}

// smallest is the level that takes least for most of the weights.
func (c *candidates) smallest() string {
	choice := make([]int, len(c.parts))
	for i, list := range c.problem.Parts {
		for k, l := range list {
			if l.Size < list[choice[i]].Size {
				choice[i] = k
			}
		}
	}
	return c.most(choice, nil)
}

// most is the level of most weights, of those that count (nil: all do); "" if there is none.
func (c *candidates) most(choice []int, counts func(level string) bool) string {
	weights := map[string]int64{}
	best := ""
	for i, p := range c.parts {
		level := p.levels[choice[i]]
		if counts != nil && !counts(level) {
			continue
		}
		weights[level] += p.weights
		if n := weights[level]; best == "" || n > weights[best] {
			best = level
		}
	}
	return best
}

// assignment begins the result: what each level would be alone.
func (c *candidates) assignment() *Assignment {
	a := &Assignment{Options: c.o, file: c.file != nil}
	a.Options.Importance = nil
	a.Options.Known = nil
	a.Options.Note = nil
	a.Options.Step = nil
	for k, level := range c.o.Levels {
		choice := make([]int, len(c.parts))
		for i := range choice {
			choice[i] = k
		}
		size := c.problem.Size(choice) + c.rest
		a.Uniform = append(a.Uniform, UniformLevel{
			Level: level, Bytes: size, Bits: 8 * float64(size) / float64(c.weights), Predicted: c.problem.Loss(choice),
		})
	}
	return a
}

// describe puts down what was chosen.
func (c *candidates) describe(a *Assignment, choice []int) {
	a.Bytes = c.problem.Size(choice) + c.rest
	a.Bits = 8 * float64(a.Bytes) / float64(c.weights)
	a.Predicted = c.problem.Loss(choice)
	for i, p := range c.parts {
		l := c.problem.Parts[i][choice[i]]
		part := AssignedPart{Names: p.names, Level: p.levels[choice[i]], Bytes: l.Size, Loss: l.Loss}
		for _, one := range p.members {
			part.Members = append(part.Members, one.name)
		}
		a.Parts = append(a.Parts, part)
	}

	if c.file != nil {
		a.main, _ = SchemeByName(typemix.Mostly(strings.ToUpper(c.most(choice, nil))))
		return
	}

	// A folder's own scheme is the one of most; of those with groups, which have the size that is asked for.
	grouped := func(level string) bool {
		s, err := SchemeByName(level)
		return err == nil && (c.o.Group == 0 || s.Weights.Strategy == PerGroup && s.Layout == packed)
	}
	main := c.most(choice, grouped)
	if main == "" {
		main = c.most(choice, func(level string) bool { return level != Keep })
		a.Options.Group = 0 // nothing has groups
	}
	if main == "" {
		main = c.o.Levels[slices.IndexFunc(c.o.Levels, func(l string) bool { return l != Keep })]
	}
	a.main, _ = SchemeByName(main)
}
