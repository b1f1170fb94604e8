package method

import (
	"fmt"
	"math"
)

// Coefficients of means and interpolations of vectors on the sphere: all of them are linear combinations of the
// vectors that follow from their Gram matrix alone.

// gram is a Gram matrix of inputs.
type gram [][]float64

// newGram is a matrix of zeros for n vectors.
func newGram(n int) gram {
	g := make(gram, n)
	for i := range g {
		g[i] = make([]float64, n)
	}
	return g
}

// Mirror fills the upper triangle.
func (g gram) Mirror() {
	for i := range g {
		for j := range i {
			g[j][i] = g[i][j]
		}
	}
}

// Norm is the length of a vector.
func (g gram) Norm(i int) float64 { return math.Sqrt(g[i][i]) }

// Cos is the cosine of two vectors whose lengths are bounded from below.
func (g gram) Cos(i, j int, floor float64) float64 {
	return g[i][j] / (max(g.Norm(i), floor) * max(g.Norm(j), floor))
}

// sphereWeights are the weights of an interpolation on the sphere at angle θ, given cos θ.
func sphereWeights(c, t float64) (float64, float64) {
	theta := math.Acos(min(max(c, -1), 1))
	s := math.Sin(theta)
	return math.Sin((1-t)*theta) / s, math.Sin(t*theta) / s
}

// tangentMean are multislerp's coefficients: with u_j = x_j/(‖x_j‖+eps), m = Σ w_j u_j and m' = m/‖m‖, the tangents are
// g_j = u_j - (u_j·m')m', G = Σ w_j g_j, r = ‖G‖+eps, and the result (m' cos r + G sin r / r)·Σ w_j‖x_j‖.
func tangentMean(g gram, w []float64, eps float64) ([]float64, error) {
	n := len(w)
	length := make([]float64, n)
	scale := 0.0
	for j := range w {
		length[j] = g.Norm(j) + eps
		scale += w[j] * g.Norm(j)
	}

	dot := func(a, b []float64) (s float64) { // of Σ a_i u_i and Σ b_j u_j
		for i := range a {
			for j := range b {
				s += a[i] * b[j] * g[i][j] / (length[i] * length[j])
			}
		}
		return s
	}

	norm := math.Sqrt(max(0, dot(w, w)))
	if norm < eps {
		if n == 2 {
			return w, nil
		}
		return nil, fmt.Errorf("the weighted mean of directions is zero: %w", ErrDegenerate)
	}

	mean, tangent := make([]float64, n), make([]float64, n)
	for j := range w {
		mean[j] = w[j] / norm
	}

	along := 0.0
	for j := range w {
		unit := make([]float64, n)
		unit[j] = 1
		tangent[j] += w[j]
		along += w[j] * dot(unit, mean)
	}

	for j := range w {
		tangent[j] -= along * mean[j]
	}

	r := math.Sqrt(max(0, dot(tangent, tangent))) + eps
	out := make([]float64, n)
	for j := range w {
		out[j] = (mean[j]*math.Cos(r) + tangent[j]*math.Sin(r)/r) * scale / length[j]
	}

	return out, nil
}

// karcherMean is the coefficients of the Riemannian mean of the directions at the mean of the lengths, after
// that many steps or when a step is shorter than tol. Vectors no longer than tol do not count as directions.
func karcherMean(g gram, steps int, tol float64) []float64 {
	n := len(g)
	length := 0.0
	var points []int
	for j := range n {
		length += g.Norm(j) / float64(n)
		if g.Norm(j) > tol {
			points = append(points, j)
		}
	}

	out := make([]float64, n)
	if len(points) == 0 {
		return out
	}

	u := karcherStart(g, points, tol)
	for range steps {
		t, size := karcherTangent(g, points, u, tol)
		if size < tol {
			break
		}
		for j := range u {
			u[j] = math.Cos(size)*u[j] + math.Sin(size)*t[j]/size
		}

		normalise(g, u)
	}

	for j := range u {
		out[j] = u[j] * length
	}

	return out
}

// karcherStart is the normalised mean of directions, as coefficients of the inputs, or the first direction.
func karcherStart(g gram, points []int, tol float64) []float64 {
	u := make([]float64, len(g))
	for _, j := range points {
		u[j] = 1 / (float64(len(points)) * g.Norm(j))
	}

	if math.Sqrt(max(0, quadratic(g, u, u))) < tol {
		clear(u)
		u[points[0]] = 1 / g.Norm(points[0])
	}

	normalise(g, u)
	return u
}

// karcherTangent is the mean of the logarithms of the points at u, and its length.
func karcherTangent(g gram, points []int, u []float64, tol float64) ([]float64, float64) {
	t := make([]float64, len(g))
	for _, j := range points {
		c := 0.0
		for i := range u {
			c += u[i] * g[i][j]
		}

		c = min(max(c/g.Norm(j), -1), 1)
		theta := math.Acos(c)
		if theta < tol {
			continue
		}

		f := theta / math.Sin(theta) / float64(len(points))
		t[j] += f / g.Norm(j)
		for i := range u {
			t[i] -= f * c * u[i]
		}
	}

	return t, math.Sqrt(max(0, quadratic(g, t, t)))
}

// quadratic is the product of Σ a_i x_i and Σ b_j x_j.
func quadratic(g gram, a, b []float64) (s float64) {
	for i := range a {
		for j := range b {
			s += a[i] * b[j] * g[i][j]
		}
	}
	return s
}

func normalise(g gram, u []float64) {
	n := math.Sqrt(quadratic(g, u, u))
	for i := range u {
		u[i] /= n
	}
}

// stockWeights is model stock's coefficients: t/N each, t = N·c/(1+(N-1)c) with c the mean cosine of pairs; 0 where
// that is not defined.
func stockWeights(g gram) ([]float64, error) {
	n := float64(len(g))
	c, pairs := 0.0, 0.0
	for i := range g {
		for j := range i {
			c += min(max(g[i][j]/max(g.Norm(i)*g.Norm(j), 1e-6), -1), 1)
			pairs++
		}
	}

	c /= pairs
	t := 0.0
	if den := 1 + (n-1)*c; math.Abs(den) >= 1e-6 {
		t = n * c / den
	}

	w := make([]float64, len(g))
	for i := range w {
		w[i] = t / n
	}

	return w, nil
}
