package prune

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/prune/internal/gpuscore"
)

// Metric ranks the weights of a matrix: the lowest scores go. A metric of your own is a value of this type; Magnitude,
// Wanda and the like, MetricByName and Formula give the ready ones.
type Metric struct {
	Name  string // for reports
	Needs Stats  // what Score reads besides the weights
	Group Group  // compared with each other unless Options.Group says otherwise
	// Score describes the scores of one matrix. Buffers that it allocates belong to the caller, who frees them.
	// A matrix without the statistics that it needs, of an expert that no token reached, is ranked by |W|
	// instead.
	Score func(in Inputs) (kernels.Score, error)

	program *gp.Program                               // computes the scores row by row
	there   func(in Inputs) (*gpuscore.Scores, error) // computes them on a device that compiles formulas
	given   bool                                      // a file says what goes; nothing is ranked
	sweeps  bool                                      // chooses as the weights before have been updated
	splits  bool                                      // takes a low-rank part out first
}

// Stats is a set of statistics that a metric, an allocation or an update reads: the bitwise or of those below.
type Stats uint16

// The statistics. All but Gradients and Regional are of the inputs of a matrix, over the tokens that reach it; with N
// the number of calibration sequences:
const (
	SumSquares = Stats(actstats.SumSquares) // s_j = (1/N)·Σ x_j²
	Sums       = Stats(actstats.Sums)       // (1/N)·Σ x_j
	Variances  = Stats(actstats.Variances)  // of x_j within a sequence, over n, averaged over sequences by their tokens
	Hessian    = Stats(actstats.Hessian)    // (2/N)·Σ x xᵀ, and the factor of its damped inverse
	// 100·√(Σ_n g²), g the gradient of the mean loss of sequence n in the dense model
	Gradients = Stats(actstats.Gradients)

	// 100·√((1/N)·Σ g²), g the gradient of the norm of the decoder layer's output for sequence n, of the layer as it
	// is before it is pruned and with inputs behind the pruned ones before it
	Regional Stats = 1 << 8

	sample   = Stats(actstats.Sample)              // some of the x themselves, to measure outputs on
	ofInputs = Stats(actstats.OfInputs) | Regional // those that need a pass through the decoder layer
)

// Inputs is what a metric may look at. Slices are nil unless the metric needs them.
type Inputs struct {
	Device     kernels.Device // that W lies on
	Name       string         // of the tensor
	W          kernels.Mat    // [out, in], in the type it is stored in; read only
	SumSquares []float64      // Σ x² over the tokens, for each input
	Sums       []float64      // Σ x
	Variances  []float64      // of each input
	Tokens     int64          // that reached the matrix
	Sequences  int            // of the calibration data
	G          kernels.Mat    // gradients, or regional ones, [out, in], F16 or F32, in host memory
	// Factor gives the upper triangular U with H⁻¹ = UᵀU of the damped Hessian: F32 [in, in], in host memory.
	// nil unless asked for.
	Factor func() (kernels.Mat, error)
}

// lacks reports whether statistics that a metric needs are not there, since no token reached the matrix.
func (in Inputs) lacks(needs Stats) bool {
	return needs&ofInputs != 0 && in.Tokens == 0 || needs&(Gradients|Regional) != 0 && in.G.IsZero()
}

// idle reports whether all of the statistics that a metric needs are 0, and so all scores that are made of them.
func (in Inputs) idle(needs Stats) bool {
	if needs&Regional != 0 {
		needs |= Gradients // they stand in the same place
	}
	return actstats.Idle(actstats.Set(needs), in.G, in.SumSquares, in.Sums, in.Variances)
}

// Magnitude ranks by |W|, by default over the whole layer.
func Magnitude() Metric {
	return Metric{Name: "magnitude", Group: Layer, Score: func(in Inputs) (kernels.Score, error) {
		return kernels.Score{X: in.W}, nil
	}}
}

// Wanda ranks by |W|·√s, by default within every output neuron, in float32 as the published code does.
func Wanda() Metric {
	return Metric{Name: "wanda", Needs: SumSquares, Group: Row, Score: wandaScore}
}

func wandaScore(in Inputs) (kernels.Score, error) {
	col := make([]float32, len(in.SumSquares))
	for j, s := range in.SumSquares {
		if col[j] = root(s); math.IsInf(float64(col[j]), 0) {
			return kernels.Score{X: in.W},
				fmt.Errorf("input %d: %w: the mean square %g exceeds single precision", j, ErrNonFinite, s)
		}
	}
	return withColumns(in, col)
}

// root is the norm of an input from its mean square, computed as the published code does.
func root(s float64) float32 { return float32(math.Sqrt(float64(float32(s)))) }

// withColumns is |W| times a factor for every input.
func withColumns(in Inputs, col []float32) (kernels.Score, error) {
	score := kernels.Score{X: in.W}
	buf, err := in.Device.Alloc(kernels.F32, len(col))
	if err != nil {
		return score, err
	}
	score.Col = kernels.MatOf(buf, 1, len(col))
	return score, in.Device.Upload(buf, 0, kernels.WrapF32(col).Bytes())
}

// metrics is the closed table of names.
var metrics = []func() Metric{Magnitude, Wanda, WandaVariant, RIA, GBLM, SparseGPT, PrunerZero, WandaPlus, OATS}

// Prefixes of names that are followed by a formula, or by a file with a tree of Pruner-Zero's schema.
const (
	FormulaPrefix = "expr:"
	TreePrefix    = "tree:"
)

// MetricNames lists the names that MetricByName knows, besides those with a prefix.
func MetricNames() []string {
	var names []string
	for _, m := range metrics {
		names = append(names, m().Name)
	}
	return names
}

// MetricByName finds a ready metric, or makes one of "expr:" and a formula, or "tree:" and the name of a JSON
// file. The error wraps ErrUnknown and lists the known names, or says what is wrong with the formula.
func MetricByName(name string) (Metric, error) {
	for _, m := range metrics {
		if m().Name == name {
			return m(), nil
		}
	}

	if e, ok, err := Expression(name); ok {
		if err != nil {
			return Metric{}, err
		}

		m, err := Formula(e)
		if file, tree := strings.CutPrefix(name, TreePrefix); tree && err != nil {
			err = fmt.Errorf("%s: %w", file, err)
		}
		return m, err
	}

	return Metric{}, fmt.Errorf("metric %q: %w; known: %s, %sFORMULA, %sFILE.json",
		name, ErrUnknown, strings.Join(MetricNames(), ", "), FormulaPrefix, TreePrefix)
}

// Expression reads the formula of a name that has one of the prefixes: the text behind "expr:", or the tree in the file
// behind "tree:". ok is false for other names.
func Expression(name string) (e *gp.Expr, ok bool, err error) {
	if text, ok := strings.CutPrefix(name, FormulaPrefix); ok {
		if e, err = gp.Parse(text); err != nil {
			err = fmt.Errorf("metric %q: %w", name, err)
		}
		return e, true, err
	}

	if file, ok := strings.CutPrefix(name, TreePrefix); ok && file != "" {
		e, err = treeFile(file)
		return e, true, err
	}

	return nil, false, nil
}

// MarshalJSON writes the name.
func (m Metric) MarshalJSON() ([]byte, error) { return json.Marshal(m.Name) }

// UnmarshalJSON finds a metric by its name.
func (m *Metric) UnmarshalJSON(data []byte) error {
	var name string
	if err := json.Unmarshal(data, &name); err != nil {
		return err
	}

	if name == givenName {
		*m = givenMetric()
		return nil
	}

	found, err := MetricByName(name)
	if err == nil {
		*m = found
	}

	return err
}

// Group says which weights are compared with each other.
type Group string

// The groups. A pattern N:M compares the M inputs of a group, whatever the Group is.
const (
	Row   Group = "row"   // the inputs of one output neuron
	Layer Group = "layer" // the whole matrix
	Strip Group = "block" // 128 inputs of all output neurons
	// Share lets every neuron lose the lowest scores that add up to the same share of its total, such that the
	// matrix loses about what it should, within 0.1 %. Scores may not be negative.
	Share Group = "share"
)

// groups is the closed table.
var groups = []Group{Row, Layer, Strip, Share}
