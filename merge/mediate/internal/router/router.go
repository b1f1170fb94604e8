// Package router decides which experts answer a prompt: by the prompts that are nearest to it beside a linear head on a
// feature ([FitNearest]), or by the feature alone, with linear discriminants in closed form, ridge logistic regression
// or a small network ([Fit]); with a calibrated temperature and measures of uncertainty.
//
// # What is computed
//
// A feature x is a vector of length 1 that the caller takes from the model. With μ_t the mean feature of expert t's
// prompts, π_t their fraction and Σ the covariance within experts, shrunk towards a multiple of the identity:
//
//	s_t = xᵀΣ⁻¹μ_t - μ_tᵀΣ⁻¹μ_t/2 + ln π_t      linear discriminants; or the logits of another classifier
//	p = softmax(s/temperature)
//	uncertainty = entropy(p)/ln T                between experts
//	distance = min_t (x-μ_t)ᵀΣ⁻¹(x-μ_t)          from all experts: squared Mahalanobis
//
// Uncertainty and distance answer two questions. A prompt between two experts is uncertain and not far; one like
// nothing that was trained on is far, and classifiers are often certain about it. So the distance is always that of the
// discriminants, whichever classifier gives the scores, and a prompt beyond the threshold (Outside) is treated
// differently from an uncertain one, see package mediate.
//
// # By nearest prompts ([FitNearest])
//
// With g the tokens and pairs of neighbouring tokens of a prompt, each weighed by w = ln(prompts/those that hold it),
//
//	c_t = max over prompts p of t   Σ_{g in both} w² / (‖x‖·‖p‖)     a cosine of sets
//	s_t = 10·c_t + mix·h_t                                          h: logits of a ridge logistic head on the feature
//
// where t is an expert or, as one class more, prompts that are nobody's (code, other languages, chat, questions), which
// the program brings along. p = softmax over the experts; log odds s_foreign - max s_expert beyond a bound make a
// prompt foreign.
//
// # How it is fitted ([Fit])
//
// Everything is float64 and deterministic: closed forms, or a fixed number of steps from a fixed start. Discriminants
// are the default because some dozens of prompts are enough for them: what they learn is T means and one shared
// covariance. A fifth of the prompts is held out for the temperature (Guo et al., "On Calibration of Modern Neural
// Networks", 2017) and for the accuracy that is reported; then the router is trained again on all. The threshold is the
// 95 % quantile of distances, each measured by a router that has not seen the prompt: a router's own prompts lie nearer
// to its means than new ones do.
package router

import (
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
)

// Ways of failing.
var (
	// ErrFeature: a feature holds a NaN, an infinity, nothing but zeros, or has another length.
	ErrFeature = errors.New("feature cannot be used")
	// ErrPrompts: a file of prompts is malformed, or they do not tell the experts apart, or there are too few.
	ErrPrompts = errors.New("prompts cannot be used")
	// ErrFile: a router's file is malformed or does not fit its manifest.
	ErrFile = errors.New("router file is wrong")
)

// Normalize scales a feature to length 1.
func Normalize(x []float64) error {
	sum := 0.0
	for i, v := range x {
		if v-v != 0 {
			return fmt.Errorf("element %d is %v: %w", i, v, ErrFeature)
		}
		sum += v * v
	}

	if sum == 0 || math.IsInf(sum, 0) {
		return fmt.Errorf("length %v: %w", math.Sqrt(sum), ErrFeature)
	}
	for i := range x {
		x[i] /= math.Sqrt(sum)
	}

	return nil
}

// Router is a trained router.
type Router struct {
	Classifier  string
	Mean        linalg.Matrix // of the experts' features [T, d]
	Chol        linalg.Matrix // lower factor of the covariance within experts [d, d]
	Prior       []float64     // fractions of the prompts
	Bias        []float64     // of the discriminants
	Temperature float64
	Outside     float64 // the square of the Mahalanobis distance above which a prompt is unlike all experts'

	direction linalg.Matrix // Σ⁻¹μ_t, [T, d]
	linear    *linear       // logistic regression, or the head beside the shelf
	shelf     *shelf        // the prompts that others are compared with
	experts   int           // with a shelf
	Mix       float64       // weight of the head beside the shelf
	network   *network      // mlp
}

// Dim is the length of features.
func (r *Router) Dim() int {
	if r.shelf != nil {
		return r.linear.weight.Cols
	}
	return r.Mean.Cols
}

// Judge gives the probability of each expert for a normalised feature; the energy -temperature·log Σ exp(score /
// temperature); and the least squared Mahalanobis distance to an expert's mean.
func (r *Router) Judge(x []float64) (p []float64, energy, distance float64, err error) {
	if r.shelf != nil {
		return nil, 0, 0, fmt.Errorf("a router by nearest prompts wants prompts, not features: %w", ErrFeature)
	}
	if len(x) != r.Dim() {
		return nil, 0, 0, fmt.Errorf("length %d, the router's is %d: %w", len(x), r.Dim(), ErrFeature)
	}

	scores, err := r.scores(x)
	if err != nil {
		return nil, 0, 0, err
	}

	// Relative to the highest, so that no exponential overflows.
	top := math.Inf(-1)
	for _, s := range scores {
		top = max(top, s/r.Temperature)
	}

	sum := 0.0
	p = make([]float64, len(scores))
	for i, s := range scores {
		p[i] = math.Exp(s/r.Temperature - top)
		sum += p[i]
	}

	for i := range p {
		p[i] /= sum
	}

	if distance, err = r.distance(x); err != nil {
		return nil, 0, 0, err
	}
	if sum-sum != 0 || distance-distance != 0 { // finite values of a file can be as large as they like
		return nil, 0, 0, fmt.Errorf("what it makes of a feature is not finite: %w", ErrFile)
	}

	return p, -r.Temperature * (top + math.Log(sum)), distance, nil
}

// scores are the logits before the temperature.
func (r *Router) scores(x []float64) ([]float64, error) {
	switch {
	case r.linear != nil:
		return r.linear.scores(x), nil
	case r.network != nil:
		return r.network.scores(x), nil
	}

	out := make([]float64, r.Mean.Rows)
	for t := range out {
		out[t] = r.Bias[t] + dot(x, r.direction.Row(t))
	}

	return out, nil
}

func dot(x, y []float64) (s float64) {
	for i, v := range x {
		s += v * y[i]
	}
	return s
}

// distance is min_t (x-μ_t)ᵀΣ⁻¹(x-μ_t).
func (r *Router) distance(x []float64) (float64, error) {
	// With Σ = L·Lᵀ it is ‖L⁻¹(x-μ_t)‖²; all experts are solved for together.
	d := linalg.New(len(x), r.Mean.Rows)
	for t := range r.Mean.Rows {
		for i, v := range x {
			d.Set(i, t, v-r.Mean.At(t, i))
		}
	}

	if err := (linalg.Solver{}).TriSolve(r.Chol, d, linalg.Triangle{}); err != nil {
		return 0, err
	}

	best := math.Inf(1)
	for t := range r.Mean.Rows {
		sum := 0.0
		for i := range x {
			sum += d.At(i, t) * d.At(i, t)
		}
		best = min(best, sum)
	}

	return best, nil
}

// prepare computes what the discriminants need of the means and the covariance.
func (r *Router) prepare() error {
	r.direction = r.Mean.T()
	if err := (linalg.Solver{}).CholeskySolve(r.Chol, r.direction, false); err != nil {
		return err
	}

	r.direction = r.direction.T()
	r.Bias = make([]float64, r.Mean.Rows)
	for t := range r.Bias {
		r.Bias[t] = math.Log(r.Prior[t]) - dot(r.Mean.Row(t), r.direction.Row(t))/2
	}

	return nil
}

// best is the first of the largest.
func best(p []float64) int {
	at := 0
	for i, x := range p {
		if x > p[at] {
			at = i
		}
	}
	return at
}
