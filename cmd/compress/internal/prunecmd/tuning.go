package prunecmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/prune"
)

// Flags are the settings of pruning that have defaults of their own. 0 and empty leave them to the library.
type Flags struct {
	Allocation  string
	Update      string
	Permutation string
	Overrides   string // name of a YAML file
	Gradients   string // name of a file or folder
	SaveTo      string // name of a file that gradients are written to

	sequential, memory string

	settings prune.Options // where numbers go
}

// Add defines the flags.
func (f *Flags) Add(set *pflag.FlagSet) {
	set.StringVar(&f.Allocation, "allocation", prune.Uniform,
		"how matrices share the sparsity: "+strings.Join(Allocations, ", "))
	set.StringVar(&f.Update, "update", "",
		"what happens to the weights that stay: "+strings.Join(Updates, ", ")+"; left out, the method's own")
	set.StringVar(&f.Permutation, "permutation", string(prune.Identity),
		"order of the inputs in which N:M holds: "+strings.Join(Permutations, ", "))
	set.StringVar(&f.Overrides, "overrides", "", "YAML file with matrices that are treated differently")
	set.StringVar(&f.Gradients, "grads", "", ".safetensors file or folder with gradients (MATRIX.G, F32, BF16 or "+
		"F16) of this model; left out, they are computed from --calib; a matrix without any is ranked by |weight| "+
		"and counted, and a model without any is an error")
	set.BoolVar(&f.settings.Gradients.Exact, "grads-exact", false,
		"keep gradients in F32 instead of the published code's F16")
	set.Float64Var(&f.settings.Update.Damping, "damp", 0,
		"share of the mean of the Hessian's diagonal that is added to it; 0 is 0.01, and 0.1 for admm")
	set.IntVar(&f.settings.Update.Width, "block-size", 0, "sparsegpt: columns that are chosen together; 0 is 128")
	set.StringVar(&f.sequential, "sequential", Sequences[0], "what the matrices of a block are measured in: block "+
		"(dense, as it is) or true (what comes before them in it is pruned already; four passes instead of one)")
	set.StringVar(&f.memory, "hessian-memory", "2GiB",
		"memory for the Hessians of a block; where they take more, it is run several times, to the same result")

	a, u := &f.settings.Allocation, &f.settings.Update
	set.Float64Var(&a.M, "owl-m", 0, "owl, owl-mixed: scores above this many times a block's mean are outliers; 0 "+
		"is 5, and 6 for owl-mixed")
	set.Float64Var(&a.Lambda, "owl-lambda", 0, "owl: blocks differ by at most twice this; owl-mixed: N differs by "+
		"at most this; 0 is 0.08, and 2 for owl-mixed")
	set.BoolVar(&a.Special, "owl-special", false, "owl-mixed: leave blocks dense that would lose one more than N")
	set.Float64Var(&a.Epsilon, "alpha-epsilon", 0,
		"alpha: how far sparsities lie apart before they are scaled; 0 is 0.3")
	set.StringVar(&a.Estimator, "alpha-estimator", "",
		"alpha: how the tail of a spectrum is fitted: "+prune.Peak+" or "+prune.Hill+"; left out, "+prune.Peak)
	set.Float64Var(&a.Max, "global-max", 0, "global: highest sparsity of a matrix; 0 is 0.95")
	set.BoolVar(&u.Guard, "update-guard", false,
		"leave a matrix without the update where that raises the error of its outputs on the calibration data")
	set.IntVar(&u.Steps, "admm-steps", 0, "admm: alternations; 0 is 20")
	set.IntVar(&u.MaskSteps, "admm-mask-steps", 0,
		"admm: how many of the steps choose the mask anew; 0 keeps the method's mask")
	set.IntVar(&u.Polish, "admm-polish", 0, "admm: conjugate-gradient steps at the end; 0 is 10")
	set.IntVar(&u.Cycles, "dsnot-cycles", 0, "dsnot: exchanges of a row at most; 0 is 50")
	set.Float64Var(&u.Threshold, "dsnot-threshold", 0, "dsnot: change of an output that is left alone; 0 is 0.1")
	set.BoolVar(&u.SameSign, "dsnot-same-sign", false, "dsnot: never let that change cross zero")
	set.BoolVar(&u.Strict, "dsnot-strict", false, "dsnot: end a row's exchanges where one would make it worse")
	set.BoolVar(&u.MLP, "dsnot-mlp", false, "dsnot: refine the matrices of the MLP too")
}

// AddKeep defines the flag for a file of gradients that a run writes.
func (f *Flags) AddKeep(set *pflag.FlagSet) {
	set.StringVar(&f.SaveTo, "save-grads", "", "also keep the gradients in this .safetensors file (MATRIX.G, F32), "+
		"which --grads reads; one that is there is used if it is of the same model and calibration data")
}

// Apply puts the settings into options that have a metric.
func (f *Flags) Apply(o *prune.Options) error {
	switch u := &f.settings.Update; {
	case !(u.Damping >= 0 && u.Damping <= 1):
		return fmt.Errorf("--damp %g: want 0 to 1", u.Damping)
	case u.Width < 0:
		return fmt.Errorf("--block-size %d: want 1 or more, or 0 for the default", u.Width)
	}

	o.Allocation = f.settings.Allocation
	o.Update = f.settings.Update
	o.Gradients = f.settings.Gradients
	o.Allocation.Name, o.Update.Name = f.Allocation, f.Update
	o.Permutation, o.Gradients.File = prune.Permutation(f.Permutation), f.Gradients
	o.Gradients.Keep = f.SaveTo
	if err := f.passes(o); err != nil || f.Overrides == "" {
		return err
	}

	var err error
	o.Overrides, err = ReadOverrides(f.Overrides)
	return err
}

// passes says how blocks are run.
func (f *Flags) passes(o *prune.Options) (err error) {
	if f.sequential != "" && !slices.Contains(Sequences, f.sequential) {
		return fmt.Errorf("--sequential %q; known: %s", f.sequential, strings.Join(Sequences, ", "))
	}
	o.TrueSequential = f.sequential == Sequences[1]
	if f.memory != "" {
		o.HessianMemory, err = cli.Bytes("hessian-memory", f.memory)
	}
	return err
}

// NeedsData tells whether a run needs calibration data: gradients from a file need none.
func NeedsData(o prune.Options) bool {
	needs := o.Needs()
	if o.Gradients.File != "" {
		needs &^= prune.Gradients
	}
	return needs != 0
}

// The words that flags know.
var (
	Allocations  = []string{prune.Uniform, prune.OWL, prune.OWLMixed, prune.Alpha, prune.Global}
	Updates      = []string{prune.NoUpdate, prune.SparseGPTUpdate, prune.DSnoT, prune.ADMM}
	Permutations = []string{string(prune.Identity), string(prune.Interleave), string(prune.Assignment)}
	Groups       = []string{string(prune.Row), string(prune.Layer), string(prune.Strip), string(prune.Share)}
	Sequences    = []string{"block", "true"}
	Estimators   = []string{prune.Peak, prune.Hill}
)

// Methods lists what --method knows: names and prefixes.
func Methods() []string { return append(prune.MetricNames(), prune.FormulaPrefix, prune.TreePrefix) }

// Narrow drops the settings that the chosen metric, allocation, update and pattern do not have, which are
// faults where they are given for a single run, but not where several share them.
func (f *Flags) Narrow(metric prune.Metric, structured bool) {
	if metric.Needs&prune.Gradients == 0 {
		f.Gradients = ""
		f.SaveTo = ""
		f.settings.Gradients = prune.GradientOptions{}
	}

	if !structured {
		f.Permutation = string(prune.Identity)
	}

	a, u := f.settings.Allocation, f.settings.Update
	f.settings.Allocation, f.settings.Update = prune.Allocation{}, prune.Update{}
	if (prune.Options{Metric: metric, Update: prune.Update{Name: f.Update}}).Needs()&prune.Hessian != 0 {
		f.settings.Update.Damping = u.Damping
	}
	if metric.Name == prune.SparseGPT().Name {
		f.settings.Update.Width = u.Width
	}

	f.settings.Update.Guard = u.Guard &&
		(prune.Options{Metric: metric, Update: prune.Update{Name: f.Update}}).HasUpdate()
	to, up := &f.settings.Allocation, &f.settings.Update
	switch f.Allocation {
	case prune.OWLMixed:
		to.M = a.M
		to.Lambda = a.Lambda
		to.Special = a.Special
	case prune.OWL:
		to.M, to.Lambda = a.M, a.Lambda
	case prune.Alpha:
		to.Epsilon, to.Estimator = a.Epsilon, a.Estimator
	case prune.Global:
		to.Max = a.Max
	}

	switch f.Update {
	case prune.ADMM:
		up.Steps = u.Steps
		up.MaskSteps = u.MaskSteps
		up.Polish = u.Polish
	case prune.DSnoT:
		up.Cycles = u.Cycles
		up.Threshold = u.Threshold
		up.SameSign = u.SameSign
		up.Strict = u.Strict
		up.MLP = u.MLP
	}
}
