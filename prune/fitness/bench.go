package fitness

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/internal/gpuscore"
)

// bench is what one measurement at a time needs: models whose weights may be changed, and scratch.
type bench struct {
	models []*lm.Model // of the subjects, opened when first needed
	scores []float32
	memo   prune.Memo
}

// model gives a subject's model with its dense weights.
func (b *bench) model(ctx context.Context, s *subject, at int) (*lm.Model, error) {
	if b.models[at] == nil {
		m, err := s.Open(ctx)
		if err != nil {
			return nil, err
		}
		b.models[at] = m
		return m, nil
	}

	m := b.models[at]
	for _, x := range s.matrices {
		if s.o.Structure != "" && !behind(x.linear) {
			continue // nothing changes it
		}
		if err := restore(m, s, x.linear.Name); err != nil {
			return nil, fmt.Errorf("%s: %w", x.linear.Name, err)
		}
	}

	return m, nil
}

// restore gives a matrix its dense weights back.
func restore(m *lm.Model, s *subject, name string) error {
	from, err := s.dense.Param(name)
	if err != nil {
		return err
	}

	to, err := m.MutableParam(name)
	if err != nil {
		return err
	}

	raw, err := bytesOf(m.Device(), from)
	if err == nil {
		err = m.Device().Upload(to.Buf, to.Off, raw)
	}
	if err != nil {
		return err
	}

	to.Buf.Changed()
	return nil
}

// bytesOf is a whole parameter in host memory.
func bytesOf(dev kernels.Device, m kernels.Mat) ([]byte, error) {
	if !dev.Info().Host {
		return hostmat.Bytes(dev, m)
	}
	raw := m.Buf.Bytes()
	size := len(raw) / m.Buf.Len
	return raw[m.Off*size : (m.Off+m.Len())*size], nil
}

// score computes the scores of a matrix: on the device of the subject's model, if that compiles formulas and
// dev is the same, otherwise in host memory, good until the next call. free gives them back.
func (b *bench) score(p *gp.Program, m *matrix, dev kernels.Device) (scores kernels.Mat, free func(), err error) {
	if !m.there.W.IsZero() && m.at == dev {
		scores, err = scoreThere(p, m, dev)
		if !errors.Is(err, gpuscore.ErrHost) {
			return scores, func() { scores.Buf.Free() }, err
		}
	}

	if !m.blind {
		kernels.Missed(dev, "Score")
	}

	scores, err = b.scoreHere(p, m, dev.Info().Threads)
	return scores, func() {}, err
}

// scoreThere leaves to the host what the device cannot, and what is not finite, of which that says where.
func scoreThere(p *gp.Program, m *matrix, dev kernels.Device) (kernels.Mat, error) {
	s, err := gpuscore.New(dev, p, m.there)
	if err != nil {
		return kernels.Mat{}, err
	}
	defer s.Free()

	lo, span, err := s.Range()
	switch {
	case err != nil:
		return kernels.Mat{}, fmt.Errorf("%s: %w", m.linear.Name, err)
	case lo-lo != 0 || span-span != 0:
		return kernels.Mat{}, gpuscore.ErrHost
	case span == 0:
		return kernels.Mat{}, fmt.Errorf("%s: %w", m.linear.Name, gp.ErrConstant)
	}

	return s.Matrix()
}

func (b *bench) scoreHere(p *gp.Program, m *matrix, threads int) (kernels.Mat, error) {
	if n := m.in.W.Len(); len(b.scores) < n {
		b.scores = kernels.NewHost(kernels.F32, n).F32()
	}

	// An expert that no calibration token reached has statistics of 0 only; it is ranked as prune.Model ranks it.
	s := kernels.MatOf(kernels.WrapF32(b.scores[:m.in.W.Len()]), m.in.W.Rows, m.in.W.Cols)
	if m.blind {
		for i := range s.Rows {
			row := s.RowF32(i)
			widen(row, m.in.W, i)
			for j, v := range row {
				row[j] = float32(math.Abs(float64(v)))
			}
		}

		return s, nil
	}

	if err := p.Eval(s, m.in, gp.Exec{Threads: threads, Finite: true}); err != nil {
		return s, fmt.Errorf("%s: %w", m.linear.Name, err)
	}
	if hostmat.Same(s, s.RowF32(0)[0]) {
		return s, fmt.Errorf("%s: %w", m.linear.Name, gp.ErrConstant)
	}

	return s, nil
}

// choose writes the keep mask of scores on a device.
func (t Setting) choose(dev kernels.Device, keep, scores kernels.Mat) error {
	if t.Pattern.Structured() {
		dev.Ops().SelectNM(keep, kernels.Score{X: scores, Raw: true}, t.Pattern.N, t.Pattern.M)
	} else {
		dev.Ops().SelectRows(keep, kernels.Score{X: scores, Raw: true},
			min(int(float64(keep.Cols)*t.Sparsity), keep.Cols))
	}
	return dev.Ops().Sync()
}

// layers is, for every setting, the geometric mean over the sampled blocks of ‖Δ‖²/‖Y‖², where Y is what leaves
// the block and Δ what it changes by when the block's matrices lose what a metric drops.
func (b *bench) layers(ctx context.Context, s *subject, at int, p *gp.Program, settings []Setting) ([]float64, error) {
	m, err := b.model(ctx, s, at)
	if err != nil {
		return nil, err
	}

	logs := make([]float64, len(settings))
	for i := range s.samples {
		e, err := b.outputs(ctx, m, s, &s.samples[i], p, settings)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", s.samples[i].block, err)
		}

		for k, v := range e {
			logs[k] += math.Log(v) / float64(len(s.samples))
		}
	}

	for k, v := range logs {
		logs[k] = math.Exp(v)
	}

	return logs, nil
}

// outputs is the relative error of what leaves a block, for every setting.
func (b *bench) outputs(ctx context.Context, m *lm.Model, s *subject, x *sample, p *gp.Program,
	settings []Setting,
) ([]float64, error) {
	dev := m.Device()
	var own []*matrix
	var scores []kernels.Mat
	var done []func()
	defer func() {
		for _, free := range done {
			free()
		}
	}()

	for i := range s.matrices {
		if s.matrices[i].linear.Block != x.block {
			continue
		}

		kept, free, err := b.score(p, &s.matrices[i], dev)
		if err != nil {
			return nil, err
		}

		done = append(done, free)

		if all := kept; all.Buf.Bytes() != nil { // good until the next call
			kept = kernels.MatOf(kernels.NewHost(kernels.F32, all.Len()), all.Rows, all.Cols)
			copy(kept.Buf.F32(), all.Buf.F32()[all.Off:all.Off+all.Len()])
		}

		own, scores = append(own, &s.matrices[i]), append(scores, kept)
	}

	in, err := upload(dev, x.in, x.rows, len(x.in)/x.rows)
	if err != nil {
		return nil, err
	}
	defer in.Buf.Free()

	out, err := upload(dev, x.in, x.rows, len(x.in)/x.rows)
	if err != nil {
		return nil, err
	}
	defer out.Buf.Free()

	errs := make([]float64, len(settings))
	for k, t := range settings {
		for i, mat := range own {
			if err = restore(m, s, mat.linear.Name); err == nil {
				err = zero(m, mat.linear, scores[i], t)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", mat.linear.Name, err)
			}
		}

		if err := m.RunBlockTo(ctx, x.block, &lm.Hidden{X: out, Lens: x.lens}, &lm.Hidden{X: in, Lens: x.lens},
			nil); err != nil {
			return nil, err
		}

		y, err := hostmat.F32(dev, out)
		if err != nil {
			return nil, err
		}

		errs[k] = x.distance(y.Buf.F32())
	}

	return errs, nil
}

// onDevice brings scores to the device, if they are not there, and makes the mask there.
func onDevice(dev kernels.Device, scores kernels.Mat, t Setting) (keep kernels.Mat, free func(), err error) {
	buf, err := dev.Alloc(kernels.U8, scores.Len())
	if err != nil {
		return keep, nil, err
	}

	keep = kernels.MatOf(buf, scores.Rows, scores.Cols)
	if dev.Info().Host || scores.Buf.Bytes() == nil {
		return keep, buf.Free, t.choose(dev, keep, scores)
	}

	there, err := upload(dev, scores.Buf.F32()[scores.Off:scores.Off+scores.Len()], scores.Rows, scores.Cols)
	if err != nil {
		buf.Free()
		return keep, nil, err
	}

	return keep, func() { buf.Free(); there.Buf.Free() }, t.choose(dev, keep, there)
}

// mask zeroes what a metric drops in all matrices of a dense model.
func (b *bench) mask(ctx context.Context, m *lm.Model, s *subject, p *gp.Program, t Setting) error {
	dev := m.Device()
	for i := range s.matrices {
		x := &s.matrices[i]
		if err := ctx.Err(); err != nil {
			return err
		}

		scores, free, err := b.score(p, x, dev)
		if err != nil {
			return err
		}

		err = zero(m, x.linear, scores, t)
		free()
		if err != nil {
			return fmt.Errorf("%s: %w", x.linear.Name, err)
		}
	}

	return nil
}

// zero applies the mask of scores to one matrix.
func zero(m *lm.Model, l lm.Linear, scores kernels.Mat, t Setting) error {
	dev := m.Device()
	w, err := m.MutableParam(l.Name)
	if err != nil {
		return err
	}

	keep, free, err := onDevice(dev, scores, t)
	if err != nil {
		return err
	}
	defer free()

	if l.Transposed {
		if keep, err = hostmat.Transposed(dev, keep); err != nil {
			return err
		}
		defer keep.Buf.Free()
	}

	dev.Ops().ApplyMask(w, keep)
	return dev.Ops().Sync()
}

// losses gives the mean loss of every sequence over all its tokens, in nats a token.
func losses(ctx context.Context, m *lm.Model, ids [][]int32) ([]float64, error) {
	w := corpus.Windows{IDs: ids}
	for _, sequence := range ids {
		w.SeqLen = max(w.SeqLen, len(sequence))
	}

	s, err := m.SequenceLosses(ctx, w, nil)
	if err != nil {
		return nil, err
	}
	return s.Means(), nil
}

// pruned makes the model that prune.Model makes of the dense one with the calibration data of a rung.
func (b *bench) pruned(ctx context.Context, s *subject, at int, rung Rung, metric prune.Metric,
	t Setting,
) (m *lm.Model, near int64, err error) {
	if m, err = b.model(ctx, s, at); err != nil {
		return nil, 0, err
	}

	o := prune.Options{Metric: metric, Sparsity: t.Sparsity, Pattern: t.Pattern, Memo: &b.memo}
	run := func(gradients string) error {
		o.Gradients.File = gradients
		r, err := prune.Model(ctx, m, s.set(rung).calib, o)
		if err == nil {
			near = r.Total.NearTies
		}
		return err
	}

	if metric.Needs&prune.Gradients != 0 {
		err = s.withGradients(ctx, rung, silent, run)
	} else {
		err = run("")
	}

	return m, near, err
}

func (b *bench) close() error {
	var faults []error
	for _, m := range b.models {
		if m != nil {
			faults = append(faults, m.Close())
		}
	}
	return errors.Join(faults...)
}
