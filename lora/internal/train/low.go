package train

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/delta"
	"github.com/modelcompress/compress/lora/internal/draw"
	"github.com/modelcompress/compress/lora/internal/plan"
)

// Low trains an adapter. The base stays as it is.
type Low struct {
	Model   *lm.Model
	Adapter *adapter.Adapter
	Runtime *delta.Runtime // attached with gradients
	Optim   optim.Optimizer
	Keep    int64 // bytes for kept activations
	Seed    uint64
	Threads int
	// NoDecay keeps weight decay from vectors.
	NoDecay bool
}

// Step implements [Subject].
func (l *Low) Step(ctx context.Context, step int, batches []plan.Batch, counted int, lr, clip float64) (loss, norm float64, err error) {
	l.Runtime.ZeroGrad()
	key := draw.NewKey(l.Seed, "dropout").With(uint64(step))
	for i, b := range batches {
		l.Runtime.Drop(true, key.With(uint64(i)))
		r, err := l.Runtime.Backward(ctx, b.IDs, lm.BackwardOptions{Labels: b.Labels, Denominator: float64(counted), Keep: l.Keep})
		if err != nil {
			return 0, 0, err
		}
		loss += r.Loss * float64(r.Counted) / float64(counted)
	}
	l.Runtime.Drop(false, 0)
	if err := finite("the loss", loss); err != nil {
		return loss, 0, err
	}
	params := l.params()
	norm, coefficient, err := optim.Clip(params, clip, l.Threads)
	if err != nil {
		return loss, norm, fmt.Errorf("%w: %w", lm.ErrNonFinite, err)
	}
	for _, p := range params {
		if err := l.Optim.Apply(p, optim.Step{LR: lr, GradScale: coefficient}); err != nil {
			return loss, norm, err
		}
	}
	return loss, norm, l.Runtime.Update()
}

func (l *Low) params() []optim.Param {
	list := l.Adapter.Trainable()
	params := make([]optim.Param, len(list))
	for i, p := range list {
		params[i] = optim.Param{Name: p.Name, Value: p.Value, Grad: p.Grad, NoDecay: l.NoDecay && p.Value.Rows == 1}
	}
	return params
}

// Eval implements [Subject].
func (l *Low) Eval(ctx context.Context, b plan.Batch) (float64, int, error) {
	l.Runtime.Drop(false, 0)
	return eval(ctx, l.Model, b)
}

// Save implements [Subject].
func (l *Low) Save(path string, p Progress, best bool) error {
	list := paramEntries(l.Adapter)
	if !best {
		list = append(list, optimizerEntries(l.Optim.State())...)
	}
	return writeState(path, list, p)
}

// Restore implements [Subject].
func (l *Low) Restore(path string, p *Progress, best bool) error {
	f, err := readState(path, p)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, q := range l.Adapter.Trainable() {
		if err := fillFrom(f, q.Name, q.Data()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		q.Value.Buf.Changed()
	}
	if !best {
		state, err := optimizerState(f)
		if err == nil {
			err = l.Optim.Restore(state)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return l.Runtime.Update()
}

// eval sums the losses of a batch.
func eval(ctx context.Context, m *lm.Model, b plan.Batch) (float64, int, error) {
	r, err := m.Forward(ctx, b.IDs, lm.ForwardOptions{Labels: b.Labels})
	if err != nil {
		return 0, 0, err
	}
	return r.Loss * float64(r.Counted), r.Counted, nil
}
