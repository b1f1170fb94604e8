package quantize

import (
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/corpus"
)

// RecordFile is the name of the report beside the weights of a quantised folder.
const RecordFile = "quantization.json"

// Report is what a run did.
type Report struct {
	Options     Options         `json:"options"`
	Version     string          `json:"version"`
	Device      kernels.Info    `json:"device"`
	Model       ModelInfo       `json:"model"`
	Calibration *corpus.Windows `json:"calibration,omitempty"`
	Matrices    []Matrix        `json:"matrices"`
	Folds       []Fold          `json:"folds,omitempty"`
	Total       Total           `json:"total"`
	Notes       []string        `json:"notes"`
	Times       Times           `json:"timings"`
}

// ModelInfo identifies the model.
type ModelInfo struct {
	Path        string `json:"path"`
	Type        string `json:"model_type"`
	Parameters  int64  `json:"parameters"`
	Fingerprint string `json:"fingerprint"`
}

// Matrix is what became of a matrix.
type Matrix struct {
	Name     string `json:"name"`
	Block    int    `json:"block"`
	Role     string `json:"role"`
	Expert   int    `json:"expert"` // -1 outside of mixtures
	Shape    [2]int `json:"shape"`  // outputs, inputs
	Scheme   string `json:"scheme"`
	Restored bool   `json:"restored,omitempty"`

	// Error is the squared error of the weights, as a fraction of their squares.
	Error float64 `json:"weight_error"`
	// OutputError is the squared error of the outputs over the calibration data, as a fraction of their squares, and
	// Rounded what it would be if every weight were rounded by itself. Where nothing was measured both are missing.
	OutputError *float64 `json:"output_error,omitempty"`
	Rounded     *float64 `json:"rounded_error,omitempty"`
	Damping     *Damping `json:"damping,omitempty"`
	Zeros       float64  `json:"zeros,omitempty"`       // fraction of the weights that are 0, where some were to become it
	Dead        int      `json:"dead_inputs,omitempty"` // inputs that are always 0
	// Unreached: no calibration token came to this expert, so that its weights were rounded by themselves.
	Unreached bool `json:"unreached,omitempty"`
}

// Fold is what became of a place where inputs can get factors that are taken out before them.
type Fold struct {
	Block  int      `json:"block"`
	From   string   `json:"from"`   // the norm or the matrix that is divided
	Into   []string `json:"into"`   // the matrices whose columns are multiplied
	Scaled bool     `json:"scaled"` // false: no factors did better
	// Ratio is the exponent of the inputs' magnitudes, and Before and After the squared errors of the outputs without
	// factors and with these, by AWQ.
	Ratio  float64 `json:"ratio,omitempty"`
	Before float64 `json:"error_before,omitempty"`
	After  float64 `json:"error_after,omitempty"`
}

// Damping is what a Hessian's diagonal was given so that it could be factored.
type Damping struct {
	Share float64 `json:"share"` // of the mean of the diagonal
	Added float64 `json:"added"` // to every element of the diagonal
	Tries int     `json:"tries"` // factorisations attempted
}

// Total sums a run up.
type Total struct {
	Matrices  int   `json:"matrices"`  // that are quantised
	Left      int   `json:"left"`      // matrices of blocks that stay floats
	Weights   int64 `json:"weights"`   // of quantised matrices
	Bits      int64 `json:"bits"`      // that these take, scales included
	BytesIn   int64 `json:"bytes_in"`  // of all tensors of the model
	BytesOut  int64 `json:"bytes_out"` // of all tensors of the output
	Unreached int   `json:"unreached,omitempty"`
	Restored  int   `json:"restored,omitempty"`
	// BitsPerWeight is Bits over Weights.
	BitsPerWeight float64 `json:"bits_per_weight"`
	// OutputError and Rounded are means over the matrices that have them.
	OutputError float64 `json:"output_error,omitempty"`
	Rounded     float64 `json:"rounded_error,omitempty"`
}

// Times are seconds.
type Times struct {
	Statistics float64 `json:"statistics"`
	Round      float64 `json:"round"`
	Propagate  float64 `json:"propagate"`
	Save       float64 `json:"save"`
	Total      float64 `json:"total"`
}

// add takes a finished matrix into the report.
func (r *Report) add(m Matrix) {
	r.Matrices = append(r.Matrices, m)
	r.Total.Matrices++
	r.Total.Weights += int64(m.Shape[0]) * int64(m.Shape[1])
	if m.Unreached {
		r.Total.Unreached++
	}
	if m.Restored {
		r.Total.Restored++
	}
}

// close computes what all matrices give together.
func (r *Report) close() {
	n := 0
	output := 0.0
	rounded := 0.0
	for _, m := range r.Matrices {
		if m.OutputError == nil {
			continue
		}
		n++
		output += *m.OutputError
		rounded += *m.Rounded
	}

	if n > 0 {
		r.Total.OutputError = output / float64(n)
		r.Total.Rounded = rounded / float64(n)
	}
	if r.Total.Weights > 0 {
		r.Total.BitsPerWeight = float64(r.Total.Bits) / float64(r.Total.Weights)
	}
}
