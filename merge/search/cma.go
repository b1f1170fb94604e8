package search

import (
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/rng"
)

// strategy is the state of a CMA-ES with weighted recombination and cumulative step-size adaptation; the names of the
// constants are the tutorial's.
type strategy struct {
	n, lambda, mu int
	weights       []float64
	mueff         float64
	cc, cs        float64
	c1, cmu, damp float64
	chi           float64 // expected length of a standard normal vector

	mean   []float64
	sigma  float64
	cov    linalg.Matrix
	pc, ps []float64
	basis  linalg.Matrix // eigenvectors of cov as columns
	scale  []float64     // roots of its eigenvalues
	count  int           // of generations
}

// population is the tutorial's default for n variables.
func population(n int) int { return 4 + int(3*math.Log(float64(n))) }

// newStrategy starts at a point with a standard deviation of sigma in every coordinate.
func newStrategy(start []float64, sigma float64, lambda int) *strategy {
	n := len(start)
	s := &strategy{
		n: n, lambda: lambda, mu: lambda / 2, mean: slices.Clone(start), sigma: sigma,
		pc: make([]float64, n), ps: make([]float64, n),
	}

	var sum, squares float64
	for i := range s.mu {
		w := math.Log(float64(lambda+1)/2) - math.Log(float64(i+1))
		s.weights = append(s.weights, w)
		sum += w
	}

	for i := range s.weights {
		s.weights[i] /= sum
		squares += s.weights[i] * s.weights[i]
	}

	s.mueff = 1 / squares
	N := float64(n)
	s.cc = (4 + s.mueff/N) / (N + 4 + 2*s.mueff/N)
	s.cs = (s.mueff + 2) / (N + s.mueff + 5)
	s.c1 = 2 / ((N+1.3)*(N+1.3) + s.mueff)
	s.cmu = min(1-s.c1, 2*(s.mueff-2+1/s.mueff)/((N+2)*(N+2)+s.mueff))
	s.damp = 1 + 2*max(0, math.Sqrt((s.mueff-1)/(N+1))-1) + s.cs

	s.chi = math.Sqrt(N) * (1 - 1/(4*N) + 1/(21*N*N))
	s.cov = linalg.Identity(n)
	s.basis = linalg.Identity(n)
	s.scale = slices.Repeat([]float64{1}, n)
	return s
}

// sample gives candidate k of the current generation, inside the unit cube.
func (s *strategy) sample(seed uint64, k int) []float64 {
	key := rng.NewWide(seed, fmt.Sprintf("generation %d candidate %d", s.count+1, k))
	z := make([]float64, s.n)
	for i := range z {
		z[i] = s.scale[i] * key.Normal(uint64(i))
	}

	out := make([]float64, s.n)
	for i := range out {
		sum := 0.0
		for j := range z {
			sum += s.basis.At(i, j) * z[j]
		}
		out[i] = mirror(s.mean[i] + s.sigma*sum)
	}

	return out
}

// smallest bounds the step size and the spread of directions from below, so that the arithmetic stays sound.
const smallest = 1e-12

// update moves the distribution towards the best candidates. The points are what was tried, in the order sampled; equal
// scores keep that order.
func (s *strategy) update(points [][]float64, scores []float64) error {
	order := make([]int, len(points))
	for i := range order {
		order[i] = i
	}

	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case scores[a] < scores[b]:
			return -1
		case scores[a] > scores[b]:
			return 1
		}
		return 0
	})

	old := slices.Clone(s.mean)
	steps := make([][]float64, s.mu) // of the best, in units of sigma
	for i := range s.mean {
		s.mean[i] = 0
	}

	for r := range s.mu {
		x := points[order[r]]
		steps[r] = make([]float64, s.n)
		for i := range x {
			s.mean[i] += s.weights[r] * x[i]
			steps[r][i] = (x[i] - old[i]) / s.sigma
		}
	}

	s.count++
	s.adapt(old, steps)
	return s.decompose()
}

// adapt updates the paths, the step size and the covariance.
func (s *strategy) adapt(old []float64, steps [][]float64) {
	move := make([]float64, s.n)
	for i := range move {
		move[i] = (s.mean[i] - old[i]) / s.sigma
	}

	white := s.whiten(move)
	length := 0.0
	for i := range s.ps {
		s.ps[i] = (1-s.cs)*s.ps[i] + math.Sqrt(s.cs*(2-s.cs)*s.mueff)*white[i]
		length += s.ps[i] * s.ps[i]
	}

	length = math.Sqrt(length)
	// The path of the covariance stands still while the step size grows fast.
	stall := 0.0
	if length/math.Sqrt(1-math.Pow(1-s.cs, 2*float64(s.count))) < (1.4+2/(float64(s.n)+1))*s.chi {
		stall = 1
	}
	for i := range s.pc {
		s.pc[i] = (1-s.cc)*s.pc[i] + stall*math.Sqrt(s.cc*(2-s.cc)*s.mueff)*move[i]
	}

	keep := 1 - s.c1 - s.cmu + (1-stall)*s.c1*s.cc*(2-s.cc)
	for i := range s.n {
		for j := range i + 1 {
			x := keep*s.cov.At(i, j) + s.c1*s.pc[i]*s.pc[j]
			for r, step := range steps {
				x += s.cmu * s.weights[r] * step[i] * step[j]
			}
			s.cov.Set(i, j, x)
			s.cov.Set(j, i, x)
		}
	}

	// Beyond the size of the cube mirrored samples are no better than uniform ones.
	s.sigma = min(max(s.sigma*math.Exp(min(1, s.cs/s.damp*(length/s.chi-1))), smallest), 1)
}

// whiten multiplies by the inverse root of the covariance.
func (s *strategy) whiten(x []float64) []float64 {
	out := make([]float64, s.n)
	for j := range s.n {
		sum := 0.0
		for i := range s.n {
			sum += s.basis.At(i, j) * x[i]
		}

		sum /= s.scale[j]
		for i := range s.n {
			out[i] += s.basis.At(i, j) * sum
		}
	}

	return out
}

// decompose finds axes and lengths of the new covariance.
func (s *strategy) decompose() error {
	values, vectors, err := linalg.Solver{}.SymEigen(s.cov.Clone())
	if err != nil {
		return fmt.Errorf("covariance of generation %d: %w", s.count, err)
	}
	s.basis = vectors
	for i, v := range values {
		s.scale[i] = math.Sqrt(max(v, smallest))
	}
	return nil
}
