package site

import (
	"maps"
	"math"
	"slices"
)

// Norm is the Euclidean norm.
func Norm(v []float64) float64 { return math.Sqrt(Dot(v, v)) }

// Dot is the inner product.
func Dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// Minus is a - b.
func Minus(a, b []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return d
}

// Plus is a + f·b.
func Plus(a []float64, f float64, b []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] + f*b[i]
	}
	return d
}

// Scaled is f·a.
func Scaled(f float64, a []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = f * a[i]
	}
	return d
}

// Finite reports whether all values are finite numbers.
func Finite(v []float64) bool {
	for _, x := range v {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return false
		}
	}
	return true
}

// GroupMean is the mean over groups of the mean inside a group; sizes are those of consecutive groups of vectors.
func GroupMean(vectors [][]float64, sizes []int) []float64 {
	out := make([]float64, len(vectors[0]))
	at := 0
	for _, n := range sizes {
		for _, v := range vectors[at : at+n] {
			for j := range v {
				out[j] += v[j] / float64(n) / float64(len(sizes))
			}
		}
		at += n
	}

	return out
}

// Distance is the Euclidean distance.
func Distance(a, b []float64) float64 { return Norm(Minus(a, b)) }

// Adam is the state of Adam (Kingma and Ba, arXiv 1412.6980) with β 0.9 and 0.999, ε 1e-8 and no decay.
type Adam struct {
	Lr   float64
	m, v []float64
	t    int
}

// Step changes x by one step along the gradient g.
func (a *Adam) Step(x, g []float64) {
	if a.m == nil {
		a.m, a.v = make([]float64, len(x)), make([]float64, len(x))
	}

	a.t++
	c1, c2 := 1-math.Pow(0.9, float64(a.t)), 1-math.Pow(0.999, float64(a.t))
	for i := range x {
		a.m[i] = 0.9*a.m[i] + 0.1*g[i]
		a.v[i] = 0.999*a.v[i] + 0.001*g[i]*g[i]
		x[i] -= a.Lr * (a.m[i] / c1) / (math.Sqrt(a.v[i]/c2) + 1e-8)
	}
}

// Sorted are the keys of a map in order.
func Sorted[K ~string | ~int, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
