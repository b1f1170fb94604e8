package prune

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/modelcompress/compress/kernels"
)

// Metric ranks the weights of a matrix: the lowest scores go. A metric of your own is a value of this type; Magnitude,
// Wanda and MetricByName give the ready ones.
type Metric struct {
	Name  string
	Needs Stats // what Score reads besides the weights
	Group Group // compared with each other unless Options.Group says otherwise
	// Score describes the scores of one matrix. Buffers that it allocates belong to the caller, who frees them.
	Score func(in Inputs) (kernels.Score, error)
}

// Stats is a set of statistics of the inputs of a matrix.
type Stats uint8

// SumSquares is s_j = (1/N)·Σ x_j² over the tokens that reach the matrix, N the number of calibration sequences.
const SumSquares Stats = 1

// Inputs is what a metric may look at.
type Inputs struct {
	Device kernels.Device
	Name   string      // of the tensor
	W      kernels.Mat // [out, in], in the type it is stored in; read only
	// SumSquares is s_j for every input; nil unless asked for, and if no token reached the matrix.
	SumSquares []float64
}

// Magnitude ranks by |W|, by default over the whole layer.
func Magnitude() Metric {
	return Metric{Name: "magnitude", Group: Layer, Score: func(in Inputs) (kernels.Score, error) {
		return kernels.Score{X: in.W}, nil
	}}
}

// Wanda ranks by |W|·√s, by default within every output neuron, in float32 as the published code does. Without
// statistics, for an expert that saw no token, it ranks by |W|.
func Wanda() Metric {
	return Metric{Name: "wanda", Needs: SumSquares, Group: Row, Score: wandaScore}
}

func wandaScore(in Inputs) (kernels.Score, error) {
	score := kernels.Score{X: in.W}
	if in.SumSquares == nil {
		return score, nil
	}
	col := make([]float32, len(in.SumSquares))
	for j, s := range in.SumSquares {
		col[j] = float32(math.Sqrt(float64(float32(s))))
		if math.IsInf(float64(col[j]), 0) {
			return score, fmt.Errorf("%s: input %d: %w: the mean square %g exceeds single precision", in.Name, j, ErrNonFinite, s)
		}
	}
	buf, err := in.Device.Alloc(kernels.F32, len(col))
	if err != nil {
		return score, err
	}
	score.Col = kernels.MatOf(buf, 1, len(col))
	return score, in.Device.Upload(buf, 0, kernels.WrapF32(col).Bytes())
}

// metrics is the closed table of names.
var metrics = []func() Metric{Magnitude, Wanda}

// MetricNames lists the names that MetricByName knows.
func MetricNames() []string {
	var names []string
	for _, m := range metrics {
		names = append(names, m().Name)
	}
	return names
}

// MetricByName finds a ready metric. The error wraps ErrUnknown and lists the known names.
func MetricByName(name string) (Metric, error) {
	for _, m := range metrics {
		if m().Name == name {
			return m(), nil
		}
	}
	return Metric{}, fmt.Errorf("metric %q: %w; known: %s", name, ErrUnknown, strings.Join(MetricNames(), ", "))
}

// MarshalJSON writes the name.
func (m Metric) MarshalJSON() ([]byte, error) { return json.Marshal(m.Name) }

// UnmarshalJSON finds a metric by its name.
func (m *Metric) UnmarshalJSON(data []byte) error {
	var name string
	if err := json.Unmarshal(data, &name); err != nil {
		return err
	}
	found, err := MetricByName(name)
	if err == nil {
		*m = found
	}
	return err
}

// Group says which weights are compared with each other.
type Group string

// The groups.
const (
	Row   Group = "row"   // the inputs of one output neuron
	Layer Group = "layer" // the whole matrix
)
