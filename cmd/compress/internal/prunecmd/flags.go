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
		"`NAME` how the sparsity is divided among matrices: "+strings.Join(Allocations, ", "))
	set.StringVar(&f.Update, "update", "",
		"`NAME` how the remaining weights are corrected: "+strings.Join(Updates, ", ")+
			" (default: the method's own)")
	set.IntVar(&f.settings.Swaps, "swaps", 0,
		"`N` refine the method's masks in this many passes, which exchange kept and removed weights of a row wherever "+
			"that lowers the error of its output on the calibration data, such as 4 (default: none)")
	set.Float64Var(&f.settings.SwapDiagonal, "swap-diagonal", 0,
		"`X` --swaps: multiply the diagonal of the inputs' Gram matrix by 1 plus this, so that the masks fit the "+
			"calibration text less closely and hold better on other text, such as 1 (default: 0, nothing is added)")
	set.StringVar(&f.Permutation, "permutation", string(prune.Identity),
		"`NAME` order of the inputs for N:M: "+strings.Join(Permutations, ", "))
	set.StringVar(&f.Overrides, "overrides", "",
		"`FILE` YAML list of matrices with settings of their own: match (a pattern of names), sparsity, …")
	set.StringVar(&f.Gradients, "grads", "",
		"`PATH` .safetensors file or folder with this model's gradients, MATRIX.G in F32, BF16 or F16 "+
			"(default: computed from --calib)")
	set.BoolVar(&f.settings.Gradients.Exact, "grads-exact", false,
		"keep gradients in F32 instead of F16, as the published code has them")
	set.Float64Var(&f.settings.LowRank.Share, "rank-share", 0,
		"`X` oats: fraction of the stored values that the low-rank part of a matrix gets (default: 0.25)")
	set.IntVar(&f.settings.LowRank.Turns, "rank-turns", 0,
		"`N` oats: how often the sparse and the low-rank part are made in turn (default: 80)")
	set.Float64Var(&f.settings.Update.Damping, "damp", 0,
		"`X` added to the Hessian's diagonal, as a fraction of its mean (default: 0.01, for admm 0.1)")
	set.IntVar(&f.settings.Update.Width, "block-size", 0,
		"`N` sparsegpt: columns that are pruned together (default: 128)")
	set.StringVar(&f.sequential, "sequential", Sequences[0],
		"`NAME` inputs that a matrix is measured with: block (of the dense decoder layer) or true (with the "+
			"matrices before it in the layer already pruned, four passes instead of one)")
	set.StringVar(&f.memory, "hessian-memory", "2GiB",
		"`SIZE` memory for Hessians; a decoder layer that needs more is run several times, with the same result")

	a, u := &f.settings.Allocation, &f.settings.Update
	set.Float64Var(&a.M, "owl-m", 0,
		"`X` owl, owl-mixed: scores above this many times a layer's mean are outliers (default: 5, for "+
			"owl-mixed 6)")
	set.Float64Var(&a.Lambda, "owl-lambda", 0,
		"`X` owl: layers differ in sparsity by at most twice this; owl-mixed: N differs by at most this "+
			"(default: 0.08, for owl-mixed 2)")
	set.BoolVar(&a.Special, "owl-special", false,
		"owl-mixed: leave decoder layers dense that would lose one more than N")
	set.Float64Var(&a.Epsilon, "alpha-epsilon", 0,
		"`X` alpha: how far sparsities are apart before scaling (default: 0.3)")
	set.StringVar(&a.Estimator, "alpha-estimator", "",
		"`NAME` alpha: how the tail of a spectrum is fitted: "+prune.Peak+" or "+prune.Hill+
			" (default: "+prune.Peak+")")
	set.Float64Var(&a.Max, "global-max", 0, "`X` global: highest sparsity of a matrix (default: 0.95)")
	set.BoolVar(&u.Guard, "update-guard", false,
		"skip the update of a matrix where it raises the error of its outputs on the calibration data")
	set.IntVar(&u.Steps, "admm-steps", 0, "`N` admm: iterations (default: 20)")
	set.IntVar(&u.MaskSteps, "admm-mask-steps", 0,
		"`N` admm: iterations that choose the mask again (default: none, the method's mask stays)")
	set.IntVar(&u.Polish, "admm-polish", 0, "`N` admm: conjugate-gradient steps at the end (default: 10)")
	set.IntVar(&u.Cycles, "dsnot-cycles", 0, "`N` dsnot: largest number of exchanges in a row (default: 50)")
	set.Float64Var(&u.Threshold, "dsnot-threshold", 0,
		"`X` dsnot: change of an output that is ignored (default: 0.1)")
	set.BoolVar(&u.SameSign, "dsnot-same-sign", false, "dsnot: never let that change cross zero")
	set.BoolVar(&u.Strict, "dsnot-strict", false, "dsnot: stop a row when an exchange would make it worse")
	set.BoolVar(&u.MLP, "dsnot-mlp", false, "dsnot: refine the matrices of the MLP too")
}

// AddSearch defines the flags of a search for an allocation.
func (f *Flags) AddSearch(set *pflag.FlagSet) {
	a := &f.settings.Allocation
	set.IntVar(&a.Generations, "generations", 0, "`N` allocation search: generations (default: 30)")
	set.IntVar(&a.Offspring, "offspring", 0,
		"`N` allocation search: allocations tried in a generation (default: 8)")
}

// SetSearch is AddSearch where other flags have these names.
func (f *Flags) SetSearch(generations, offspring int) {
	f.settings.Allocation.Generations, f.settings.Allocation.Offspring = generations, offspring
}

// AddKeep defines the flag for a file of gradients that a run writes.
func (f *Flags) AddKeep(set *pflag.FlagSet) {
	set.StringVar(&f.SaveTo, "save-grads", "",
		"`FILE` also keep the gradients in this .safetensors file (MATRIX.G, F32) for --grads; an existing one "+
			"is used if model and calibration data are the same")
}

// Apply puts the settings into options that have a metric.
func (f *Flags) Apply(o *prune.Options) error {
	switch u := &f.settings.Update; {
	case !(u.Damping >= 0 && u.Damping <= 1):
		return fmt.Errorf("--damp %g: want 0 to 1", u.Damping)
	case f.settings.Swaps < 0:
		return fmt.Errorf("--swaps %d: want 0 or more passes", f.settings.Swaps)
	case !(f.settings.SwapDiagonal >= 0):
		return fmt.Errorf("--swap-diagonal %g: want 0 or more", f.settings.SwapDiagonal)
	case !(f.settings.LowRank.Share >= 0 && f.settings.LowRank.Share < 1):
		return fmt.Errorf("--rank-share %g: want more than 0 and less than 1", f.settings.LowRank.Share)
	case f.settings.LowRank.Turns < 0:
		return fmt.Errorf("--rank-turns %d: want 1 or more", f.settings.LowRank.Turns)
	case u.Width < 0:
		return fmt.Errorf("--block-size %d: want 1 or more", u.Width)
	}

	o.Allocation = f.settings.Allocation
	o.Update = f.settings.Update
	o.Swaps, o.SwapDiagonal = f.settings.Swaps, f.settings.SwapDiagonal
	o.LowRank = f.settings.LowRank
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

// The words that flags know.
var (
	Allocations  = []string{prune.Uniform, prune.OWL, prune.OWLMixed, prune.Alpha, prune.Global, prune.Search}
	Updates      = []string{prune.NoUpdate, prune.SparseGPTUpdate, prune.DSnoT, prune.ADMM, prune.Exact}
	Permutations = []string{string(prune.Identity), string(prune.Interleave), string(prune.Assignment)}
	Groups       = []string{string(prune.Row), string(prune.Layer), string(prune.Strip), string(prune.Share)}
	Sequences    = []string{"block", "true"}
	Estimators   = []string{prune.Peak, prune.Hill}
)

// Methods lists what --method knows: names and prefixes.
func Methods() []string { return append(prune.MetricNames(), prune.FormulaPrefix, prune.TreePrefix) }
