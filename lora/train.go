package lora

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/lora/internal/delta"
	"github.com/modelcompress/compress/lora/internal/kinds"
	"github.com/modelcompress/compress/lora/internal/train"
)

// ErrOtherRun: the state to resume from belongs to a run with other settings, data or base.
var ErrOtherRun = train.ErrOtherRun

// Unfinished returns after how many steps the newest state in a folder was written, from which Options.Resume goes
// on; 0 where there is none.
func Unfinished(dir string) (steps int, err error) {
	_, steps, err = train.Folder(dir).Latest()
	return steps, err
}

// ErrNothingToLearn: no token of the data counts.
var ErrNothingToLearn = batches.ErrEmpty

// Train trains an adapter for a model, which stays as it is, on sequences of tokens; labels that are
// corpus.Ignore are context only. An interrupted run keeps its state in Options.StateDir, from which the same
// call with Resume gives the same bits as one that was not interrupted. A loss that is not finite ends the run
// with an error that names the step and wraps lm.ErrNonFinite; from the state that is kept then, LR and Clip
// may be others. On an error the adapter is nil.
func Train(ctx context.Context, m *lm.Model, data corpus.Windows, o Options) (*Adapter, error) {
	if o.Init != nil {
		c := &o.Init.inner.Config
		if o.Kind != "" && o.Kind != string(c.Kind) || o.Rank != 0 && o.Rank != c.Rank ||
			o.Alpha != 0 && o.Alpha != c.Alpha {
			return nil, fmt.Errorf("%w: the adapter to start from is %s of rank %d and alpha %g, asked for is "+
				"%s, %d and %g",
				ErrConfig, c.Kind, c.Rank, c.Alpha, or(o.Kind, "any kind"), o.Rank, o.Alpha)
		}

		o = o.like(c)
	}

	o = o.withDefaults()
	if o.Init != nil {
		o.Init.inner.Config.KeepZeros = o.KeepZeros
	}
	if o.Kind == "full" {
		return nil, fmt.Errorf("%w: kind full makes no adapter; use Tune", ErrConfig)
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}

	inner, err := o.begin(ctx, m)
	if err == nil {
		err = o.place(ctx, m, inner, data)
	}
	if err != nil {
		return nil, err
	}

	teacher, err := o.distil(ctx, m, data)
	if err != nil {
		return nil, err
	}

	prefer, held, err := o.prefers(ctx, m, data)
	if err != nil {
		return nil, err
	}

	o.remarkRank(inner)
	zeros, err := o.zeros(m, inner)
	if err != nil {
		return nil, err
	}

	o.Rank = inner.Config.Rank
	r, err := delta.Attach(m, inner, delta.Options{Train: true})
	if err != nil {
		return nil, err
	}
	defer r.Detach()

	opt, err := o.optimizer(m)
	if err != nil {
		return nil, err
	}

	s := &train.Low{
		Model: m, Adapter: inner, Runtime: r, Optim: opt, Keep: o.keep(m), Seed: o.Seed, NoDecay: true,
		Distil: teacher, Ratio: o.LRRatio, Prefer: prefer, Held: held,
	}
	onDevice, err := o.resident(m)
	if err == nil {
		err = s.Reside(onDevice)
	}
	if err != nil {
		return nil, err
	}
	defer s.Free()

	report, err := o.run(ctx, m, data, s, inner.Count(), zeros)
	if err == nil {
		err = s.Fetch()
	}
	if err != nil {
		return nil, err
	}

	for _, p := range inner.Trainable() {
		p.Grad.Buf = nil
		p.Grad.Rows, p.Grad.Cols = 0, 0
	}

	if o.StateDir != "" { // known already
		if inner.Config.BaseHash, err = m.Fingerprint(ctx); err != nil {
			return nil, err
		}
	}

	a := &Adapter{inner: inner}
	report.DeadShards = a.DeadShards()
	a.report = report

	return a, nil
}

// Tune trains all parameters of a model, in place. See [Train].
func Tune(ctx context.Context, m *lm.Model, data corpus.Windows, o Options) (*Report, error) {
	o.Kind = "full"
	o = o.withDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}

	teacher, err := o.distil(ctx, m, data)
	if err != nil {
		return nil, err
	}
	zeros, err := o.zeros(m, nil)
	if err != nil {
		return nil, err
	}

	// Each update can be made during the backward pass, and its gradient dropped, if none has to wait for the norm
	// of all or for another micro-batch.
	fused := o.Optimizer != "adamw" || o.Clip == 0 && o.MicroBatch == 0
	opt, err := o.optimizer(m)
	if err != nil {
		return nil, err
	}

	onDevice, err := o.resident(m)
	if err != nil {
		return nil, err
	}

	f, err := train.NewFull(m, onDevice, !fused)
	if err != nil {
		return nil, err
	}
	defer f.Free()

	if f.Optim == nil {
		f.Optim = opt
	}

	f.Keep = o.keep(m)
	// Norms and biases are not pulled to zero.
	f.NoDecay = true
	f.Fused = fused
	f.KeepZeros = o.KeepZeros
	f.Distil = teacher
	report, err := o.run(ctx, m, data, f, m.NumParameters(), zeros)
	if err != nil || zeros == nil {
		return report, err
	}

	return report, zeros.recount(m)
}

// like takes over the kind and the sizes of an adapter.
func (o Options) like(c *adapter.Config) Options {
	o.Kind = string(c.Kind)
	o.Rank = c.Rank
	o.Alpha = c.Alpha

	o.Dropout = c.Dropout
	o.RSLoRA = c.RSLoRA
	o.DoRA = c.DoRA
	o.OutputBias = c.OutputBias
	o.Tie = c.Tying
	o.KeepZeros = o.KeepZeros || c.KeepZeros

	if c.Kind == adapter.MoS {
		o.EquivalentRank, o.Shards, o.Private, o.Sampling, o.Paired = c.MoS.EquivalentRank, c.MoS.Shards, c.MoS.Private,
			string(c.MoS.Sampling), !c.MoS.PairDissociation
		if o.Private == 0 {
			o.Private = -1
		}
	}
	o.MiniRank, o.Parts, o.Hybrid, o.ShiraMask = c.MiSS.Mini, c.GraLoRA.Parts, c.GraLoRA.Hybrid, c.SHiRA.Mask
	o.SharedRank, o.Share = c.RaSA.Shared, string(c.Share)

	return o
}

// Count is the number of low-rank parameters that the options train on a model, without making them.
func Count(m *lm.Model, o Options) (int64, error) {
	o = o.withDefaults()
	base, err := kinds.Of(m)
	if err != nil {
		return 0, err
	}

	c, err := o.config("", base.Modules())
	if err != nil {
		return 0, err
	}

	return kinds.Trainable(&c, base.Modules())
}

// begin makes the adapter that training starts with.
func (o Options) begin(ctx context.Context, m *lm.Model) (*adapter.Adapter, error) {
	if o.Init != nil {
		c := &o.Init.inner.Config
		remark, err := o.Init.OtherBase(ctx, m)
		// Without a hash the adapter only names its base, and a name proves nothing.
		if err == nil && c.BaseHash != "" {
			err = refuseOther(remark, o.AllowOtherBase)
		}

		// Trained on, the adapter belongs to this base.
		if err == nil && remark != "" {
			c.Base, c.BaseHash = filepath.Clean(m.Path()), ""
		}

		return o.Init.inner, err
	}

	base, err := kinds.Of(m)
	if err != nil {
		return nil, err
	}

	c, err := o.config(baseName(filepath.Clean(m.Path())), base.Modules())
	if err != nil {
		return nil, err
	}

	// A setting that fits no module of this base is more likely misspelt than meant.
	if err := c.Idle(base.Modules()); err != nil {
		return nil, err
	}

	return kinds.New(c, base, o.Seed)
}

// resident is the optimiser on the model's device; nil where that makes no such steps.
func (o Options) resident(m *lm.Model) (*optim.DeviceAdamW, error) {
	if o.Optimizer == "lomo" || o.Optimizer == "adalomo" {
		return nil, nil
	}
	onDevice, err := optim.NewDeviceAdamW(o.adamw(m), m.Device())
	if errors.Is(err, optim.ErrDevice) {
		return nil, nil
	}
	return onDevice, err
}

func (o Options) adamw(m *lm.Model) optim.AdamWOptions {
	return optim.AdamWOptions{
		Beta1: o.Beta1, Beta2: o.Beta2, WeightDecay: o.WeightDecay, Master: true,
		Threads: m.Device().Info().Threads,
	}
}

func (o Options) optimizer(m *lm.Model) (optim.Optimizer, error) {
	threads := m.Device().Info().Threads
	switch o.Optimizer {
	case "lomo":
		return optim.NewLOMO(optim.LOMOOptions{WeightDecay: o.WeightDecay, Threads: threads})
	case "adalomo":
		return optim.NewAdaLomo(optim.AdaLomoOptions{WeightDecay: o.WeightDecay, Threads: threads})
	}
	return optim.NewAdamW(o.adamw(m))
}

// keep is how many bytes may be spent on activations.
func (o Options) keep(m *lm.Model) int64 {
	switch {
	case o.Memory < 0:
		return 0
	case o.Memory > 0:
		return o.Memory
	}
	return m.Device().Info().Free / 2
}

// layout says which sequences the steps of a run see.
func (o Options) layout(m *lm.Model, data corpus.Windows) (*batches.Plan, error) {
	if err := data.Check(m.Config().Vocab); err != nil {
		return nil, err
	}
	if err := o.fits(m, data); err != nil {
		return nil, err
	}

	var sets []batches.Set
	for _, s := range o.Sets {
		sets = append(sets, batches.Set(s))
	}

	p, err := batches.New(batches.Data{IDs: data.IDs, Labels: data.Labels}, batches.Options{
		Steps: o.Steps, Batch: o.Batch, Micro: o.MicroBatch, Tokens: o.Pack, Ordered: o.Ordered, Seed: o.Seed,
		Group: o.group(), Sets: sets, Passes: o.Epochs,
	})
	if errors.Is(err, batches.ErrSets) {
		err = fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return p, err
}

// evalBatches is how held-out data is laid out.
func (o Options) evalBatches() batches.Options {
	return batches.Options{Batch: max(or(o.MicroBatch, o.Batch), 1), Ordered: true, Group: o.group()}
}

// run lays the run out and trains a subject; zeros are those of the model before.
func (o Options) run(ctx context.Context, m *lm.Model, data corpus.Windows, s subject, trainable int64,
	zeros *Zeros,
) (*Report, error) {
	p, err := o.layout(m, data)
	if err != nil {
		return nil, err
	}

	r := &run{subject: s, o: o, plan: p, states: train.Folder(o.StateDir)}
	if r.schedule, err = optim.NewSchedule(o.Schedule, o.Warmup, len(p.Steps)); err != nil {
		return nil, err
	}

	if o.Eval != nil {
		if err := o.Eval.Check(m.Config().Vocab); err != nil {
			return nil, err
		}

		// Data of which no token counts is refused now rather than after the first steps.
		r.heldOut = &batches.Data{IDs: o.Eval.IDs, Labels: o.Eval.Labels}
		if _, err := batches.New(*r.heldOut, o.evalBatches()); err != nil {
			return nil, fmt.Errorf("evaluation data: %w", err)
		}
	}

	if o.StateDir != "" {
		if r.fingerprint, err = o.fingerprint(ctx, m, data, len(p.Steps)); err != nil {
			return nil, err
		}

		free := o
		free.LR, free.Clip = 0, 0
		if r.same, err = free.fingerprint(ctx, m, data, len(p.Steps)); err != nil {
			return nil, err
		}
	}

	err = r.train(ctx, func(done int) {
		if o.Plan != nil {
			o.Plan(RunPlan{
				Steps: len(p.Steps), Done: done, Trainable: trainable, Dropped: p.Dropped,
				Earlier: r.done.Steps, Evals: r.done.Evals, Zeros: zeros,
			})
		}
	})
	if err != nil {
		return nil, err
	}

	report := r.report(m, data, trainable)
	report.Zeros = zeros
	return report, nil
}

// fingerprint identifies a run: what its result depends on.
func (o Options) fingerprint(ctx context.Context, m *lm.Model, data corpus.Windows, steps int) (string, error) {
	base, err := m.Fingerprint(ctx)
	if err != nil {
		return "", err
	}

	// What doesn't change the result may change between runs: memory, how often states are saved, and steps that
	// come out the same.
	o.Memory = 0
	o.Steps = steps
	o.Epochs = 0
	o.SaveEvery = 0
	text, err := json.Marshal(struct {
		Options Options
		Base    string
		Data    string
		Labels  string
		// Others round differently: a run continued there would not have the same bits.
		Device string
		Arch   string
	}{o, base, corpus.HashIDs(data.IDs), corpus.HashIDs(data.Labels), m.Device().Info().Name, runtime.GOARCH})
	if err != nil {
		return "", err
	}

	h := sha256.New()
	h.Write(text)

	if o.Init != nil {
		init, err := o.Init.Fingerprint()
		if err != nil {
			return "", err
		}
		h.Write([]byte(init))
	}

	return hex.EncodeToString(h.Sum(nil)), nil
}
