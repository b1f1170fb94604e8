package prune

import (
	"fmt"
	"math"
	"slices"
)

// Allocation says how the sparsity is spread over the matrices. The zero Allocation is uniform.
type Allocation struct {
	Name string `json:"name"` // Uniform, OWL, OWLMixed, Alpha, Global or Search; empty: Uniform

	// M and Lambda belong to OWL and OWLMixed: a score above M times the block's mean is an outlier; 0 means 5,
	// and 6 for OWLMixed. Blocks differ by at most 2·Lambda, 0 meaning 0.08; for OWLMixed N differs by at most
	// Lambda, 0 meaning 2.
	M      float64 `json:"m,omitempty"`
	Lambda float64 `json:"lambda,omitempty"`
	// Special lets OWLMixed leave blocks dense that would lose one more than N: the published variant of that name.
	Special bool `json:"special,omitempty"`

	// Epsilon belongs to Alpha: sparsities lie between (1 - Epsilon) and (1 + Epsilon) of each other before
	// they are scaled; 0 means 0.3.
	Epsilon float64 `json:"epsilon,omitempty"`
	// Estimator belongs to Alpha: Hill fits the larger half of a spectrum, Peak from where the fit is best near
	// its peak. Empty: Peak.
	Estimator string `json:"estimator,omitempty"`
	// Max belongs to Global: the highest sparsity of a matrix; 0 means 0.95.
	Max float64 `json:"max,omitempty"`

	// Generations (0: 30), Offspring of each (0: 8) and Seed belong to Search.
	Generations int    `json:"generations,omitempty"`
	Offspring   int    `json:"offspring,omitempty"`
	Seed        uint64 `json:"seed,omitempty"`
}

// The names of allocations.
const (
	Uniform  = "uniform"   // every block loses the same share
	OWL      = "owl"       // blocks with more outliers among the scores keep more (arXiv:2310.05175)
	OWLMixed = "owl-mixed" // the same for N:M: an N of its own for every block
	// blocks whose weights' spectra have heavier tails keep more (arXiv:2410.10912); needs no data
	Alpha  = "alpha"
	Global = "global" // one threshold for all matrices, on scores over the mean of their matrix
	// blocks exchange sparsity as long as predictions on the calibration data come nearer to those of the dense model
	Search = "search"
)

var allocations = []string{Uniform, OWL, OWLMixed, Alpha, Global, Search}

// The estimators of a spectrum's exponent.
const (
	Hill = "hill"
	Peak = "peak"
)

func (a *Allocation) setDefaults() {
	// The published defaults of each method; 0 stands for "not given" in the options.
	or := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}

	switch a.Name {
	case "":
		a.Name = Uniform
	case OWL:
		or(&a.M, 5)
		or(&a.Lambda, 0.08)
	case OWLMixed:
		or(&a.M, 6)
		or(&a.Lambda, 2)
	case Alpha:
		or(&a.Epsilon, 0.3)
		if a.Estimator == "" {
			a.Estimator = Peak
		}
	case Global:
		or(&a.Max, 0.95)
	case Search:
		if a.Generations == 0 {
			a.Generations = 30
		}
		if a.Offspring == 0 {
			a.Offspring = 8
		}
	}
}

// needs lists what the allocation measures on the dense model.
func (a Allocation) needs(o Options) Stats {
	switch a.Name {
	case OWL:
		if o.Pattern.Structured() {
			return 0
		}
		return outlierMetric(o.Metric).Needs
	case OWLMixed:
		return outlierMetric(o.Metric).Needs
	case Global:
		return o.Metric.Needs
	case Search:
		return o.Metric.Needs | SumSquares // candidates run on calibration data, whatever the metric reads
	}

	return 0
}

// outlierMetric is what OWL looks for outliers in: Wanda's scores, or |W| where data is not looked at.
func outlierMetric(m Metric) Metric {
	if m.Needs == 0 {
		return Magnitude()
	}
	return Wanda()
}

func (a Allocation) validate(o Options) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: allocation %s: %s", ErrOptions, a.Name, fmt.Sprintf(format, args...))
	}
	owl := a.Name == OWL || a.Name == OWLMixed
	switch {
	case a.Name != "" && !slices.Contains(allocations, a.Name):
		return fmt.Errorf("allocation %q: %w; known: %s", a.Name, ErrUnknown, listed(allocations))
	case !owl && (a.M != 0 || a.Lambda != 0):
		return bad("m and lambda belong to %s and %s", OWL, OWLMixed)
	case owl && (!(a.M >= 0 && a.Lambda >= 0) || math.IsInf(a.M, 0)):
		return bad("m %g, lambda %g; want them above 0", a.M, a.Lambda)
	// The sparsities of blocks span 2λ: above 0.5 they could not all lie between 0 and 1.
	case a.Name == OWL && a.Lambda > 0.5:
		return bad("lambda %g; want up to 0.5", a.Lambda)
	case a.Name != OWLMixed && a.Special:
		return bad("special belongs to %s", OWLMixed)
	case a.Name == OWLMixed && !o.Pattern.Structured():
		return bad("it gives every block an N of its own; want a pattern N:M")
	// Here lambda counts weights of a group, which has M.
	case a.Name == OWLMixed && a.Lambda > float64(o.Pattern.M):
		return bad("lambda %g with pattern %s; want up to %d", a.Lambda, o.Pattern, o.Pattern.M)
	case a.Name != Alpha && (a.Epsilon != 0 || a.Estimator != ""):
		return bad("epsilon and estimator belong to %s", Alpha)
	case a.Estimator != "" && a.Estimator != Hill && a.Estimator != Peak:
		return fmt.Errorf("estimator %q: %w; known: %s, %s", a.Estimator, ErrUnknown, Hill, Peak)
	case !(a.Epsilon >= 0 && a.Epsilon < 1):
		return bad("epsilon %g; want 0 to less than 1", a.Epsilon)
	case a.Name != Global && a.Max != 0:
		return bad("max belongs to %s", Global)
	case !(a.Max >= 0 && a.Max < 1) || a.Max != 0 && a.Max < o.Sparsity:
		return bad("max %g; want less than 1 and no less than the sparsity", a.Max)
	// Both move the sparsity of single matrices, where N:M fixes it.
	case (a.Name == Alpha || a.Name == Global) && o.Pattern.Structured():
		return bad("pattern %s fixes what every matrix loses; %s is for patterns", o.Pattern, OWLMixed)
	}

	return nil
}
