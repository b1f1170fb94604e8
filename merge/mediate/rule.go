package mediate

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// errLayer: a rule names a layer that the model does not have.
var errLayer = errors.New("no such layer")

// candidate is a group that may be routed.
type candidate struct {
	Conflict float64
	Bytes    int64 // that routing it stores
	Layer    int
}

// rule chooses groups; the fields are those of a recipe's select.
type rule struct {
	// sigma, none, all, otsu, threshold, top_k, top_fraction, quantile, budget, layers
	Name   string  `json:"rule"`
	Value  float64 `json:"value,omitempty"`  // of sigma, threshold, top_k, top_fraction, quantile
	Bytes  int64   `json:"bytes,omitempty"`  // of budget
	Layers []int   `json:"layers,omitempty"` // of layers
}

// Choose tells for each group whether it is routed. Of equal ones the earlier wins. Rules with a bound route
// what lies above it: sigma above mean + value·deviation, quantile above that quantile (interpolated), otsu
// above the bound that separates two classes best.
func (r rule) Choose(list []candidate) ([]bool, error) {
	out := make([]bool, len(list))
	switch r.Name {
	case "all":
		for i := range out {
			out[i] = true
		}
	case "top_k":
		r.top(list, int(r.Value), out)
	case "top_fraction":
		r.top(list, int(math.Round(r.Value*float64(len(list)))), out)
	case "budget":
		r.budget(list, out)
	case "layers":
		for _, l := range r.Layers {
			if !slices.ContainsFunc(list, func(c candidate) bool { return c.Layer == l }) {
				return nil, fmt.Errorf("select: layer %d: %w", l, errLayer)
			}
		}

		for i, c := range list {
			out[i] = slices.Contains(r.Layers, c.Layer)
		}
	default:
		// Above, not at: where all groups conflict equally, no bound routes them all.
		bound := r.bound(list)
		for i, c := range list {
			out[i] = c.Conflict > bound
		}
	}

	return out, nil
}

// top routes the k groups with most conflict.
func (r rule) top(list []candidate, k int, out []bool) {
	order := ranked(list, func(c candidate) float64 { return c.Conflict })
	for _, i := range order[:min(k, len(order))] {
		out[i] = true
	}
}

// budget takes groups by conflict per byte while they fit.
func (r rule) budget(list []candidate, out []bool) {
	left := r.Bytes
	for _, i := range ranked(list, func(c candidate) float64 { return c.Conflict / float64(max(1, c.Bytes)) }) {
		if list[i].Bytes <= left {
			out[i] = true
			left -= list[i].Bytes
		}
	}
}

// ranked orders groups by a value, the largest first.
func ranked(list []candidate, value func(candidate) float64) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}

	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := value(list[a]), value(list[b]); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})

	return order
}

// bound is the conflict above which groups are routed.
func (r rule) bound(list []candidate) float64 {
	values := make([]float64, len(list))
	for i, c := range list {
		values[i] = c.Conflict
	}

	switch r.Name {
	case "threshold":
		return r.Value
	case "sigma":
		mean, deviation := moments(values)
		return mean + r.Value*deviation
	case "quantile":
		return quantile(values, r.Value)
	case "otsu":
		return otsu(values)
	}

	return math.Inf(1) // none
}

// moments are the mean and the standard deviation, with the number of values as divisor.
func moments(values []float64) (mean, deviation float64) {
	n := float64(max(1, len(values)))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		deviation += (v - mean) * (v - mean) / n
	}
	return mean, math.Sqrt(deviation)
}

// quantile is interpolated between neighbours.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	i := min(int(at), len(sorted)-1)
	j := min(i+1, len(sorted)-1)
	return sorted[i] + (at-float64(i))*(sorted[j]-sorted[i])
}

// otsu is the bound between two neighbours of the sorted values that has the largest variance between the
// classes it makes (Otsu, IEEE Trans. SMC 9, 1979); of equal ones the lowest. Values that are all the same make
// no classes.
func otsu(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}

	sorted := slices.Sorted(slices.Values(values))
	total := 0.0
	for _, v := range sorted {
		total += v
	}

	best := 0.0
	bound := sorted[len(sorted)-1]
	below := 0.0
	for i, v := range sorted[:len(sorted)-1] {
		below += v
		if sorted[i+1] == v {
			// No bound can part equal values.
			continue
		}

		a, b := float64(i+1), float64(len(sorted)-i-1)
		gap := below/a - (total-below)/b
		if between := a * b * gap * gap; between > best {
			best, bound = between, v
		}
	}

	return bound
}
