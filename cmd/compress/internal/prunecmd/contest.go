package prunecmd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/prune"
)

// ErrEntry: a list of methods or patterns that cannot be understood.
var ErrEntry = errors.New("bad list")

// Method is one way of pruning: METRIC, with @ALLOCATION and +UPDATE where they are not the usual ones.
type Method struct {
	Label      string // as written
	Metric     string
	Allocation string // empty: uniform
	Update     string // empty: the metric's own
}

// ParseMethods reads methods separated by commas; commas within brackets belong to a formula.
func ParseMethods(list string) ([]Method, error) {
	labels, err := split(list)
	if err != nil {
		return nil, err
	}

	var out []Method
	for _, label := range labels {
		m := Method{Label: label, Metric: label}
		for _, u := range Updates {
			if rest, ok := strings.CutSuffix(m.Metric, "+"+u); ok {
				m.Metric, m.Update = rest, u
				break
			}
		}

		for _, a := range Allocations {
			if rest, ok := strings.CutSuffix(m.Metric, "@"+a); ok {
				m.Metric, m.Allocation = rest, a
				break
			}
		}

		if slices.ContainsFunc(out, func(o Method) bool { return o.Label == label }) {
			return nil, fmt.Errorf("%w: method %s is there twice", ErrEntry, label)
		}

		out = append(out, m)
	}

	return out, nil
}

// split cuts at the commas outside of brackets. An empty entry is a slip.
func split(list string) (out []string, err error) {
	depth, from := 0, 0
	for i, c := range list + "," {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && (depth <= 0 || i == len(list)):
			part := strings.TrimSpace(list[from:i])
			if part == "" {
				return nil, fmt.Errorf("%w: %q: entry %d is empty", ErrEntry, list, len(out)+1)
			}
			out, from = append(out, part), i+1
		}
	}

	return out, nil
}

// Target is how much is to go: a sparsity or a pattern.
type Target struct {
	Label    string
	Sparsity float64 // 0 with a pattern
	Pattern  string
}

// ParseTargets reads sparsities such as 0.5 and patterns such as 2:4, separated by commas.
func ParseTargets(list string) ([]Target, error) {
	labels, err := split(list)
	if err != nil {
		return nil, err
	}

	var out []Target
	for _, label := range labels {
		t := Target{Label: label, Pattern: label}
		if strings.Contains(label, ":") {
			if _, err := prune.ParsePattern(label); err != nil {
				return nil, err
			}
		} else {
			v, err := strconv.ParseFloat(label, 64)
			if err != nil || !(v >= 0 && v < 1) {
				return nil, fmt.Errorf("%w: %q; want a sparsity of 0 or more and less than 1, or a pattern such as 2:4",
					ErrEntry, label)
			}
			t.Sparsity, t.Pattern = v, prune.Unstructured
		}

		if slices.ContainsFunc(out, func(o Target) bool { return o.Label == label }) {
			return nil, fmt.Errorf("%w: %s is there twice", ErrEntry, label)
		}

		out = append(out, t)
	}

	return out, nil
}

// Measure is a perplexity on the data that all runs share.
type Measure struct {
	Perplexity float64   `json:"ppl"`
	Stderr     *float64  `json:"stderr"` // over windows; null for a single one
	NLL        float64   `json:"nll"`    // nats per token
	Windows    []float64 `json:"window_nll"`
	Tokens     int64     `json:"tokens"`
}

// Run is what one way of pruning gave.
type Run struct {
	Method string `json:"method"`
	Target string `json:"target"`
	Key    string `json:"fingerprint"` // of model, calibration ids and options
	Measure
	Sparsity float64 `json:"sparsity"`      // exact share of zeros in the pruned matrices
	Overall  float64 `json:"overall"`       // zeros over all parameters
	Seconds  float64 `json:"prune_seconds"` // but for what follows
	// for gradients and allocations, most of which later runs take from earlier ones
	Shared float64 `json:"shared_seconds,omitempty"`
	CPU    float64 `json:"prune_cpu_seconds"` // processor time of the whole pruning, shared parts included
	Model  string  `json:"model,omitempty"`   // folder, if it was kept
	// Files are the SHA-256 of its files, by their paths in it.
	Files  map[string]string `json:"files,omitempty"`
	Notes  []string          `json:"notes,omitempty"`
	Versus *stats.Versus     `json:"versus_best,omitempty"` // nil for the best of its target

	Interval *[2]float64 `json:"nll_difference_ci95,omitempty"` // of the difference of Versus
}

// ContestReport is a whole comparison.
type ContestReport struct {
	Command     string  `json:"command"`
	Model       string  `json:"model"`
	Calibration string  `json:"calibration_hash"` // of the ids that all runs had; empty: none asked for any
	Data        string  `json:"data_hash"`        // of the ids of the perplexities
	Source      string  `json:"data"`
	SeqLen      int     `json:"seqlen"`
	Dense       Measure `json:"dense"`
	Runs        []Run   `json:"runs"`
	Resumed     int     `json:"resumed"` // runs taken from the journal
}

// Command marks the reports and journals of comparisons.
const Command = "compress prune compare"

// targets lists the targets in order.
func (r *ContestReport) targets() []string {
	var out []string
	for i := range r.Runs {
		if !slices.Contains(out, r.Runs[i].Target) {
			out = append(out, r.Runs[i].Target)
		}
	}
	return out
}

// of lists the runs of a target.
func (r *ContestReport) of(target string) []*Run {
	var out []*Run
	for i := range r.Runs {
		if r.Runs[i].Target == target {
			out = append(out, &r.Runs[i])
		}
	}
	return out
}

// judge compares every run with the best one of its target, the one with the lowest loss; a single window
// allows no test.
func (r *ContestReport) judge() {
	for _, target := range r.targets() {
		runs := r.of(target)
		best := slices.MinFunc(runs, func(a, b *Run) int { return cmp.Compare(a.NLL, b.NLL) })
		var tests []*stats.Versus
		for _, run := range runs {
			run.Versus, run.Interval = nil, nil
			if run == best || len(run.Windows) < 2 || len(run.Windows) != len(best.Windows) {
				continue
			}

			run.Versus = stats.NewVersus(run.Windows, best.Windows)
			run.Versus.Best = best.Method

			half := run.Versus.HalfWidth()
			run.Interval = &[2]float64{run.Versus.Difference - half, run.Versus.Difference + half}
			tests = append(tests, run.Versus)
		}

		stats.AdjustHolm(tests)
	}
}
