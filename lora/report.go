package lora

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
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
	Sets      []SetUse       `json:"sets,omitempty"`    // of Options.Sets
	Device    kernels.Info   `json:"device"`
	Steps     []Step         `json:"steps"`
	Evals     []Eval         `json:"evals,omitempty"`
	Best      int            `json:"best_step,omitempty"` // steps done at the best evaluation, where that was kept
	Seconds   float64        `json:"train_seconds"`
	Tokens    int64          `json:"tokens"`
	PerSecond float64        `json:"tokens_per_second"`
}

// SetUse is what the steps of a run have seen of a set of the data.
type SetUse struct {
	Share  float64 `json:"share"`  // of the draws that was asked for
	Usable int     `json:"usable"` // sequences with a token that counts; of preferences pairs or answers
	Drawn  int     `json:"drawn"`  // with repetitions
	Epochs float64 `json:"epochs"` // passes over the set: drawn over usable, 0 where there is none
}

// Report is what the training of the adapter did; nil for one that was read from files.
func (a *Adapter) Report() *Report { return a.report }

// report sums up what the run has done, earlier runs of which it is the continuation included.
func (r *run) report(m *lm.Model, data corpus.Windows, trainable int64) *Report {
	out := &Report{
		Options: r.o, Trainable: trainable, Base: m.NumParameters(), Data: data, Dropped: r.plan.Dropped,
		Device: m.Device().Info(), Steps: r.done.Steps, Evals: r.done.Evals,
	}

	sum := 0.0
	for _, s := range r.o.Sets {
		sum += s.Weight
	}
	for k, u := range r.plan.Uses {
		out.Sets = append(out.Sets, SetUse{
			Share: r.o.Sets[k].Weight / sum, Usable: u.Usable, Drawn: u.Drawn,
			Epochs: float64(u.Drawn) / float64(max(u.Usable, 1)),
		})
	}

	for _, s := range r.done.Steps {
		out.Seconds += s.Seconds
		out.Tokens += int64(s.Tokens)
	}

	if out.Seconds > 0 {
		out.PerSecond = float64(out.Tokens) / out.Seconds
	}

	for _, e := range r.done.Evals {
		if e.Best && r.o.KeepBest {
			out.Best = e.Step
		}
	}

	return out
}
