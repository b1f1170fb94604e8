// Package router decides by a feature of a prompt which experts answer it: linear discriminants in closed form,
// ridge logistic regression, or a small network, with a calibrated temperature, measures of uncertainty and
// rules that turn them into weights.
//
// # What is computed
//
// A feature x is a vector of length 1 that the caller takes from the model. With μ_t the mean feature of expert t's
// prompts, π_t their share and Σ the covariance within experts, shrunk towards a multiple of the identity:
//
//	s_t = xᵀΣ⁻¹μ_t - μ_tᵀΣ⁻¹μ_t/2 + ln π_t      linear discriminants; or the logits of another classifier
//	p = softmax(s/temperature)
//	uncertainty = entropy(p)/ln T                between experts
//	distance = min_t (x-μ_t)ᵀΣ⁻¹(x-μ_t)          from all experts: squared Mahalanobis
//
// Uncertainty and distance answer two questions. A prompt between two experts is uncertain and not far; one like
// nothing that was trained on is far, and classifiers are often certain about it. So the distance is always that of the
// discriminants, whichever classifier gives the scores, and a prompt beyond the threshold (Outside) is treated
// differently from an uncertain one: see [Policy.Weights].
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
	// ErrPolicy: a rule of selection is unknown or out of range.
	ErrPolicy = errors.New("no such selection of experts")
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
	Prior       []float64     // shares of the prompts
	Bias        []float64     // of the discriminants
	Temperature float64
	Outside     float64 // the square of the Mahalanobis distance above which a prompt is unlike all experts'

	direction linalg.Matrix // Σ⁻¹μ_t, [T, d]
	linear    *linear       // logistic regression
	network   *network      // mlp
}

// Dim is the length of features.
func (r *Router) Dim() int { return r.Mean.Cols }

// Verdict is what a router says about a prompt.
type Verdict struct {
	P           []float64 `json:"p"`           // of each expert
	Uncertainty float64   `json:"uncertainty"` // entropy of P as a share of log T, 0 … 1
	Energy      float64   `json:"energy"`      // -temperature·log Σ exp(score/temperature)
	Distance    float64   `json:"distance"`    // least squared Mahalanobis distance to an expert's mean
	Outside     bool      `json:"outside"`     // the distance is above the threshold
}

// Judge gives the verdict on a normalised feature.
func (r *Router) Judge(x []float64) (Verdict, error) {
	if len(x) != r.Dim() {
		return Verdict{}, fmt.Errorf("length %d, the router's is %d: %w", len(x), r.Dim(), ErrFeature)
	}

	scores, err := r.scores(x)
	if err != nil {
		return Verdict{}, err
	}

	// Relative to the highest, so that no exponential overflows.
	v := Verdict{P: make([]float64, len(scores))}
	top := math.Inf(-1)
	for _, s := range scores {
		top = max(top, s/r.Temperature)
	}

	sum := 0.0
	for i, s := range scores {
		v.P[i] = math.Exp(s/r.Temperature - top)
		sum += v.P[i]
	}

	for i := range v.P {
		v.P[i] /= sum
	}

	v.Uncertainty = uncertain(v.P)
	v.Energy = -r.Temperature * (top + math.Log(sum))
	if v.Distance, err = r.distance(x); err != nil {
		return Verdict{}, err
	}
	if sum-sum != 0 || v.Distance-v.Distance != 0 { // finite values of a file can be as large as they like
		return Verdict{}, fmt.Errorf("what it makes of a feature is not finite: %w", ErrFile)
	}

	v.Outside = v.Distance > r.Outside
	return v, nil
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

// Policy says how a verdict becomes weights. The zero value is the default: the best expert if that is certain,
// else the few that matter, and all of them for prompts that are like no expert's.
type Policy struct {
	Select string // "": by uncertainty; top1; all; dense
	// Certain is the uncertainty up to which the best expert alone is taken; 0: 0.3.
	Certain float64
	// Cover is how much probability the chosen experts have together; 0: 0.9. Most bounds their number; 0: 3.
	Cover float64
	Most  int
	// Outside is what becomes of a prompt like no expert's: "" or merge, all experts by √p; dense, none of
	// them; or ignore, what becomes of any other.
	Outside string
	// Soften multiplies the calibrated temperature; 0: 1.
	Soften float64
}

// Validate checks the ranges.
func (p Policy) Validate() error {
	switch p.Select {
	case "", "top1", "all", "dense":
	default:
		return fmt.Errorf("select %.40q: want top1, all or dense: %w", p.Select, ErrPolicy)
	}

	switch p.Outside {
	case "", "merge", "dense", "ignore":
	default:
		return fmt.Errorf("outside %.40q: want merge, dense or ignore: %w", p.Outside, ErrPolicy)
	}

	if !(p.Certain >= 0 && p.Certain <= 1 && p.Cover >= 0 && p.Cover <= 1) || p.Most < 0 {
		return fmt.Errorf("uncertainty %v, cover %v, at most %d: %w", p.Certain, p.Cover, p.Most, ErrPolicy)
	}
	if !(p.Soften >= 0) || math.IsInf(p.Soften, 1) {
		return fmt.Errorf("temperature times %v: %w", p.Soften, ErrPolicy)
	}

	return nil
}

// Weights turns a verdict into the weights of the experts. They sum to 1, or are all 0 for the dense model alone.
func (p Policy) Weights(v Verdict) []float64 {
	w := make([]float64, len(v.P))
	if p.Soften != 0 && p.Soften != 1 {
		v.P, v.Uncertainty = softened(v.P, p.Soften)
	}
	if p.Certain == 0 {
		p.Certain = 0.3
	}
	if p.Cover == 0 {
		p.Cover = 0.9
	}
	if p.Most == 0 {
		p.Most = 3
	}

	switch {
	case p.Select == "dense":
		return w
	case p.Select == "top1":
		w[best(v.P)] = 1
		return w
	case p.Select == "all":
		copy(w, v.P)
		return w
	case v.Outside && p.Outside == "dense":
		return w
	case v.Outside && p.Outside != "ignore":
		// What the classifier says of a prompt like no expert's is worth less: roots draw the weights together.
		for i, x := range v.P {
			w[i] = math.Sqrt(x)
		}
	case v.Uncertainty <= p.Certain:
		w[best(v.P)] = 1
		return w
	default: // the likeliest few that cover most of the probability
		left := append([]float64(nil), v.P...)
		for sum, n := 0.0, 0; n < min(p.Most, len(w)) && sum < p.Cover; n++ {
			i := best(left)
			w[i], left[i] = v.P[i], -1
			sum += v.P[i]
		}
	}

	sum := 0.0
	for _, x := range w {
		sum += x
	}
	for i := range w {
		w[i] /= sum
	}

	return w
}

// softened is what the probabilities and their uncertainty are at a multiple of the temperature: p^(1/factor),
// normalised.
func softened(p []float64, factor float64) (q []float64, uncertainty float64) {
	q = make([]float64, len(p))
	sum := 0.0
	top := p[best(p)]
	for i, x := range p {
		q[i] = math.Pow(x/top, 1/factor)
		sum += q[i]
	}

	for i := range q {
		q[i] /= sum
	}

	return q, uncertain(q)
}

// uncertain is the entropy of probabilities as a share of the highest there is, 0 … 1.
func uncertain(p []float64) float64 {
	entropy := 0.0
	for _, x := range p {
		if x > 0 {
			entropy -= x * math.Log(x)
		}
	}

	if len(p) < 2 {
		return 0
	}

	return min(1, entropy/math.Log(float64(len(p))))
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
