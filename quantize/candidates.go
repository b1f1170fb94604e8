package quantize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/quantize/internal/typemix"
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
	rest    int64 // bytes of all else that counts for those
	beside  int64 // bytes of a folder's other tensors, which bits do not count
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

	into, err := o.IntoFile()
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

	c.problem.Budget = o.Bytes - c.beside
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
	a := &Assignment{Options: c.o}
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
			Level: level, Bytes: size + c.beside, Bits: 8 * float64(size) / float64(c.weights),
			Predicted: c.problem.Loss(choice),
		})
	}
	return a
}

// describe puts down what was chosen.
func (c *candidates) describe(a *Assignment, choice []int) {
	size := c.problem.Size(choice) + c.rest
	a.Bytes = size + c.beside
	a.Bits = 8 * float64(size) / float64(c.weights)
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
