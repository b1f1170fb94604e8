package mediate

import (
	"errors"
	"fmt"
	"math"
)

// ErrPolicy: a rule of selection is unknown or out of range.
var ErrPolicy = errors.New("no such selection of experts")

// Verdict is what a router says about a prompt.
type Verdict struct {
	P           []float64 `json:"p"`           // of each expert
	Uncertainty float64   `json:"uncertainty"` // entropy of P as a fraction of log T, 0 … 1
	Energy      float64   `json:"energy"`      // -temperature·log Σ exp(score/temperature)
	// Distance is the log odds of a foreign prompt; of routers by features alone the least squared Mahalanobis distance
	// to an expert's mean.
	Distance float64 `json:"distance"`
	// Outside: the distance is above the router's threshold, and the prompt like no expert's.
	Outside bool `json:"outside"`
}

// Policy says how a verdict becomes weights. The zero value is the default: the best expert, and the dense model for
// prompts that are like no expert's. With Certain below 1 the few experts that matter answer uncertain prompts
// together, which has not served better where it was measured: mixtures cost more than wrong experts.
type Policy struct {
	Select string // "": by uncertainty; top1; all; dense
	// Certain is the uncertainty up to which the best expert alone is taken; 0: 1, so always.
	Certain float64
	// Cover is how much probability the chosen experts have together; 0: 0.9. Most bounds their number; 0: 3.
	Cover float64
	Most  int
	// Outside is what becomes of a prompt like no expert's: "" or dense, none of them; merge, all experts by √p; or
	// ignore, what becomes of any other.
	Outside string
	// Soften multiplies the calibrated temperature; 0: 1.
	Soften float64
	// By is what goes one way: "", the whole request, or [BySentence], which [Routed.RouteSentences] is for.
	By string
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

	switch p.By {
	case "":
	case BySentence:
		mixes := p.Certain != 0 || p.Cover != 0 || p.Most != 0 || p.Outside == "merge"
		if p.Select != "" && p.Select != "top1" || mixes {
			return fmt.Errorf("by sentence: each has one expert, so that certain, cover, most and outside=merge mean "+
				"nothing: %w", ErrPolicy)
		}
	default:
		return fmt.Errorf("by %.40q: want sentence: %w", p.By, ErrPolicy)
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
		p.Certain = 1
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
	case v.Outside && p.Outside != "merge" && p.Outside != "ignore":
		return w
	case v.Outside && p.Outside == "merge":
		// What the classifier says of a prompt like no expert's is worth less: roots bring the weights closer.
		for i, x := range v.P {
			w[i] = math.Sqrt(x)
		}
	case v.Uncertainty <= p.Certain:
		w[best(v.P)] = 1
		return w
	default: // the most probable few that cover most of the probability
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

// uncertain is the entropy of probabilities as a fraction of the highest there is, 0 … 1.
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
