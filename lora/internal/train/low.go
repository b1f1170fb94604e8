package train

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/lora/internal/delta"
	"github.com/modelcompress/compress/lora/internal/distil"
	"github.com/modelcompress/compress/lora/internal/preference"
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
	Distil  *distil.Loss // of a teacher; nil: the cross-entropy
	// Prefer learns preferences instead, and Held is the same for held-out ones; nil: it does not
	Prefer, Held *preference.Loss
	// NoDecay keeps weight decay from vectors.
	NoDecay bool
	// Ratio is by how much the learning rate of B's factors is that of A's (LoRA+, Hayou et al., arXiv 2402.12354); 0:
	// 1.
	Ratio float64

	resident *delta.Resident    // nil: the parameters are in host memory
	step     *optim.DeviceAdamW // Optim, with it
}

// Reside moves the parameters and the optimiser's state to the model's device, if that is away from the host
// and can make its steps; otherwise the steps are the host's, which counts as missed by the device. step is an
// optimiser on the device, nil if there is none.
func (l *Low) Reside(step *optim.DeviceAdamW) error {
	var resident *delta.Resident
	var err error
	if step != nil {
		resident, err = l.Runtime.Reside(l.NoDecay, l.Ratio != 0)
	}
	if resident == nil || err != nil {
		kernels.Missed(l.Model.Device(), "Optimizer")
		return err
	}

	for _, p := range resident.Params() {
		// No room for the optimiser's state: everything goes back, and the host makes the steps.
		if step.Reserve(p.Name, p.Value) != nil {
			step.Free()
			resident.Free()
			kernels.Missed(l.Model.Device(), "Optimizer")
			return l.Runtime.Update()
		}
	}

	l.resident = resident
	l.step = step
	l.Optim = step

	return nil
}

// Fetch brings the parameters to host memory, if they are elsewhere.
func (l *Low) Fetch() error {
	if l.resident == nil {
		return nil
	}
	return l.resident.Fetch()
}

// Free gives back what is held on the device.
func (l *Low) Free() {
	l.Distil.Free()
	if l.resident != nil {
		l.resident.Free()
		l.step.Free()
	}
}

// Step computes the loss of some batches (the mean over counted tokens) and its gradients, and updates with the
// learning rate. A loss or gradient that is not finite is an error that leaves the values as they are.
func (l *Low) Step(ctx context.Context, step int, batches []batches.Batch, counted int,
	lr, clip float64,
) (loss, norm float64, err error) {
	// Dropout is keyed by the step and the batch, and not by what was sampled before: a resumed training has the same
	// masks.
	l.Runtime.ZeroGrad()
	key := rng.New(l.Seed, "dropout").With(uint64(step))
	if l.Prefer != nil {
		if loss, err = l.preferred(ctx, key, batches); err != nil {
			return 0, 0, err
		}
		return l.update(loss, lr, clip)
	}

	for i, b := range batches {
		l.Runtime.Drop(true, key.With(uint64(i)))
		objective, err := l.Distil.Objective(ctx, l.Model, b, counted)
		if err != nil {
			return 0, 0, err
		}
		r, err := l.Runtime.Backward(ctx, b.IDs, lm.BackwardOptions{
			Labels: b.Labels, Denominator: float64(counted), Objective: objective, Keep: l.Keep,
		})
		if err != nil {
			return 0, 0, err
		}
		loss += r.Loss * float64(r.Counted) / float64(counted)
	}

	return l.update(loss, lr, clip)
}

// preferred computes the loss of the preferences in some batches and its gradients. The masks of dropout are the same
// when they are measured and when they are learned from.
func (l *Low) preferred(ctx context.Context, key rng.Key, batches []batches.Batch) (float64, error) {
	l.Prefer.Start()
	for i, b := range batches {
		l.Runtime.Drop(true, key.With(uint64(i)))
		if err := l.Prefer.Measure(ctx, l.Model, b); err != nil {
			return 0, err
		}
	}

	l.Prefer.Weigh()
	from := 0
	for i, b := range batches {
		l.Runtime.Drop(true, key.With(uint64(i)))
		ids, labels, objective := l.Prefer.Pass(l.Model, b, from)
		from += len(b.IDs)
		if _, err := l.Runtime.Backward(ctx, ids, lm.BackwardOptions{
			Labels: labels, Objective: objective, Keep: l.Keep,
		}); err != nil {
			return 0, err
		}
	}

	return l.Prefer.Value(), nil
}

// Rewards are those of the steps, or of the evaluations, since they were asked for last; nil where there are none.
func (l *Low) Rewards(held bool) *preference.Rewards {
	p := l.Prefer
	if held {
		p = l.Held
	}
	if p == nil {
		return nil
	}
	return p.Rewards()
}

// update takes the step that the gradients of a loss ask for.
func (l *Low) update(loss, lr, clip float64) (_, norm float64, err error) {
	// Up to here nothing has moved, so a step that fails leaves the parameters as they were.
	l.Runtime.Drop(false, 0)
	if err := Finite("the loss", loss); err != nil {
		return loss, 0, err
	}

	params := l.params()
	norm, coefficient, err := l.clip(params, clip)
	if err != nil {
		return loss, norm, fmt.Errorf("%w: %w", lm.ErrNonFinite, err)
	}

	for _, p := range params {
		if err := l.Optim.Apply(p, optim.Step{LR: lr * l.rate(p.Name), GradScale: coefficient}); err != nil {
			return loss, norm, err
		}
	}

	if err := l.Runtime.Update(); err != nil || l.resident == nil {
		return loss, norm, err
	}
	if err := l.Model.Device().Ops().Sync(); err != nil {
		return loss, norm, fmt.Errorf("%w: %w", ErrTorn, err)
	}

	return loss, norm, nil
}

// clip measures the gradients where they are.
func (l *Low) clip(params []optim.Param, bound float64) (norm, coefficient float64, err error) {
	if l.resident != nil {
		return optim.ClipOn(l.Model.Device(), params, bound)
	}
	return optim.Clip(params, bound, l.Threads)
}

// rate is by how much the learning rate of a parameter, as the optimiser calls it, is that of the others.
func (l *Low) rate(name string) float64 {
	if l.Ratio == 0 {
		return 1
	}
	if l.resident != nil && name == delta.Up || l.resident == nil && (&adapter.Param{Name: name}).Up() {
		return l.Ratio
	}
	return 1
}

func (l *Low) params() []optim.Param {
	if l.resident != nil {
		return l.resident.Params()
	}
	list := l.Adapter.Trainable()
	params := make([]optim.Param, len(list))
	for i, p := range list {
		params[i] = optim.Param{Name: p.Name, Value: p.Value, Grad: p.Grad, NoDecay: l.NoDecay && p.Vector()}
	}
	return params
}

// Eval is the sum of the losses of a batch, and how many there are: of tokens, or of preferences.
func (l *Low) Eval(ctx context.Context, b batches.Batch) (float64, int, error) {
	l.Runtime.Drop(false, 0)
	if h := l.Held; h != nil {
		h.Start()
		if err := h.Measure(ctx, l.Model, b); err != nil {
			return 0, 0, err
		}
		h.Weigh()
		return h.Value() * float64(h.Groups()), h.Groups(), nil
	}
	return eval(ctx, l.Model, b)
}

// Save writes all values and the optimiser's state, with progress (as JSON) in the header; with best only the values.
func (l *Low) Save(path string, progress any, best bool) error {
	if err := l.Fetch(); err != nil {
		return err
	}

	list := paramEntries(l.Adapter)
	if !best {
		state, err := l.state()
		if err != nil {
			return err
		}
		list = append(list, optimizerEntries(state)...)
	}

	return writeState(path, list, progress)
}

// state is the optimiser's, by the names of the parameters.
func (l *Low) state() (map[string][]float32, error) {
	if l.resident == nil {
		return l.Optim.State(), nil
	}
	err := l.step.Fetch()
	return l.resident.Apart(l.step.State()), err
}

// Restore takes over what Save has written.
func (l *Low) Restore(path string, best bool) error {
	f, err := readState(path, new(struct{}))
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
		// Files hold the state by parameter, as on the host, so that a run can go on elsewhere.
		if l.resident != nil {
			state = l.resident.Together(state)
		}
		if err == nil {
			err = l.Optim.Restore(state)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}

	// Values were read into host memory, which the device's copies are now behind of.
	if l.resident != nil {
		if err := l.resident.Push(); err != nil {
			return err
		}
	}

	return l.Runtime.Update()
}

// eval sums the losses of a batch.
func eval(ctx context.Context, m *lm.Model, b batches.Batch) (float64, int, error) {
	r, err := m.Forward(ctx, b.IDs, lm.ForwardOptions{Labels: b.Labels})
	if err != nil {
		return 0, 0, err
	}
	return r.Loss * float64(r.Counted), r.Counted, nil
}
