package prune

import (
	"cmp"
	"slices"

	"github.com/modelcompress/compress/internal/stats"
)

// HeldOut is a perplexity on the windows that all models of a comparison are measured on.
type HeldOut struct {
	Perplexity float64   `json:"ppl"`
	Stderr     *float64  `json:"stderr"` // of the perplexity, over windows; nil for a single one
	NLL        float64   `json:"nll"`    // nats per token
	Windows    []float64 `json:"window_nll"`
	Tokens     int64     `json:"tokens"` // predicted
}

// Outcome is what one contender gave.
type Outcome struct {
	Method string `json:"method"`
	Target string `json:"target"`
	Key    string `json:"fingerprint"` // of model, calibration ids and options
	HeldOut
	Sparsity float64 `json:"sparsity"`      // exact fraction of zeros in the pruned matrices
	Overall  float64 `json:"overall"`       // zeros over all parameters
	Seconds  float64 `json:"prune_seconds"` // but for what follows
	// for gradients and allocations, most of which later runs take from earlier ones
	Shared float64 `json:"shared_seconds,omitempty"`
	CPU    float64 `json:"prune_cpu_seconds"` // processor time of the whole pruning, shared parts included
	Model  string  `json:"model,omitempty"`   // folder, if it was kept
	// Files are the SHA-256 of the kept model's files, by their paths in its folder.
	Files  map[string]string `json:"files,omitempty"`
	Notes  []string          `json:"notes,omitempty"`
	Versus *Versus           `json:"versus_best,omitempty"` // nil for the best of its target, and without a test

	Interval *[2]float64 `json:"nll_difference_ci95,omitempty"` // of the difference of Versus, 95 %
}

// Versus is the paired test of a contender against the best one of its target: Student's t on the differences of the
// windows' mean losses.
type Versus struct {
	Best       string  `json:"best"`           // method
	Difference float64 `json:"nll_difference"` // mean over windows, nats per token
	Stderr     float64 `json:"stderr"`
	T          float64 `json:"t"`
	Windows    int     `json:"windows"`
	P          float64 `json:"p"`      // two-sided; NaN where a loss is not finite
	Adjusted   float64 `json:"p_holm"` // for as many comparisons as the target has (Holm, 1979)
}

// MarshalJSON writes null for what is not finite.
func (v Versus) MarshalJSON() ([]byte, error) { return stats.Versus(v).MarshalJSON() }

// UnmarshalJSON reads what MarshalJSON writes; null is NaN.
func (v *Versus) UnmarshalJSON(text []byte) error { return (*stats.Versus)(v).UnmarshalJSON(text) }

// Comparison is the record of a comparison.
type Comparison struct {
	Command     string    `json:"command"` // always "compress prune compare"
	Model       string    `json:"model"`
	Calibration string    `json:"calibration_hash"` // of the ids that all runs had; empty: none asked for any
	Data        string    `json:"data_hash"`        // of the ids of the perplexities
	Source      string    `json:"data"`
	SeqLen      int       `json:"seqlen"`
	Dense       HeldOut   `json:"dense"`
	Runs        []Outcome `json:"runs"`
	Resumed     int       `json:"resumed"` // runs taken from the journal

	Impossible []Impossible `json:"impossible,omitempty"` // runs that there are no figures of
}

// Impossible is a run that its method cannot do on the model.
type Impossible struct {
	Method string `json:"method"`
	Target string `json:"target"`
	Reason string `json:"reason"`
}

// Targets lists the targets in order, those of which no run is possible behind the others.
func (r *Comparison) Targets() []string {
	var out []string
	for i := range r.Runs {
		if !slices.Contains(out, r.Runs[i].Target) {
			out = append(out, r.Runs[i].Target)
		}
	}
	for i := range r.Impossible {
		if !slices.Contains(out, r.Impossible[i].Target) {
			out = append(out, r.Impossible[i].Target)
		}
	}
	return out
}

// Of lists the runs of a target.
func (r *Comparison) Of(target string) []*Outcome {
	var out []*Outcome
	for i := range r.Runs {
		if r.Runs[i].Target == target {
			out = append(out, &r.Runs[i])
		}
	}
	return out
}

// judge compares every run with the best one of its target, the one with the lowest loss; a single window
// allows no test.
func (r *Comparison) judge() {
	for _, target := range r.Targets() {
		runs := r.Of(target)
		if len(runs) == 0 {
			continue
		}
		best := slices.MinFunc(runs, func(a, b *Outcome) int { return cmp.Compare(a.NLL, b.NLL) })

		var tests []*stats.Versus
		for _, run := range runs {
			run.Versus, run.Interval = nil, nil
			if run == best || len(run.Windows) < 2 || len(run.Windows) != len(best.Windows) {
				continue
			}

			test := stats.NewVersus(run.Windows, best.Windows)
			test.Best = best.Method
			tests = append(tests, test)

			half := test.HalfWidth()
			run.Versus = (*Versus)(test)
			run.Interval = &[2]float64{test.Difference - half, test.Difference + half}
		}

		stats.AdjustHolm(tests) // several tests against one best would find a difference by chance
	}
}
