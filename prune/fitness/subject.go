package fitness

import (
	"context"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/internal/gpuscore"
	"github.com/modelcompress/compress/prune/internal/grads"
	"github.com/modelcompress/compress/prune/internal/terminals"
	"github.com/modelcompress/compress/prune/structure"
	"github.com/modelcompress/compress/safetensors"
)

// Subject is a model that metrics are judged on, with its data.
type Subject struct {
	Name string // in reports
	// Open opens the dense model. It is called once for the statistics and once for every bench; the judge
	// closes the models.
	Open func(ctx context.Context) (*lm.Model, error)

	Calib  corpus.Windows // that gradients and activation statistics are taken on, for the rungs of the search
	Search corpus.Windows // that the rungs few and full measure the loss on
	Select corpus.Windows // that the winner is chosen on
	Test   corpus.Windows // that is reported; the only set that nothing is chosen by

	// Calibration data of their own keep a metric that suits one sample of them from looking better than it is.
	SelectCalib corpus.Windows // that the rung select prunes with; none: Calib
	TestCalib   corpus.Windows // that the rung test prunes with; none: Calib
}

// set is what a rung prunes with and measures on.
type set struct {
	calib, data corpus.Windows
}

// set is that of one of the rungs full, select and test.
func (s *Subject) set(r Rung) set {
	out := set{s.Calib, s.Search}
	switch r {
	case Select:
		out = set{s.SelectCalib, s.Select}
	case Test:
		out = set{s.TestCalib, s.Test}
	}

	if len(out.calib.IDs) == 0 {
		out.calib = s.Calib
	}

	return out
}

// subject is a subject with what is measured once.
type subject struct {
	Subject
	o        *Options
	id       string
	model    string // fingerprint
	dense    *lm.Model
	files    gradientFiles
	matrices []matrix
	samples  []sample
	parts    partsKept
}

// matrix is a linear layer with what a metric looks at.
type matrix struct {
	linear lm.Linear
	in     gp.Inputs // W is [out, in], in host memory
	blind  bool      // no calibration token reached it: it is ranked by |W|
	there  gp.Inputs // the same with matrices on the subject's device, if that compiles formulas; W is zero otherwise
	at     kernels.Device
	held   []*kernels.Buffer
}

// sample is what goes through a block of the dense model, on the first of the calibration windows, in host memory.
type sample struct {
	block   int
	rows    int       // tokens
	lens    []int     // of the windows
	in, out []float32 // [rows, hidden]
	energy  float64   // ‖out‖²
}

// sampleTokens is about how many tokens the error of a block is measured on; never less than a window.
const sampleTokens = 1024

// prepare opens a subject's model and measures it.
func (s *subject) prepare(ctx context.Context) (err error) {
	o := s.o
	if s.dense, err = s.Open(ctx); err != nil {
		return err
	}
	if s.dense.Packed() {
		return fmt.Errorf("%s: %w: its matrices are packed; unpack it first", s.dense.Path(), ErrSubject)
	}

	model, err := s.dense.Fingerprint(ctx)
	if err != nil {
		return err
	}

	s.model = model
	parts := []string{model}
	for _, r := range []Rung{Full, Select, Test} {
		set := s.set(r)
		for _, w := range []corpus.Windows{set.calib, set.data} {
			if err := w.Check(s.dense.Config().Vocab); err != nil {
				return err
			}
			parts = append(parts, w.Hash)
		}
	}

	for _, t := range o.Settings {
		if o.Structure == "" {
			break
		}
		if err := structure.Check(s.dense, s.Calib, o.Structure.Options(t.Sparsity)); err != nil {
			return fmt.Errorf("sparsity %s: %w", t, err)
		}
	}

	s.id = digest(parts...)
	if err := s.plan(ctx); err != nil {
		return err
	}
	if s.matrices, err = s.gather(ctx, Full); err != nil {
		return err
	}

	if o.Structure == structure.Blocks {
		return s.sampleAll(ctx)
	}
	return s.sample(ctx, sampled(s.dense.Blocks(), o.Blocks))
}

// uses reports whether expressions may look at a terminal. The references look at X, and of weights at G.
func (s *subject) uses(t gp.Symbol) bool {
	if s.o.Structure != "" {
		have := func(t gp.Symbol) bool { return slices.Contains(s.o.Symbols, t) }
		return t == gp.X || structure.Reads(have)(t)
	}
	return t == gp.X || t == gp.G || slices.Contains(s.o.Symbols, t)
}

// sampled spreads n of so many blocks evenly, from the first one on. The last one is left out if that is
// possible: errors of what leaves it say least about the loss.
func sampled(blocks, n int) []int {
	n = min(n, blocks)
	span := max(n, blocks-1)
	at := make([]int, n)
	for i := range at {
		switch {
		case n == 1:
			at[i] = span / 2
		default:
			at[i] = i * (span - 1) / (n - 1)
		}
	}

	return at
}

// gather runs the dense model over the calibration windows of a rung.
func (s *subject) gather(ctx context.Context, r Rung) (all []matrix, err error) {
	uses := s.uses
	calib := s.set(r).calib
	show := func(stage string) func(done, of int64) {
		if r != Full {
			return silent // beside measurements
		}
		return s.show(stage)
	}

	needs := actstats.SumSquares
	if uses(gp.Xm) || uses(gp.Xv) {
		needs |= actstats.Sums
	}
	if uses(gp.Hi) {
		needs |= actstats.Hessian
	}

	g := &grads.Set{}
	if uses(gp.G) {
		err = s.withGradients(ctx, r, show(StageGradients), func(path string) (err error) {
			g.File, err = safetensors.OpenDir(path)
			return err
		})
		if err != nil {
			return nil, err
		}
		defer g.Close()
	}

	const batch = 8192 // tokens at a time
	states, err := actstats.NewStates(ctx, s.dense, calib.IDs, batch)
	if err != nil {
		return nil, err
	}
	defer states.Free()

	for l := range s.dense.Blocks() {
		show(StageStatistics)(int64(l), int64(s.dense.Blocks()))

		list, err := s.block(ctx, l, needs, states, func(m *matrix, in actstats.Inputs) (err error) {
			if m.blind = in.Tokens == 0; m.blind {
				return nil
			}
			if m.in, err = terminals.Of(in, uses); err == nil && uses(gp.G) {
				m.in.G, err = g.Of(m.linear)
				m.blind = m.in.G.IsZero()
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", l, err)
		}
		all = append(all, list...)
	}

	return all, nil
}

// block measures one block and gives its matrices.
func (s *subject) block(ctx context.Context, l int, want actstats.Set, states *actstats.States,
	fill func(m *matrix, in actstats.Inputs) error,
) (all []matrix, err error) {
	dev, linears := s.dense.Device(), s.dense.Linears(l)
	stats, err := actstats.New(dev, linears, want, states.Sequences(), 0)
	if err != nil {
		return nil, err
	}
	defer stats.Free()

	err = states.Advance(ctx, l, stats.Hooks(), func(int, int) {})
	if err == nil {
		err = stats.Err()
	}
	if err != nil {
		return nil, err
	}

	for _, lin := range linears {
		m := matrix{linear: lin}
		in, err := stats.Of(lin)
		if err == nil {
			err = fill(&m, in)
		}
		if err == nil {
			m.in.W, err = weights(s.dense, lin)
		}
		if err == nil && s.o.Structure == "" {
			err = m.reside(s.dense)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", lin.Name, err)
		}

		all = append(all, m)
	}

	return all, nil
}

// reside keeps what a metric looks at on a device that compiles formulas, if there is room.
func (m *matrix) reside(dense *lm.Model) error {
	dev := dense.Device()
	if _, ok := kernels.As[kernels.Scorer](dev); !ok || m.blind || dev.Info().Host {
		return nil
	}

	w, err := dense.Param(m.linear.Name)
	if err != nil {
		return err
	}

	if m.linear.Transposed {
		if w, err = hostmat.Transposed(dev, w); err != nil {
			return nil // no room: the host scores it
		}
		m.held = append(m.held, w.Buf)
	}

	there := m.in
	if there.G, err = gpuscore.Resident(dev, m.in.G); err != nil {
		return nil // the host scores it
	}

	m.held = append(m.held, there.G.Buf)
	there.W = w
	m.there, m.at = there, dev

	return nil
}

// weights gives a matrix as [out, in] in host memory.
func weights(m *lm.Model, l lm.Linear) (kernels.Mat, error) {
	w, err := m.Param(l.Name)
	if err != nil {
		return w, err
	}

	if at := m.Device().Ops().NonFinite(w); at >= 0 {
		return w, fmt.Errorf("element [%d, %d]: %w", at/w.Cols, at%w.Cols, prune.ErrNonFinite)
	}

	if l.Transposed {
		if w, err = hostmat.Transposed(m.Device(), w); err != nil {
			return w, err
		}
	}

	if !m.Device().Info().Host {
		return hostmat.F32(m.Device(), w)
	}

	return w, nil
}

// embedSample begins with the first of the calibration windows.
func (s *subject) embedSample() (*lm.Hidden, error) {
	n, tokens := 0, 0
	for n < len(s.Calib.IDs) && (n == 0 || tokens+len(s.Calib.IDs[n]) <= sampleTokens) {
		tokens += len(s.Calib.IDs[n])
		n++
	}
	return s.dense.Embed(s.Calib.IDs[:n])
}

// sample keeps what goes into and comes out of some blocks.
func (s *subject) sample(ctx context.Context, blocks []int) error {
	h, err := s.embedSample()
	if err != nil {
		return err
	}
	defer h.Free()

	// The error of a block is measured against its own dense output on its own dense input, so that the blocks of a
	// rung can be measured one by one, in any order.
	for l, next := 0, 0; next < len(blocks); l++ {
		in, err := hostmat.F32(s.dense.Device(), h.X)
		if err != nil {
			return err
		}

		if err := s.dense.RunBlock(ctx, l, h, nil); err != nil {
			return fmt.Errorf("block %d: %w", l, err)
		}
		if l != blocks[next] {
			continue
		}

		next++
		if err := s.keepSample(l, in, h); err != nil {
			return err
		}
	}

	return nil
}

// keepSample keeps what went into a block, or all of them, and what came out.
func (s *subject) keepSample(l int, in kernels.Mat, h *lm.Hidden) error {
	out, err := hostmat.F32(s.dense.Device(), h.X)
	if err != nil {
		return err
	}

	x := sample{block: l, rows: h.X.Rows, lens: h.Lens, in: in.Buf.F32(), out: out.Buf.F32()}
	for _, v := range x.out {
		x.energy += float64(v) * float64(v)
	}
	if !(x.energy > 0) {
		return fmt.Errorf("block %d: %w: what leaves it is 0", l, ErrSubject)
	}
	s.samples = append(s.samples, x)

	return nil
}

// distance is ‖y-out‖²/‖out‖².
func (x *sample) distance(y []float32) (d float64) {
	for i, v := range x.out {
		e := float64(y[i]) - float64(v)
		d += e * e
	}
	return d / x.energy
}

// widen copies a row to F32.
func widen(dst []float32, m kernels.Mat, row int) {
	switch m.DType() {
	case kernels.BF16:
		for j, v := range m.RowU16(row) {
			dst[j] = kernels.FromBF16(v)
		}
	case kernels.F16:
		for j, v := range m.RowU16(row) {
			dst[j] = kernels.FromF16(v)
		}
	default:
		copy(dst, m.RowF32(row))
	}
}

func upload(dev kernels.Device, data []float32, rows, cols int) (kernels.Mat, error) {
	buf, err := dev.Alloc(kernels.F32, len(data))
	if err != nil {
		return kernels.Mat{}, err
	}
	return kernels.MatOf(buf, rows, cols), dev.Upload(buf, 0, kernels.WrapF32(data).Bytes())
}

func (s *subject) close() error {
	if s.dense == nil {
		return nil
	}
	for _, m := range s.matrices {
		for _, b := range m.held {
			b.Free()
		}
	}
	return s.dense.Close()
}
