package edit

import "math"

// norm is the Euclidean norm.
func norm(v []float64) float64 { return math.Sqrt(dot(v, v)) }

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// minus is a - b.
func minus(a, b []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return d
}

// plus is a + f·b.
func plus(a []float64, f float64, b []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] + f*b[i]
	}
	return d
}

// scaled is f·a.
func scaled(f float64, a []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = f * a[i]
	}
	return d
}

// finite reports whether all values are finite numbers.
func finite(v []float64) bool {
	for _, x := range v {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return false
		}
	}
	return true
}

// groupMean is the mean over groups of the mean inside a group; sizes are those of consecutive groups of vectors.
func groupMean(vectors [][]float64, sizes []int) []float64 {
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

// distance is the Euclidean distance.
func distance(a, b []float64) float64 { return norm(minus(a, b)) }

// adam is the state of Adam (Kingma and Ba, arXiv 1412.6980) with β 0.9 and 0.999, ε 1e-8 and no decay.
type adam struct {
	lr   float64
	m, v []float64
	t    int
}

// step changes x by one step along the gradient g.
func (a *adam) step(x, g []float64) {
	if a.m == nil {
		a.m, a.v = make([]float64, len(x)), make([]float64, len(x))
	}
	a.t++
	c1, c2 := 1-math.Pow(0.9, float64(a.t)), 1-math.Pow(0.999, float64(a.t))
	for i := range x {
		a.m[i] = 0.9*a.m[i] + 0.1*g[i]
		a.v[i] = 0.999*a.v[i] + 0.001*g[i]*g[i]
		x[i] -= a.lr * (a.m[i] / c1) / (math.Sqrt(a.v[i]/c2) + 1e-8)
	}
}
