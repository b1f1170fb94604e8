package quantize

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/linalg"
)

// The methods.
const (
	RTN  = "rtn"  // round to the nearest number
	GPTQ = "gptq" // inputs still to come make up for the errors of those before them
)

// Methods lists the methods.
var Methods = []string{RTN, GPTQ}

// The orders in which [GPTQ] goes through the inputs.
const (
	OrderGiven  = "none"   // as they are stored
	OrderWeight = "weight" // by their mean squares, largest first; groups and the stored order stay what they are
)

// Orders lists the orders.
var Orders = []string{OrderGiven, OrderWeight}

// Options says how to quantise. The zero value, with a Scheme and Out, rounds every weight to the nearest number.
type Options struct {
	Scheme Scheme `json:"scheme"`
	Method string `json:"method"` // RTN or GPTQ; empty: RTN

	// Group is how many inputs of an output share a scale, a multiple of 16; 0: as the scheme has it, -1: all.
	Group int `json:"group,omitempty"`
	// Ignore are patterns of the names of matrices that stay floats, as of package path, without ".weight"; a pattern
	// without a dot matches any part between dots. Embeddings, heads and routers stay anyway.
	Ignore []string `json:"ignore,omitempty"`

	// Damping is the share of the mean of the Hessian's diagonal that is added to it; 0: 0.01. It grows tenfold, up to
	// 1, until the Hessian can be factored, which the report says.
	Damping float64 `json:"damping,omitempty"`
	// Order is the order of the inputs for GPTQ; empty: OrderWeight.
	Order string `json:"order,omitempty"`
	// FitLate fits the scales of a group when its turn comes, to weights that have made up for the errors before them,
	// instead of to the weights as they came. It goes with OrderGiven alone.
	FitLate bool `json:"fit_late,omitempty"`
	// TrueSequential measures the matrices of a block in the order in which they run, each once those before it in the
	// block are rounded. It runs a block four times.
	TrueSequential bool `json:"true_sequential,omitempty"`

	// HessianMemory is about how many bytes the Hessians of a block may take; 0 means 2 GiB. See prune.Options.
	HessianMemory int64 `json:"-"`
	// BatchTokens is about how many calibration tokens run through a block at a time; 0 means 8192.
	BatchTokens int `json:"batch_tokens,omitempty"`

	Out          string `json:"-"` // folder to write
	Overwrite    bool   `json:"-"` // replace a checkpoint there
	Resume       bool   `json:"-"` // continue an interrupted run of the same job, or start one
	MaxShardSize int64  `json:"-"` // bytes of a file; 0: one for each of the model's

	Step   func(Step)   `json:"-"` // called before work begins on something; nil: nobody is
	Matrix func(Matrix) `json:"-"` // called when a matrix is finished
}

// Step is a point of the work.
type Step struct {
	Stage Stage `json:"stage"`
	Block int   `json:"block"`
	Done  int   `json:"done"` // sequences, matrices or bytes of Of
	Of    int   `json:"of"`
}

// Stage is a kind of work.
type Stage string

// The stages, in the order in which they come for a block, and Save at the end.
const (
	Statistics Stage = "statistics"
	Round      Stage = "round"
	Propagate  Stage = "propagate"
	Save       Stage = "save"
)

// measures reports whether the method looks at what flows into the matrices.
func (o Options) measures() bool { return o.Method == GPTQ }

// NeedsCalibration reports whether a run with these options runs calibration text through the model.
func (o Options) NeedsCalibration() bool { return o.measures() }

// recorded is what a report keeps of the options: not the callbacks, which may hold on to the model.
func (o Options) recorded() Options {
	o.Step = nil
	o.Matrix = nil
	return o
}

func (o *Options) setDefaults() {
	if o.Method == "" {
		o.Method = RTN
	}
	if o.Method == GPTQ {
		if o.Order == "" && !o.FitLate {
			o.Order = OrderWeight
		}
		if o.Order == "" {
			o.Order = OrderGiven
		}
		if o.Damping == 0 {
			o.Damping = linalg.DefaultDamping
		}
		if o.BatchTokens == 0 {
			o.BatchTokens = 8192
		}
	}
}

// Validate returns every fault of the options, joined; nil if there is none.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}

	if _, err := SchemeByName(o.Scheme.Name); err != nil {
		faults = append(faults, err)
	} else if o.Scheme.File() {
		fault("scheme %s is one of GGUF files", o.Scheme.Name)
	} else if _, err := o.Scheme.withGroup(o.Group); err != nil {
		faults = append(faults, err)
	}
	if o.Method != "" && !slices.Contains(Methods, o.Method) {
		fault("method %q; known: %s", o.Method, strings.Join(Methods, ", "))
	}
	if o.Order != "" && !slices.Contains(Orders, o.Order) {
		fault("order %q; known: %s", o.Order, strings.Join(Orders, ", "))
	}
	if !(o.Damping >= 0 && o.Damping <= linalg.MaxDamping) {
		fault("damping %g; want 0 to %g", o.Damping, linalg.MaxDamping)
	}
	if o.HessianMemory < 0 || o.BatchTokens < 0 || o.MaxShardSize < 0 {
		fault("%d bytes for Hessians, %d tokens at a time, %d bytes a file", o.HessianMemory, o.BatchTokens,
			o.MaxShardSize)
	}
	if o.Method != GPTQ && (o.Damping > 0 || o.Order != "" || o.FitLate || o.TrueSequential) {
		fault("damping, order, late scales and true sequence belong to method %s", GPTQ)
	}
	if o.FitLate && o.Order == OrderWeight {
		fault("scales that are fitted late go with order %s", OrderGiven)
	}
	if s := o.Scheme.Weights; o.FitLate && (s.Strategy == PerBlock || s.Strategy == PerTensorGroup) {
		fault("scheme %s has scales for more than one output, which are fitted before the first is rounded",
			o.Scheme.Name)
	}
	for _, p := range o.Ignore {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			fault("pattern %q of matrices to leave: not a pattern", p)
		}
	}

	return errors.Join(faults...)
}

// ignored reports whether a matrix stays as it is. name is that of its module.
func (o Options) ignored(name string) bool {
	for _, p := range o.Ignore {
		if whole, _ := path.Match(p, name); whole {
			return true
		}
		if strings.Contains(p, ".") {
			continue
		}
		for part := range strings.SplitSeq(name, ".") {
			if ok, _ := path.Match(p, part); ok {
				return true
			}
		}
	}
	return false
}
