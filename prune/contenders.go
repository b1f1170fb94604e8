package prune

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
)

// ErrEntry: a list of methods or targets that cannot be understood.
var ErrEntry = failure.Misuse("bad list", "")

// Contender is one way of pruning in a comparison.
type Contender struct {
	Method, Target string // what reports and errors call it
	// Options of the run. Out, Masks, Memo and Events.Step are set by [Compare]; without a file of gradients and a name
	// to keep them under, gradients are kept in the comparison's folder while it runs.
	Options Options
}

// Contenders makes every combination of the methods and the targets of two lists, whose entries are separated by
// commas: targets in order, each with all methods. A method is a name or a formula as [MetricByName] takes it, with
// @ALLOCATION and +UPDATE where they are not those of shared: "pruner-zero@owl+sparsegpt,expr:abs(W)*sqrt(X)", and
// +swaps before the update where the mask is refined, in [SwapPasses] unless shared says otherwise:
// "wanda+swaps+sparsegpt"; commas within brackets belong to a formula. A target is a sparsity of 0 or more and less
// than 1, or a pattern such as 2:4.
//
// Everything else comes from shared, whose Metric, Pattern and Sparsity are not looked at. A setting that a method or
// target has no use for, which would be a fault of a single run, is dropped for it: gradients where the metric reads
// none, the numbers of another allocation or update, a permutation without a pattern, a group with one.
//
// All options are validated. The errors wrap [ErrEntry], [ErrUnknown] and [ErrOptions], and those of package gp.
func Contenders(methods, targets string, shared Options) ([]Contender, error) {
	ways, err := parseWays(methods)
	if err != nil {
		return nil, err
	}

	amounts, err := parseAmounts(targets)
	if err != nil {
		return nil, err
	}

	var out []Contender
	for _, a := range amounts {
		for _, w := range ways {
			c := Contender{Method: w.label, Target: a.label, Options: shared}
			if c.Options.Metric, err = MetricByName(w.metric); err != nil {
				return nil, err
			}

			c.Options.Pattern, c.Options.Sparsity = a.pattern, a.sparsity
			if w.allocation != "" {
				c.Options.Allocation.Name = w.allocation
			}
			if w.update != "" {
				c.Options.Update.Name = w.update
			}

			// Shared settings suit some methods only; what a single run would refuse is dropped here.
			c.Options.narrow()
			if w.swaps {
				c.Options.Swaps, c.Options.SwapDiagonal = cmp.Or(shared.Swaps, SwapPasses), shared.SwapDiagonal
			}
			if err := c.Options.Validate(); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", c.Target, c.Method, err)
			}

			out = append(out, c)
		}
	}

	return out, nil
}

// way is a method of a list: METRIC, with @ALLOCATION, +swaps and +UPDATE where they are not the usual ones.
type way struct {
	label, metric, allocation, update string
	swaps                             bool
}

func parseWays(list string) ([]way, error) {
	labels, err := splitList(list)
	if err != nil {
		return nil, err
	}

	var out []way
	for _, label := range labels {
		w := way{label: label, metric: label}
		w.metric, w.update = cutEnd(w.metric, "+", updates)
		w.metric, w.swaps = strings.CutSuffix(w.metric, "+swaps")
		w.metric, w.allocation = cutEnd(w.metric, "@", allocations)

		if slices.ContainsFunc(out, func(o way) bool { return o.label == label }) {
			return nil, fmt.Errorf("%w: method %s is there twice", ErrEntry, label)
		}

		out = append(out, w)
	}

	return out, nil
}

// cutEnd takes a mark and a known name from the end of a text. What follows the mark otherwise belongs to the text: a
// formula may end in "+X".
func cutEnd(text, mark string, known []string) (before, name string) {
	for _, name := range known {
		if rest, ok := strings.CutSuffix(text, mark+name); ok {
			return rest, name
		}
	}
	return text, ""
}

// amount is a target of a list: how much is to go.
type amount struct {
	label    string
	sparsity float64
	pattern  Pattern
}

func parseAmounts(list string) ([]amount, error) {
	labels, err := splitList(list)
	if err != nil {
		return nil, err
	}

	var out []amount
	for _, label := range labels {
		a := amount{label: label}
		if strings.Contains(label, ":") {
			if a.pattern, err = ParsePattern(label); err != nil {
				return nil, err
			}
		} else if a.sparsity, err = strconv.ParseFloat(label, 64); err != nil || !(a.sparsity >= 0 && a.sparsity < 1) {
			// Negated, so that NaN is refused.
			return nil, fmt.Errorf("%w: %q; want a sparsity of 0 or more and less than 1, or a pattern such as 2:4",
				ErrEntry, label)
		}

		if slices.ContainsFunc(out, func(o amount) bool { return o.label == label }) {
			return nil, fmt.Errorf("%w: %s is there twice", ErrEntry, label)
		}

		out = append(out, a)
	}

	return out, nil
}

// splitList cuts at the commas outside of brackets. An empty entry is a slip.
func splitList(list string) (out []string, err error) {
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

// narrow drops the settings that the metric, the allocation, the update and the pattern do not have. Several
// contenders share them, of which each takes what concerns it.
func (o *Options) narrow() {
	if o.Metric.Needs&Gradients == 0 {
		o.Gradients = GradientOptions{}
	}

	if o.Pattern.Structured() {
		o.Group = "" // a pattern has its own
	} else {
		o.Permutation = Identity
	}

	a := o.Allocation
	o.Allocation = Allocation{Name: a.Name}
	switch a.Name {
	case OWLMixed:
		o.Allocation.M, o.Allocation.Lambda, o.Allocation.Special = a.M, a.Lambda, a.Special
	case OWL:
		o.Allocation.M, o.Allocation.Lambda = a.M, a.Lambda
	case Alpha:
		o.Allocation.Epsilon, o.Allocation.Estimator = a.Epsilon, a.Estimator
	case Global:
		o.Allocation.Max = a.Max
	case Search:
		o.Allocation.Generations, o.Allocation.Offspring, o.Allocation.Seed = a.Generations, a.Offspring, a.Seed
	}

	if !o.Metric.splits {
		o.LowRank = LowRank{}
	}

	o.Update = o.narrowUpdate()
	if o.Swaps == 0 || len(o.swapFaults()) > 0 {
		o.Swaps, o.SwapDiagonal = 0, 0
	}
}

// narrowUpdate is the update without the settings of others.
func (o *Options) narrowUpdate() Update {
	all := o.Update

	// Asked of options with nothing but the names: settings that are to be dropped must not answer for themselves.
	bare := Options{Metric: o.Metric, Update: Update{Name: all.Name}}

	u := bare.Update
	u.Guard = all.Guard && bare.HasUpdate()
	if bare.Needs()&Hessian != 0 {
		u.Damping = all.Damping
	}
	if o.Metric.sweeps {
		u.Width = all.Width
	}

	switch u.Name {
	case ADMM:
		u.Steps = all.Steps
		u.MaskSteps = all.MaskSteps
		u.Polish = all.Polish
	case DSnoT:
		u.Cycles = all.Cycles
		u.Threshold = all.Threshold
		u.SameSign = all.SameSign
		u.Strict = all.Strict
		u.MLP = all.MLP
	}

	return u
}
