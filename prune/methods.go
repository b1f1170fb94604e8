package prune

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/prune/internal/gpuscore"
	"github.com/modelcompress/compress/prune/internal/score"
)

// WandaVariant is Wanda with every neuron losing the same share of its total score instead of the same number
// of weights.
func WandaVariant() Metric {
	m := Wanda()
	m.Name, m.Group = "wanda-variant", Share
	return m
}

// SparseGPT ranks by w²/[H⁻¹]_jj of the weights as they are once those to the left have been removed and the
// rest has been updated, by default among 128 inputs of all neurons at a time (arXiv:2301.00774). It goes with
// Update SparseGPTUpdate, which it implies; with another update the mask is that of the sweep and its weights
// are dropped.
//
// With rows or the layer as groups the mask is fixed beforehand, from the weights as they are.
func SparseGPT() Metric {
	return Metric{
		Name: "sparsegpt", Needs: Hessian, Group: Strip, sweeps: true,
		Score: func(in Inputs) (kernels.Score, error) {
			u, err := in.Factor()
			if err != nil {
				return kernels.Score{}, err
			}
			col := make([]float32, u.Cols)
			for j := range col {
				col[j] = 1 / u.RowF32(j)[j]
			}
			return withColumns(in, col)
		},
	}
}

// RIA ranks by (|W|/Σ_column|W| + |W|/Σ_row|W|)·s^¼: relative importance times the square root of an input's norm, by
// default over the whole layer (ICLR 2024, "Plug-and-Play").
func RIA() Metric {
	return Metric{
		Name: "ria", Needs: SumSquares, Group: Layer, Score: riaScore,
		there: func(in Inputs) (*gpuscore.Scores, error) {
			act, err := riaFactor(in)
			if err != nil {
				return nil, err
			}
			return gpuscore.RIA(in.Device, in.W, act)
		},
	}
}

func riaScore(in Inputs) (kernels.Score, error) {
	act, err := riaFactor(in)
	if err != nil {
		return kernels.Score{}, err
	}

	w, err := hostmat.F32(in.Device, in.W)
	if err != nil {
		return kernels.Score{}, err
	}

	kernels.Missed(in.Device, "Score")
	score.Relative(w, act, in.Device.Info().Threads)
	return score.Place(in.Device, w)
}

// riaFactor is what RIA multiplies the weights of every input by.
func riaFactor(in Inputs) ([]float32, error) {
	act := make([]float32, len(in.SumSquares))
	for j, s := range in.SumSquares {
		act[j] = float32(math.Sqrt(math.Sqrt(float64(float32(s)))))
		if math.IsInf(float64(act[j]), 0) {
			return nil, fmt.Errorf("input %d: %w: the mean square %g exceeds single precision", j, ErrNonFinite, s)
		}
	}
	return act, nil
}
