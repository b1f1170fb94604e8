package prune

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// Options says how to prune. The zero value, with a Sparsity, prunes by Wanda, unstructured, every block alike,
// and leaves the result in the model.
type Options struct {
	Metric Metric `json:"metric"` // zero: Wanda

	// Sparsity is the share of the weights to prune, from 0 (nothing is pruned) to less than 1. With an N:M pattern it
	// follows from the pattern; leave it 0 or give N/M.
	Sparsity    float64         `json:"sparsity"`
	Pattern     Pattern         `json:"pattern"`     // zero: unstructured
	Group       Group           `json:"group"`       // empty: the metric's own
	Allocation  Allocation      `json:"allocation"`  // zero: uniform
	Permutation Permutation     `json:"permutation"` // of the inputs, before an N:M pattern; zero: none
	Update      Update          `json:"update"`      // zero: none; with metric SparseGPT: SparseGPTUpdate
	Gradients   GradientOptions `json:"gradients"`   // where G comes from
	Overrides   []Override      `json:"overrides,omitempty"`

	// Swaps is how many passes of exchanges between kept and pruned weights of a row refine the mask, before the
	// update, each of which lowers the squared error of the row's output (SparseSwaps, arXiv:2512.10922); it needs the
	// Hessian. A pass makes all swaps that help within 128 columns at a time. 0: none.
	Swaps int `json:"swaps,omitempty"`
	// SwapDiagonal is how many times its diagonal is added to the Gram matrix that swaps look at, G + r·diag(G), r from
	// 0 to 1e6: how inputs go together on the calibration text counts less, and the norm of each more, which carries
	// over to other text. 0: G as it was measured; far above 1: the norms alone, as with Wanda.
	SwapDiagonal float64 `json:"swap_diagonal,omitempty"`

	// LowRank belongs to the metric OATS.
	LowRank LowRank `json:"low_rank,omitzero"`

	// MasksFrom is a .safetensors file or folder with a keep mask for every matrix, as [Masks] writes them: U8,
	// named, shaped and laid out like the weight, 1 = kept. It stands in the place of metric, sparsity,
	// pattern, group, allocation and overrides, which must be left out. SparseGPTUpdate, and ADMM without
	// MaskSteps, update what stays and alone need calibration data. Empty: the metric chooses.
	MasksFrom string `json:"masks_from,omitempty"`

	// TrueSequential measures the matrices of a block in the order in which they run, each once those before it
	// in the block are pruned: q, k and v; o; gate and up; down. Otherwise all are measured in the dense block.
	// It runs a block four times.
	TrueSequential bool `json:"true_sequential,omitempty"`

	// Norms stand for a pass through the model where metric and allocation need the sums of squares alone; no
	// calibration data is needed then. nil: what flows into the matrices is measured.
	Norms *Norms `json:"norms,omitempty"`
	// Squares is told what flowed into each matrix, which then is measured whatever the metric needs, behind the pruned
	// blocks before it; also of blocks that an interrupted run has finished. nil: nobody is.
	Squares func(name string, s Squares) `json:"-"`

	// HessianMemory is about how many bytes the Hessians of a block may take; 0 means 2 GiB. A block whose
	// Hessians take more is run several times, from its end to its beginning, with those of one input at least;
	// the result is the same.
	HessianMemory int64 `json:"-"`

	// BatchTokens is about how many calibration tokens run through a block at a time, at least one sequence; 0
	// means 8192. Where variances are asked for, it is one sequence.
	BatchTokens int `json:"batch_tokens"`

	// Known gives a figure that an interrupted allocation by search has measured, Note takes a new one; nil: nothing is
	// known, nobody is told. Key is one of the search's own.
	Known func(key string) (float64, bool)       `json:"-"`
	Note  func(key string, figure float64) error `json:"-"`

	// Out receives every finished matrix, and Model finishes it: the folder appears when Model returns without
	// an error. After an error the caller ends both with Suspend or Abort. nil: the pruned weights stay in
	// memory, in the model.
	Out *lm.Saver `json:"-"`
	// Masks receives the mask of every matrix, and Model finishes it, just before Out. nil: no masks are written.
	Masks *Masks `json:"-"`

	// Factors receives the low-rank parts of metric OATS, and Model finishes it, just before Out, beside which alone it
	// can stand. nil: they are added to the sparse parts.
	Factors *Factors `json:"-"`

	// Memo lets runs on the same model and calibration data share measurements. nil: nothing is shared.
	Memo *Memo `json:"-"`

	Events Events `json:"-"`
}

// Events are called as work goes on, from the goroutine of Model. Every field may be nil.
type Events struct {
	Step   func(Step)   // something is about to run
	Tensor func(Tensor) // a matrix is finished
	// Mask sees the keep mask of a matrix in the layout of the weight, U8, on the model's device; it is good until the
	// call returns. Matrices restored from an interrupted run have none.
	Mask func(name string, keep kernels.Mat)
	// Order sees the order of the inputs in which a permuted N:M pattern holds: order[p] is the input at position p.
	Order func(name string, order []int32)
}

// Step is a point of the work.
type Step struct {
	Stage Stage `json:"stage"`
	Block int   `json:"block"`
	// Done of Of are sequences or matrices of this stage and block. For Gradient they are passes of a sequence
	// through a block, of all blocks, a pass back counting as four.
	Done int `json:"done"`
	Of   int `json:"of"`
}

// Stage is a kind of work.
type Stage string

// The stages, in the order in which they come for a block. Gradient and Allocate come before the first block.
const (
	Gradient   Stage = "gradients"  // running the dense model forward and backward
	Allocate   Stage = "allocate"   // measuring how much each block can lose
	Region     Stage = "region"     // running the dense block forward and backward
	Statistics Stage = "statistics" // running the dense block
	Select     Stage = "select"     // scoring, zeroing and updating
	Propagate  Stage = "propagate"  // running the pruned block
	Save       Stage = "save"       // copying the rest of the checkpoint
)

// Permutation says how inputs are put in another order before an N:M pattern is chosen. The weights stay where
// they are: the zeros follow the pattern in that order, not in that of the file.
type Permutation string

// The permutations, after RIA.
const (
	Identity   Permutation = "none"
	Interleave Permutation = "interleave" // strong and weak inputs spread evenly
	Assignment Permutation = "assignment" // and then exchanged by linear assignments; takes in³ steps at worst
)

var permutations = []Permutation{Identity, Interleave, Assignment}

func (o *Options) setDefaults() {
	if o.MasksFrom != "" {
		o.Metric = givenMetric()
	} else if o.Metric.Name == "" && o.Metric.Score == nil {
		o.Metric = Wanda()
	}

	// After the metric: its own group is the default (Wanda compares rows, magnitude the layer).
	if o.Group == "" {
		o.Group = o.Metric.Group
	}

	// Within a pattern the group is M neighbours of a row, whatever the metric prefers.
	if o.MasksFrom == "" && o.Group == "" || o.Pattern.Structured() {
		o.Group = Row
	}
	if o.Pattern.Structured() {
		o.Sparsity = o.Pattern.Sparsity()
	}
	if o.BatchTokens == 0 {
		o.BatchTokens = 8192
	}
	if o.Permutation == "" {
		o.Permutation = Identity
	}

	o.LowRank.setDefaults(o)
	o.Update.setDefaults(o.Metric)
	o.Allocation.setDefaults()
}

// recorded is what a report keeps of the options: not the outputs, measurements and callbacks of the run, which
// hold on to the model.
func (o Options) recorded() Options {
	o.Out = nil
	o.Masks = nil
	o.Factors = nil
	o.Memo = nil
	o.Squares = nil
	o.Known = nil
	o.Note = nil
	o.Events = Events{}
	return o
}

// Needs lists the statistics that a run with these options gathers. Without any it needs no calibration data.
func (o Options) Needs() Stats {
	o.setDefaults()
	return o.Metric.Needs | o.swapNeeds() | o.Update.needs() | o.Allocation.needs(o) | o.tells()
}

// tells is what is measured for a caller who asks for it.
func (o Options) tells() Stats {
	if o.Squares != nil {
		return SumSquares
	}
	return 0
}

// NeedsCalibration reports whether a run with these options runs calibration sequences through the model. Gradients
// from a file need none.
func (o Options) NeedsCalibration() bool {
	needs := o.Needs()
	if o.Gradients.File != "" {
		needs &^= Gradients
	}
	if o.Norms != nil {
		needs &^= ofInputs
	}
	return needs != 0
}

// HasUpdate reports whether weights or masks are updated, because of the options or of the metric.
func (o Options) HasUpdate() bool {
	o.setDefaults()
	return o.Update.Name != NoUpdate
}

// optionsFault is a fault of the options.
func optionsFault(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...)
}

// Validate returns every fault of the options, joined; nil if there is none. The faults wrap ErrOptions or ErrUnknown.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, optionsFault(format, args...)) }
	if (o.Metric.Name == "") != (o.Metric.Score == nil) {
		fault("a metric needs a name and a Score")
	}
	if !(o.Sparsity >= 0 && o.Sparsity < 1) {
		fault("sparsity %g; want 0 or more and less than 1", o.Sparsity)
	}

	if err := o.Pattern.validate(); err != nil {
		faults = append(faults, err)
	} else if o.Pattern.Structured() && o.Sparsity != 0 && o.Sparsity != o.Pattern.Sparsity() {
		fault("sparsity %g with pattern %s, which prunes %g; leave the sparsity out", o.Sparsity, o.Pattern,
			o.Pattern.Sparsity())
	}

	switch {
	case o.Group == "" || o.Group == Row:
	case !slices.Contains(groups, o.Group):
		faults = append(faults, fmt.Errorf("group %q: %w; known: %s", o.Group, ErrUnknown, listed(groups)))
	case o.Pattern.Structured():
		fault("group %s with pattern %s, whose groups are %d inputs of a neuron", o.Group, o.Pattern, o.Pattern.M)
	case o.Group == Share && o.Metric.sweeps:
		fault("group %s with metric %s, whose scores change as weights go; use %s, %s or %s", Share, o.Metric.Name,
			Strip, Row, Layer)
	}

	if o.BatchTokens < 0 || o.HessianMemory < 0 {
		fault("%d tokens at a time, %d bytes for Hessians", o.BatchTokens, o.HessianMemory)
	}
	if o.Update.Guard && !o.HasUpdate() {
		fault("a guard without an update")
	}
	if o.Update.Width > 0 && !o.Metric.sweeps {
		fault("a width of %d columns, which metric %s alone has", o.Update.Width, SparseGPT().Name)
	}
	if o.Update.Damping > 0 && (o.Metric.Needs|o.Update.needs())&Hessian == 0 {
		fault("a damping of %g without a Hessian", o.Update.Damping)
	}

	faults = append(faults, o.givenFaults()...)
	faults = append(faults, o.normFaults()...)
	faults = append(faults, o.permutationFaults()...)
	faults = append(faults, o.swapFaults()...)
	faults = append(faults, o.lowRankFaults()...)
	faults = append(faults, o.searchFaults()...)
	faults = append(faults, o.Allocation.validate(o), o.Update.validate(), o.Gradients.validate(o.Metric))
	for i, v := range o.Overrides {
		if err := v.validate(o); err != nil {
			faults = append(faults, fmt.Errorf("override %d: %w", i+1, err))
		}
	}

	return failure.Join(faults...)
}

// permutationFaults says what a permutation does not go with.
func (o Options) permutationFaults() (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults,
			fmt.Errorf("%w: permutation %s %s", ErrOptions, o.Permutation, fmt.Sprintf(format, args...)))
	}

	switch p := o.Permutation; {
	case p == "" || p == Identity:
	case !slices.Contains(permutations, p):
		faults = append(faults, fmt.Errorf("permutation %q: %w; known: %s", p, ErrUnknown, listed(permutations)))
	case !o.Pattern.Structured():
		fault("without an N:M pattern, which it is for")
	case o.Metric.sweeps:
		fault("with metric %s, which chooses from left to right; another metric with update %s does it", o.Metric.Name,
			SparseGPTUpdate)
	case o.Update.Name == DSnoT:
		fault("with update %s, which exchanges weights within groups of neighbours", DSnoT)
	case o.Update.Name == ADMM && o.Update.MaskSteps > 0:
		fault("with update %s that chooses the mask anew", ADMM)
	}

	return faults
}

// listed writes names one after the other.
func listed[T ~string](names []T) string {
	var out []string
	for _, n := range names {
		out = append(out, string(n))
	}
	return strings.Join(out, ", ")
}
