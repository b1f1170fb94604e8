package quantize

import (
	"context"
	"errors"
	"slices"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// parent is the smallest part of a block that all readers of a fold are in, attention or an MLP or both where they are
// parallel, with something to run through it.
type parent struct {
	w       *walk
	block   int
	parts   []lm.Part
	in, out *lm.Hidden
	tokens  float64     // that reach it, for each that in holds
	dense   kernels.Mat // what it gives with the matrices as they are
}

// The tokens that attention is run on, and of how many sequences they are the beginnings.
const (
	parentTokens    = 1024
	parentSequences = 4
)

// attention are the roles of the matrices that attention reads its input with.
var attention = []arch.Role{arch.Q, arch.K, arch.V, arch.QKV, arch.QA, arch.KVA}

// partsOf are the branches that a fold's readers are in, if there are several readers and it takes whole branches to
// say what becomes of their outputs; nil: each matrix speaks for itself. That is so in mixtures too, where a parent
// would have all experts at hand twice.
func (w *walk) partsOf(f *fold, l int) (parts []lm.Part) {
	if !f.norm || len(f.readers) < 2 {
		return nil
	}
	var attends, feeds bool
	for _, lin := range f.readers {
		switch {
		case slices.Contains(attention, lin.Role):
			attends = true
		case lin.Role == arch.Gate || lin.Role == arch.Up:
			feeds = true
		default:
			return nil
		}
	}
	if feeds && w.m.Config().Mixture[l] {
		return nil
	}
	if attends {
		parts = append(parts, lm.AttentionPart)
	}
	if feeds {
		parts = append(parts, lm.MLPPart)
	}
	return parts
}

// parentOf is the parent of a fold's readers; nil where they have none, and where no token came.
func (w *walk) parentOf(ctx context.Context, l int, f *fold, stats *actstats.Stats) (p *parent, err error) {
	parts := w.partsOf(f, l)
	tokens := stats.SumOf(f.readers[0].Name).Tokens()
	if parts == nil || tokens == 0 {
		return nil, nil
	}

	// An MLP takes tokens one by one, attention sequences.
	x := stats.SpreadOf(f.readers[0].Name)
	lens := []int{x.Rows}
	if parts[0] == lm.AttentionPart {
		x, lens = w.excerpts.mat(), w.excerpts.lens
	}

	p = &parent{w: w, block: l, parts: parts, tokens: float64(tokens) / float64(x.Rows)}
	defer func() {
		if err != nil {
			p.free()
		}
	}()
	if p.in, err = w.hidden(lens); err != nil {
		return nil, err
	}
	if err := w.dev.Upload(p.in.X.Buf, 0, x.Buf.Bytes()[4*x.Off:][:4*x.Len()]); err != nil {
		return nil, err
	}
	if p.out, err = w.hidden(lens); err != nil {
		return nil, err
	}
	p.dense, err = p.run(ctx)
	return p, err
}

// hidden makes room for what goes into a branch or comes out of it.
func (w *walk) hidden(lens []int) (*lm.Hidden, error) {
	rows := 0
	for _, n := range lens {
		rows += n
	}
	cols := w.m.Config().Hidden
	buf, err := w.dev.Alloc(kernels.F32, rows*cols)
	if err != nil {
		return nil, err
	}
	return &lm.Hidden{X: kernels.MatOf(buf, rows, cols), Lens: lens}, nil
}

func (p *parent) free() {
	for _, h := range []*lm.Hidden{p.in, p.out} {
		if h != nil {
			h.Free()
		}
	}
}

// run gives what the parent gives now, F32 in host memory.
func (p *parent) run(ctx context.Context) (kernels.Mat, error) {
	var sum kernels.Mat
	for i, part := range p.parts {
		if err := p.w.m.RunPart(ctx, p.block, part, p.out, p.in); err != nil {
			return sum, err
		}
		got, err := hostmat.F32(p.w.dev, p.out.X)
		if err != nil {
			return sum, err
		}
		if i == 0 {
			sum = got
			continue
		}
		to := sum.Buf.F32()
		for j, v := range got.Buf.F32() {
			to[j] += v
		}
	}
	return sum, nil
}

// errorsOf are the squared errors of what the parent gives with each of some factors of a fold, over all tokens.
func (p *parent) errorsOf(ctx context.Context, f *fold, tries [][]float32) ([]float64, error) {
	var readers []*reader
	for _, lin := range f.readers {
		if !p.w.rounds[lin.Name] {
			continue
		}
		stored, err := p.w.m.Param(lin.Name)
		if err != nil {
			return nil, err
		}
		m, err := hostmat.F32(p.w.dev, stored)
		if err != nil {
			return nil, err
		}
		readers = append(readers, &reader{lin: lin, w: m})
	}

	errors := make([]float64, len(tries))
	for k, s := range tries {
		var err error
		if errors[k], err = p.error(ctx, readers, f.columns(s)); err != nil {
			return nil, err
		}
	}
	return errors, nil
}

// error is the squared error of what the parent gives, over all tokens, when readers are rounded with their columns
// multiplied by factors; nil: by 1.
func (p *parent) error(ctx context.Context, readers []*reader, by []float32) (float64, error) {
	w := p.w
	for _, r := range readers {
		m, err := w.deviation(r.lin, r.w, by)
		if err != nil {
			return 0, err
		}
		c, err := w.change(m)
		if err != nil {
			return 0, err
		}
		defer c.by.Buf.Free()
		detach, err := w.m.Attach(c, r.lin.Name)
		if err != nil {
			return 0, err
		}
		defer detach()
	}

	out, err := p.run(ctx)
	if err != nil {
		return 0, err
	}
	subtract(out, p.dense, w.threads)
	sum := 0.0
	for _, e := range w.squares(out) {
		sum += e
	}
	return sum * p.tokens, nil
}

// change is what rounding does to a matrix, as something to attach to it.
type change struct {
	ops *kernels.Ops
	by  kernels.Mat // F32 [out, in] on the device
}

// change brings a deviation, in host memory, to the device.
func (w *walk) change(m kernels.Mat) (*change, error) {
	buf, err := w.dev.Alloc(kernels.F32, m.Len())
	if err != nil {
		return nil, err
	}
	if err := w.dev.Upload(buf, 0, m.Buf.Bytes()); err != nil {
		buf.Free()
		return nil, err
	}
	return &change{ops: w.ops, by: kernels.MatOf(buf, m.Rows, m.Cols)}, nil
}

// Forward implements [lm.Delta].
func (c *change) Forward(_ lm.Linear, x, y kernels.Mat) error {
	c.ops.MatMulNT(y, x, c.by, kernels.MatMul{Accumulate: true})
	return nil
}

// Backward implements [lm.Delta]: no gradient is asked of a parent.
func (c *change) Backward(lm.Linear, kernels.Mat, kernels.Mat, kernels.Mat) error {
	return errors.ErrUnsupported
}

// Parameters implements [lm.Delta].
func (c *change) Parameters() []lm.Parameter { return nil }

// excerpts are the beginnings of some calibration sequences, as attention reads them in a block.
type excerpts struct {
	dev   kernels.Device
	lens  []int // of the sequences as far as they are kept
	cols  int
	x     []float32
	every int   // of so many sequences one is kept
	most  int   // of its tokens
	all   []int // tokens of the calibration sequences
	next  int   // the first sequence that has not been seen
	err   error // the first failure of the hook
}

func newExcerpts(dev kernels.Device, ids [][]int32) *excerpts {
	n := min(parentSequences, len(ids))
	e := &excerpts{dev: dev, every: len(ids) / n, most: parentTokens / n}
	for _, row := range ids {
		e.all = append(e.all, len(row))
	}
	return e
}

// hooks are those of statistics, and show the excerpts what attention reads, by the first matrix of a block that does.
func (e *excerpts) hooks(stats *actstats.Stats, linears []lm.Linear) *lm.Hooks {
	name := ""
	for _, lin := range linears {
		if name == "" && slices.Contains(attention, lin.Role) {
			name = lin.Name
		}
	}

	hooks := stats.Hooks()
	inner := hooks.LinearInput
	hooks.LinearInput = func(l lm.Linear, x kernels.Mat) {
		inner(l, x)
		if l.Name == name && e.err == nil {
			e.err = e.add(x)
		}
	}
	return hooks
}

// add takes what it keeps of the next sequences, whose rows x has.
func (e *excerpts) add(x kernels.Mat) error {
	e.cols = x.Cols
	for row := 0; row < x.Rows; e.next++ {
		n := e.all[e.next]
		if e.next%e.every == 0 && len(e.lens) < parentSequences {
			kept := x.RowRange(row, row+min(n, e.most))
			m, err := hostmat.F32(e.dev, kept)
			if err != nil {
				return err
			}
			e.x = append(e.x, m.Buf.F32()...)
			e.lens = append(e.lens, kept.Rows)
		}
		row += n
	}
	return nil
}

func (e *excerpts) mat() kernels.Mat {
	return kernels.MatOf(kernels.WrapF32(e.x), len(e.x)/e.cols, e.cols)
}
