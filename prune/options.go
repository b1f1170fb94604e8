package prune

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// Options says how to prune. The zero value, with a Sparsity, prunes by Wanda, unstructured, every block alike, and leaves
// the result in the model.
type Options struct {
	Metric Metric `json:"metric"` // zero: Wanda

	// Sparsity is the share of the weights to prune, from 0 (nothing is pruned) to less than 1. With an N:M pattern it
	// follows from the pattern; leave it 0 or give N/M.
	Sparsity   float64    `json:"sparsity"`
	Pattern    Pattern    `json:"pattern"`    // zero: unstructured
	Group      Group      `json:"group"`      // empty: the metric's own
	Allocation Allocation `json:"allocation"` // zero: uniform

	// BatchTokens is about how many calibration tokens run through a block at a time, at least one sequence; 0 means 8192.
	BatchTokens int `json:"batch_tokens"`

	// Out receives every finished matrix, and Model finishes it: the folder appears when Model returns without an error.
	// After an error the caller ends both with Suspend or Abort. nil: the pruned weights stay in memory, in the model.
	Out *lm.Saver `json:"-"`
	// Masks receives the mask of every matrix, and Model finishes it, just before Out. nil: no masks are written.
	Masks *Masks `json:"-"`

	Events Events `json:"-"`
}

// Events are called as work goes on, from the goroutine of Model. Every field may be nil.
type Events struct {
	Step   func(Step)   // something is about to run
	Tensor func(Tensor) // a matrix is finished
	// Mask sees the keep mask of a matrix in the layout of the weight, U8, on the model's device; it is good until the
	// call returns. Matrices restored from an interrupted run have none.
	Mask func(name string, keep kernels.Mat)
}

// Step is a point of the work.
type Step struct {
	Stage Stage `json:"stage"`
	Block int   `json:"block"`
	Done  int   `json:"done"` // sequences or matrices of this stage and block
	Of    int   `json:"of"`
}

// Stage is a kind of work.
type Stage string

// The stages, in the order in which they come for a block. Allocate comes before the first block.
const (
	Allocate   Stage = "allocate"   // measuring how much each block can lose
	Statistics Stage = "statistics" // running the dense block
	Select     Stage = "select"     // scoring and zeroing
	Propagate  Stage = "propagate"  // running the pruned block
	Save       Stage = "save"       // copying the rest of the checkpoint
)

func (o *Options) setDefaults() {
	if o.Metric.Name == "" && o.Metric.Score == nil {
		o.Metric = Wanda()
	}
	if o.Group == "" {
		o.Group = o.Metric.Group
	}
	if o.Group == "" || o.Pattern.Structured() {
		o.Group = Row
	}
	if o.Pattern.Structured() {
		o.Sparsity = o.Pattern.Sparsity()
	}
	if o.BatchTokens == 0 {
		o.BatchTokens = 8192
	}
	o.Allocation.setDefaults()
}

// Validate returns every fault of the options, joined; nil if there is none. The faults wrap ErrOptions or ErrUnknown.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}
	if (o.Metric.Name == "") != (o.Metric.Score == nil) {
		fault("a metric needs a name and a Score")
	}
	if !(o.Sparsity >= 0 && o.Sparsity < 1) {
		fault("sparsity %g; want 0 or more and less than 1", o.Sparsity)
	}
	if err := o.Pattern.validate(); err != nil {
		faults = append(faults, err)
	} else if o.Pattern.Structured() && o.Sparsity != 0 && o.Sparsity != o.Pattern.Sparsity() {
		fault("sparsity %g with pattern %s, which prunes %g; leave the sparsity out", o.Sparsity, o.Pattern, o.Pattern.Sparsity())
	}
	switch o.Group {
	case "", Row:
	case Layer:
		if o.Pattern.Structured() {
			fault("group %s with pattern %s, whose groups are %d inputs of a neuron", o.Group, o.Pattern, o.Pattern.M)
		}
	default:
		faults = append(faults, fmt.Errorf("group %q: %w; known: %s, %s", o.Group, ErrUnknown, Row, Layer))
	}
	if o.BatchTokens < 0 {
		fault("%d tokens at a time", o.BatchTokens)
	}
	return errors.Join(append(faults, o.Allocation.validate())...)
}
