package mediate

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// TestBaselines: the figures that the literature and a count by hand give.
func TestBaselines(t *testing.T) {
	for _, c := range []struct {
		models   int
		density  float64
		disagree float64
	}{
		{2, 1, 0.5},
		{3, 1, 0.5},
		{4, 1, 0.625},
		{5, 1, 0.625},
		{8, 1, 0.7265625},
		{2, 0.2, 0.2 / (2 * 1.8)},
		{1, 0.2, 0},
	} {
		// a few roundings of logarithms and exponentials
		if got := randomSigns(c.models, c.density).Disagree; math.Abs(got-c.disagree) > 1e-12 {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestBaselinesMatchCounting: all sign patterns counted one by one give the baselines of a density of 1.
func TestBaselinesMatchCounting(t *testing.T) {
	for models := 1; models <= 6; models++ {
		c := newCounts(models)
		for pattern := range 1 << models {
			p := 0
			for b := range models {
				p += pattern >> b & 1
			}

			c.Pairs[p*(models+1)+models-p]++
			c.Elements++
			c.Mass += float64(models)
			c.Net += math.Abs(float64(2*p - models))
		}

		got, want := c.Measures(), randomSigns(models, 1)
		got.Cosine = want.Cosine

		for _, m := range Metrics() {
			x, _ := got.Of(m)
			y, _ := want.Of(m)
			if math.Abs(x-y) > 1e-12 { // a few roundings
				t.Errorf("%d models, %s: counted %v, baseline %v", models, m, x, y)
			}
		}
	}
}

// TestRules: every rule on seven groups.
func TestRules(t *testing.T) {
	values := []float64{0.9, 0.2, 0.2, 0.1, 0.5, 0.2, 0.8}
	var list []candidate
	for i, v := range values {
		list = append(list, candidate{Conflict: v, Bytes: int64(10 + i), Layer: i})
	}

	for _, c := range []struct {
		rule rule
		want []int
	}{
		{rule{Name: "none"}, nil},
		{rule{Name: "all"}, []int{0, 1, 2, 3, 4, 5, 6}},
		{rule{Name: "threshold", Value: 0.5}, []int{0, 6}},
		{rule{Name: "sigma", Value: 0}, []int{0, 4, 6}},
		{rule{Name: "sigma", Value: 1}, []int{0, 6}},
		{rule{Name: "top_k", Value: 4}, []int{0, 1, 4, 6}},
		{rule{Name: "top_k", Value: 99}, []int{0, 1, 2, 3, 4, 5, 6}},
		{rule{Name: "top_fraction", Value: 0.3}, []int{0, 6}},
		{rule{Name: "quantile", Value: 0.5}, []int{0, 4, 6}},
		{rule{Name: "otsu"}, []int{0, 4, 6}},
		{rule{Name: "budget", Bytes: 27}, []int{0, 6}},
		{rule{Name: "budget", Bytes: 9}, nil},
		{rule{Name: "layers", Layers: []int{3, 1}}, []int{1, 3}},
	} {
		routed, err := c.rule.Choose(list)
		var got []int
		for i, r := range routed {
			if r {
				got = append(got, i)
			}
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v %v, want %v", c.rule, got, err, c.want)
		}
	}

	if _, err := (rule{Name: "layers", Layers: []int{9}}).Choose(list); !errors.Is(err, errLayer) {
		t.Errorf("unknown layer: %v", err)
	}

	same := []candidate{{Conflict: 0.3}, {Conflict: 0.3}}
	if got, _ := (rule{Name: "otsu"}).Choose(same); slices.Contains(got, true) {
		t.Error("equal groups are no classes")
	}
}
