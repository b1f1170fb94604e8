package mediate

import (
	"errors"
	"math"
	"testing"
)

// TestPolicies: weights by certainty, probability and distance; they sum to 1, or to 0 for the dense model.
func TestPolicies(t *testing.T) {
	sure := Verdict{P: []float64{0.01, 0.98, 0.01}, Uncertainty: 0.1}
	unsure := Verdict{P: []float64{0.5, 0.05, 0.45}, Uncertainty: 0.8}
	outside := Verdict{P: []float64{0.64, 0.36, 0}, Uncertainty: 0.2, Outside: true}
	for _, c := range []struct {
		policy Policy
		v      Verdict
		want   []float64
	}{
		{Policy{}, sure, []float64{0, 1, 0}},
		{Policy{}, unsure, []float64{1, 0, 0}},
		{Policy{Certain: 0.3}, unsure, []float64{0.5 / 0.95, 0, 0.45 / 0.95}},
		{Policy{Certain: 0.3, Most: 1}, unsure, []float64{1, 0, 0}},
		{Policy{Select: "top1"}, unsure, []float64{1, 0, 0}},
		{Policy{Select: "all"}, unsure, unsure.P},
		{Policy{Select: "dense"}, sure, []float64{0, 0, 0}},
		{Policy{}, outside, []float64{0, 0, 0}},
		{Policy{Outside: "merge"}, outside, []float64{0.8 / 1.4, 0.6 / 1.4, 0}},
		{Policy{Outside: "dense"}, outside, []float64{0, 0, 0}},
		{Policy{Outside: "ignore"}, outside, []float64{1, 0, 0}},
		{
			Policy{Outside: "ignore", Soften: 0.5, Select: "all"},
			outside,
			[]float64{0.4096 / 0.5392, 0.1296 / 0.5392, 0},
		},
		{Policy{Certain: 0.3, Soften: 1e6}, sure, []float64{1. / 3, 1. / 3, 1. / 3}},
	} {
		got := c.policy.Weights(c.v)
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 1e-5 { // the last but one is 1/3 only at an infinite temperature
				t.Errorf("%+v: %v, want %v", c.policy, got, c.want)
			}
		}
	}

	for _, p := range []Policy{
		{Select: "x"},
		{Outside: "x"},
		{Certain: 2},
		{Cover: math.NaN()},
		{Most: -1},
		{Soften: -1},
		{Soften: math.Inf(1)},
		{Soften: math.NaN()},
	} {
		if err := p.Validate(); !errors.Is(err, ErrPolicy) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
