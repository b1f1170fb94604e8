package quantize

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/linalg"
)

// The methods.
const (
	RTN  = "rtn"  // round to the nearest number
	GPTQ = "gptq" // inputs still to come make up for the errors of those before them
	// AWQ gives the inputs of a matrix factors by which its outputs err less when it is rounded, and takes them out
	// before it, in a norm or another matrix; see [Fold]. Then it rounds to the nearest number.
	AWQ     = "awq"
	AWQGPTQ = "awq+gptq" // AWQ's factors, then GPTQ
	// HQQ rounds to the nearest number after it has moved the zero points and scales to where the weights err least by
	// a norm that forgives outliers; for schemes with zero points.
	HQQ = "hqq"
)

// Methods lists the methods.
var Methods = []string{RTN, GPTQ, AWQ, AWQGPTQ, HQQ}

// The orders in which [GPTQ] goes through the inputs.
const (
	OrderGiven  = "none"   // as they are stored
	OrderWeight = "weight" // by their mean squares, largest first; groups and the stored order stay what they are
)

// Orders lists the orders.
var Orders = []string{OrderGiven, OrderWeight}

// The ranges that scales are made of.
const (
	RangeMinMax = "minmax" // of the weights that share the scale
	// RangeMSE is what leaves the least Σ|ŵ - w|^2.4, from the whole range down to 0.81 of it (for NVFP4, from 1.8 down
	// to 0.8): llm-compressor's observers "mse" and "nvfp4_expanded_mse".
	RangeMSE = "mse"
	// RangeImatrix is what leaves the least Σ E[x²]·|ŵ - w|³, x the inputs of the calibration data, from the whole
	// range down to a twentieth: llm-compressor's observer "imatrix_mse".
	RangeImatrix = "imatrix_mse"
	// RangeClip is what leaves the least error of the outputs on some tokens of the calibration data, from the whole
	// range down to 0.55 of it, as AutoAWQ clips. It leaves matrices of queries and keys as they are.
	RangeClip = "clip"
)

// Ranges lists the ranges.
var Ranges = []string{RangeMinMax, RangeMSE, RangeImatrix, RangeClip}

// Options says how to quantise. The zero value, with a Scheme and Out, rounds every weight to the nearest number.
type Options struct {
	Scheme Scheme `json:"scheme"`
	Method string `json:"method"` // one of Methods; empty: RTN

	// Group is how many inputs of an output share a scale, a multiple of 16; 0: as the scheme has it, -1: all.
	Group int `json:"group,omitempty"`
	// Range is what scales are fitted to; empty: RangeMinMax, and with AWQ RangeClip.
	Range string `json:"range,omitempty"`
	// Smooth is the exponent α of SmoothQuant, from 0 to 1: activations that runtimes round to whole numbers lose their
	// extremes to the weights behind norms. 0: they stay as they are.
	Smooth float64 `json:"smooth,omitempty"`
	// Sparsity is the fraction of the weights of a matrix that become 0, and Pattern, such as "2:4", lets N of every M
	// inputs of an output go instead: in one sweep with GPTQ, whose order is OrderGiven then unless it is given, or by
	// Wanda's scores before RTN. 0 and empty: none go.
	Sparsity float64 `json:"sparsity,omitempty"`
	Pattern  string  `json:"pattern,omitempty"`
	// KeepZeros keeps the weights that are 0, as those of a pruned model, at 0: sweeps do not let them make up for
	// others. What rounds weights by themselves leaves zeros alone anyway, in every scheme of folders.
	KeepZeros bool `json:"keep_zeros,omitempty"`
	// Ignore are patterns of the names of matrices that stay floats, as of package path, without ".weight". A pattern
	// matches the whole name or any run of its parts between dots: down_proj, layers.0.* and mlp.*_proj name all such
	// matrices, and proj none. Embeddings, heads and routers stay anyway.
	Ignore []string `json:"ignore,omitempty"`

	// Types give matrices other schemes than Scheme, by patterns of names as those of Ignore; of several that name one
	// the last counts. Type is a scheme of folders; where it has groups of 4 bits they are Group too.
	Types []TypeRule `json:"types,omitempty"`

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

	// Origin is what a report calls the model where its folder is one that does not stay; empty: the folder.
	Origin string `json:"-"`

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
func (o Options) measures() bool { return o.statistics() != 0 }

// sweeps reports whether inputs make up for the errors of others.
func (o Options) sweeps() bool { return o.Method == GPTQ || o.Method == AWQGPTQ }

// balances reports whether factors are searched as in AWQ.
func (o Options) balances() bool { return o.Method == AWQ || o.Method == AWQGPTQ }

// folds reports whether inputs get factors that are taken out before them.
func (o Options) folds() bool { return o.balances() || o.Smooth > 0 }

// statistics are what it looks at.
func (o Options) statistics() (set actstats.Set) {
	if o.sweeps() {
		set |= actstats.Hessian
	}
	if o.folds() {
		set |= actstats.Extents
	}
	if o.balances() || o.Range == RangeClip {
		set |= actstats.Spread
	}
	if o.Range == RangeImatrix || o.prunes() && !o.sweeps() {
		set |= actstats.SumSquares
	}
	return set
}

// Measuring says which of the options looks at what flows into the matrices.
func (o Options) Measuring() string {
	switch {
	case o.sweeps() || o.balances():
		return "method " + o.Method
	case o.Smooth > 0:
		return fmt.Sprintf("smooth %g", o.Smooth)
	case o.prunes():
		return o.removing()
	}
	return "range " + o.Range
}

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
	if o.Method == AWQ && o.Range == "" {
		o.Range = RangeClip
	}
	if o.sweeps() {
		if o.Order == "" && !o.FitLate && !o.prunes() {
			o.Order = OrderWeight
		}
		if o.Order == "" {
			o.Order = OrderGiven
		}
		if o.Damping == 0 {
			o.Damping = linalg.DefaultDamping
		}
	}
	if o.measures() && o.BatchTokens == 0 {
		o.BatchTokens = 8192
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
	if o.Range != "" && !slices.Contains(Ranges, o.Range) {
		fault("range %q; known: %s", o.Range, strings.Join(Ranges, ", "))
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
	if !o.sweeps() && (o.Damping > 0 || o.Order != "" || o.FitLate || o.TrueSequential) {
		fault("damping, order, late scales and true sequence belong to method %s", GPTQ)
	}
	faults = append(faults, o.validateFolds()...)
	faults = append(faults, o.validatePruning()...)
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
	for _, r := range o.Types {
		if _, err := path.Match(r.Pattern, ""); err != nil || r.Pattern == "" {
			fault("type %s: %q is no pattern", r.Type, r.Pattern)
		}
		s, err := o.typed(r)
		if err != nil {
			faults = append(faults, err)
		} else if w := s.Weights; o.FitLate && (w.Strategy == PerBlock || w.Strategy == PerTensorGroup) {
			fault("type %s has scales for more than one output, which are fitted before the first is rounded", r.Type)
		}
	}

	return failure.Join(faults...)
}

// validateFolds lists the faults of what gives inputs factors, and of what is measured with it.
func (o Options) validateFolds() (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}

	if !(o.Smooth >= 0 && o.Smooth < 1) {
		fault("smooth %g; want more than 0 and less than 1, or 0 for none", o.Smooth)
	}
	if o.Smooth > 0 && o.balances() {
		fault("smooth %g and method %s both choose factors", o.Smooth, o.Method)
	}
	if in := o.Scheme.Inputs; o.Smooth > 0 && (in == nil || in.Kind != Int || len(o.Types) > 0) {
		fault("smooth %g is for schemes whose activations become whole numbers in all matrices: w8a8", o.Smooth)
	}
	if o.Method == HQQ {
		if o.Range != "" {
			fault("method %s finds ranges of its own, not %s", HQQ, o.Range)
		}
		for _, s := range o.schemes() {
			if s.Weights.Symmetric {
				fault("method %s moves zero points, which scheme %s does not have; w4a16_asym has", HQQ, s.Name)
			}
		}
	}
	if o.TrueSequential && o.folds() {
		fault("with factors, all matrices of a block are measured before one is rounded: true sequence does not go " +
			"with them")
	}
	if o.FitLate && o.Range == RangeClip {
		fault("range %s looks at outputs before the first weight is rounded: scales are not fitted late", o.Range)
	}
	return faults
}

// ignored reports whether a matrix stays as it is. name is that of its module.
func (o Options) ignored(name string) bool {
	return slices.ContainsFunc(o.Ignore, func(pattern string) bool { return names(pattern, name) })
}

// names reports whether a pattern matches a name, or a run of its parts between dots.
func names(pattern, name string) bool {
	parts := strings.Split(name, ".")
	for lo := range parts {
		for hi := lo + 1; hi <= len(parts); hi++ {
			if ok, _ := path.Match(pattern, strings.Join(parts[lo:hi], ".")); ok {
				return true
			}
		}
	}
	return false
}

// typed is the scheme of a rule, with the groups that are asked for.
func (o Options) typed(r TypeRule) (Scheme, error) {
	s, err := SchemeByName(r.Type)
	switch {
	case r.Type == Keep:
		return s, failure.Hinted(fmt.Errorf("%w: type %s", ErrOptions, r.Type), "--ignore leaves matrices as they are")
	case err != nil:
		return s, err
	case s.File():
		return s, fmt.Errorf("%w: type %s is one of GGUF files", ErrOptions, r.Type)
	case s.Layout == gptqLayout || o.Scheme.Layout == gptqLayout:
		return s, fmt.Errorf("%w: type %s: the layout of GPTQ has one scheme for all matrices", ErrOptions, r.Type)
	}
	if w := s.Weights; w.Kind == Int && w.Strategy == PerGroup && s.Layout == packed {
		return s.withGroup(o.Group)
	}
	return s, nil
}

// schemes are those that matrices may have.
func (o Options) schemes() []Scheme {
	list := []Scheme{o.Scheme}
	for _, r := range o.Types {
		if s, err := o.typed(r); err == nil {
			list = append(list, s)
		}
	}
	return list
}

// schemeOf is the scheme of a matrix. name is that of its module.
func (o Options) schemeOf(name string) Scheme {
	found := o.Scheme
	for _, r := range o.Types {
		if names(r.Pattern, name) {
			if s, err := o.typed(r); err == nil { // as Validate has seen
				found = s
			}
		}
	}
	return found
}
