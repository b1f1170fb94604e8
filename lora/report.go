package lora

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/lora/internal/train"
)

// Report is what a run of training did.
type Report struct {
	Options    Options `json:"options"`
	Trainable  int64   `json:"trainable_parameters"`
	Base       int64   `json:"base_parameters"`
	DeadShards int     `json:"dead_shards,omitempty"` // counted among the trainable ones
	// of the trained or adapted matrices; nil where they have none
	Zeros     *Zeros         `json:"zeros,omitempty"`
	Data      corpus.Windows `json:"data"`
	Dropped   int            `json:"dropped_sequences"` // without a token that counts
	Device    kernels.Info   `json:"device"`
	Steps     []Step         `json:"steps"`
	Evals     []Eval         `json:"evals,omitempty"`
	Best      int            `json:"best_step,omitempty"` // steps done at the best evaluation, where that was kept
	Seconds   float64        `json:"train_seconds"`
	Tokens    int64          `json:"tokens"`
	PerSecond float64        `json:"tokens_per_second"`
}

// Report is what the training of the adapter did; nil for one that was read from files.
func (a *Adapter) Report() *Report { return a.report }

func (o Options) reportOf(m *lm.Model, data corpus.Windows, p *batches.Plan, done *train.Progress,
	trainable int64,
) *Report {
	r := &Report{
		Options: o, Trainable: trainable, Base: m.NumParameters(), Data: data, Dropped: p.Dropped,
		Device: m.Device().Info(),
		Steps:  each(done.Steps, func(s train.Step) Step { return Step(s) }),
		Evals:  each(done.Evals, func(e train.Eval) Eval { return Eval(e) }),
	}

	for _, s := range done.Steps {
		r.Seconds += s.Seconds
		r.Tokens += int64(s.Tokens)
	}

	if r.Seconds > 0 {
		r.PerSecond = float64(r.Tokens) / r.Seconds
	}

	for _, e := range done.Evals {
		if e.Best && o.KeepBest {
			r.Best = e.Step
		}
	}

	return r
}
