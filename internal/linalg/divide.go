package linalg

import (
	"cmp"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
)

// divideBase is the size up to which tridiagonal matrices are solved by QL steps.
const divideBase = 32

// divide returns the eigenvectors of a tridiagonal matrix as rows, in the ascending order of the eigenvalues,
// which replace d; e is spoilt. It is Cuppen's divide and conquer, with deflation as in LAPACK, and vectors
// recomputed from the roots as Gu and Eisenstat proposed (SIAM J. Matrix Anal. Appl. 15, 1994), which keeps
// them orthogonal.
func (s Solver) divide(d, e []float64) (Matrix, error) {
	n := len(d)
	z := newSpaced(n, n)
	return z, s.divideInto(z, d, e)
}

// divideInto writes the eigenvectors to z, which is zero.
func (s Solver) divideInto(z Matrix, d, e []float64) error {
	n := len(d)
	if n <= divideBase {
		for i := range n {
			z.Set(i, i, 1)
		}
		if err := implicitQL(d, e, z); err != nil {
			return err
		}

		sortRows(z, d)
		return nil
	}

	// Without the element between the halves, rho, the matrix falls into two; |rho| taken off both neighbours on the
	// diagonal makes what is missing a matrix of rank one.
	h := n / 2
	rho := e[h-1]
	d[h-1] -= math.Abs(rho)
	d[h] -= math.Abs(rho)
	if err := s.divideInto(z.Sub(0, h, 0, h), d[:h], e[:h-1]); err != nil {
		return err
	}
	if err := s.divideInto(z.Sub(h, n, h, n), d[h:], e[h:]); err != nil {
		return err
	}
	if err := s.stopped(); err != nil {
		return err
	}

	return s.conquer(z, d, rho, h)
}

func sortValues(d []float64) { slices.SortStableFunc(d, cmp.Compare[float64]) }

// sortRows brings values into ascending order, and the rows of z along.
func sortRows(z Matrix, d []float64) {
	order := ascending(d)
	values, rows := slices.Clone(d), z.Clone()
	for i, from := range order {
		d[i] = values[from]
		copy(z.Row(i), rows.Row(from))
	}
}

// ascending lists the positions of d in the order of their values.
func ascending(d []float64) []int {
	order := make([]int, len(d))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d[a], d[b]) })
	return order
}

// rankOne is the eigenproblem of diag(d) + rho·z·zᵀ, with d ascending, |z| = 1, rho > 0 and no small z.
type rankOne struct {
	d, z []float64
	rho  float64
}

// conquer joins two halves: with the rows of q their eigenvectors, the whole is qᵀ·(diag(d) + rho·z·zᵀ)·q.
func (s Solver) conquer(q Matrix, d []float64, rho float64, h int) error {
	// The vector of rank one is (0 … 1, ±1 … 0)/√2 at the joint; in the basis of the halves' eigenvectors these are two
	// columns of q.
	n := len(d)
	z := make([]float64, n)
	for i := range n {
		z[i] = q.At(i, h-1) * math.Sqrt2 / 2
		if i >= h {
			z[i] = math.Copysign(1, rho) * q.At(i, h) * math.Sqrt2 / 2
		}
	}

	p := rankOne{rho: 2 * math.Abs(rho)}
	kept, rest := p.deflate(q, d, z)
	k := len(kept)
	if k > 0 {
		u := newSpaced(k, k)
		values, err := s.secular(p, u)
		if err != nil {
			return err
		}

		from := newSpaced(k, n)
		for i, row := range kept {
			copy(from.Row(i), q.Row(row))
		}

		joined := newSpaced(k, n)
		s.Mul(joined, u, from, Product{})

		for i, row := range kept {
			copy(q.Row(row), joined.Row(i))
			d[row] = values[i]
		}
	}

	if k+len(rest) != n {
		return ErrNoConvergence
	}

	sortRows(q, d)
	return nil
}

// deflate sets aside the rows that the update does not move, or that a rotation makes so, and puts the others
// into p, in ascending order. It returns the rows of both kinds.
func (p *rankOne) deflate(q Matrix, d, z []float64) (kept, rest []int) {
	top, most := 0.0, 0.0
	for i := range d {
		top, most = max(top, math.Abs(d[i])), max(most, math.Abs(z[i]))
	}

	small := 16 * epsilon * max(top, most)
	last := -1 // row that is kept unless it deflates against the next
	for _, j := range ascending(d) {
		if p.rho*math.Abs(z[j]) <= small {
			rest = append(rest, j)
			continue
		}

		if last >= 0 {
			r := math.Hypot(z[j], z[last])
			c, s := z[j]/r, -z[last]/r
			if math.Abs((d[j]-d[last])*c*s) <= small {
				z[j], z[last] = r, 0
				kernel.rotate(q.Row(last), q.Row(j), c, s)
				dl, dj := d[last], d[j]
				d[last], d[j] = dl*c*c+dj*s*s, dl*s*s+dj*c*c
				rest = append(rest, last)
				last = j
				continue
			}

			kept = append(kept, last)
		}

		last = j
	}

	if last >= 0 {
		kept = append(kept, last)
	}
	for _, j := range kept {
		p.d, p.z = append(p.d, d[j]), append(p.z, z[j])
	}

	return kept, rest
}

// secular returns the eigenvalues of p and writes the eigenvectors to the rows of u.
func (s Solver) secular(p rankOne, u Matrix) ([]float64, error) {
	k := len(p.d)
	values, failed := make([]float64, k), make([]bool, k)
	workers := s.workersFor(k, k, 16)
	const group = 16
	each := func(f func(i int)) {
		mmapsafe.Each(workers, pieces(k, group), func(g int) {
			for i := g * group; i < min(k, (g+1)*group); i++ {
				f(i)
			}
		})
	}

	each(func(i int) {
		origin, mu, ok := p.root(i)
		failed[i] = !ok
		values[i] = p.d[origin] + mu
		for j, row := 0, u.Row(i); j < k; j++ { // d_j - λ_i, without cancellation
			row[j] = (p.d[j] - p.d[origin]) - mu
		}
	})

	if slices.Contains(failed, true) {
		return nil, ErrNoConvergence
	}

	z := make([]float64, k)
	each(func(i int) { z[i] = p.weight(u, i) })
	each(func(i int) {
		row := u.Row(i)
		for j := range row {
			row[j] = z[j] / row[j]
		}
		norm := 1 / math.Sqrt(kernel.dot(row, row))
		for j := range row {
			row[j] *= norm
		}
	})

	return values, nil
}

// weight is the element i of the vector for which the roots found are exact, up to a common factor; rows of u
// hold d - λ.
func (p rankOne) weight(u Matrix, i int) float64 {
	w := -u.At(i, i)
	for j := range p.d {
		if j != i {
			w *= u.At(j, i) / (p.d[i] - p.d[j])
		}
	}
	return math.Copysign(math.Sqrt(math.Abs(w)), p.z[i])
}

// root finds eigenvalue i as d[origin] + mu: the zero of 1/rho + Σ z²/(d - λ) between d[i] and d[i+1], or above
// the last. Steps are those of a rational function with poles at both ends that has the value and the slopes of
// the two parts of the sum (R.-C. Li's middle way, LAPACK working note 89); a step that leaves the bracket, or
// does not shrink it, is replaced by a halving.
func (p rankOne) root(i int) (origin int, mu float64, ok bool) {
	k := len(p.d)
	if k == 1 {
		return 0, p.rho * p.z[0] * p.z[0], true
	}

	left, width := i, 0.0 // the poles that steps use are left and left+1
	if i == k-1 {
		left = k - 2
		width = p.rho * (1 + 8*epsilon*float64(k))
	} else {
		width = p.d[i+1] - p.d[i]
	}

	origin = i
	lo := 0.0
	hi := width
	if at := p.sum(i, width/2, left); i < k-1 && at.value < 0 {
		origin = i + 1
		lo = -width / 2
		hi = 0
	} else if i < k-1 {
		hi = width / 2
	}

	mu = (lo + hi) / 2
	for range 120 {
		at := p.sum(origin, mu, left)
		if math.Abs(at.value) <= float64(k)*epsilon*at.size {
			return origin, mu, true
		}

		if at.value < 0 {
			lo = mu
		} else {
			hi = mu
		}

		next := mu + at.step(i == k-1)
		if !(next > lo && next < hi) {
			next = middle(lo, hi)
		}
		if next == mu || !(next > lo && next < hi) {
			return origin, mu, true
		}

		mu = next
	}

	return origin, mu, hi-lo <= 1e-12*math.Max(math.Abs(lo), math.Abs(hi))
}

// middle halves a bracket: by ratio when its ends are far apart, since a root may be many orders of magnitude
// nearer to a pole.
func middle(lo, hi float64) float64 {
	sign := 1.0
	if hi <= 0 {
		lo, hi, sign = -hi, -lo, -1
	}
	if lo == 0 {
		return sign * hi / 1024
	}
	if hi > 4*lo {
		return sign * math.Sqrt(lo) * math.Sqrt(hi)
	}

	return sign * (lo + hi) / 2
}

// secularSum is the function at one point, with what a step needs.
type secularSum struct {
	value, size     float64 // sum, and sum of the magnitudes
	psi, phi        float64 // slopes of the parts up to and after the left pole
	toLeft, toRight float64 // from the point to the two poles
}

func (p rankOne) sum(origin int, mu float64, left int) secularSum {
	s := secularSum{value: 1 / p.rho, size: 1 / p.rho}
	base := p.d[origin]
	var below, above, slope float64
	for j := 0; j <= left; j++ {
		t := p.z[j] / ((p.d[j] - base) - mu)
		below += t * p.z[j]
		slope += t * t
	}

	s.psi, slope = slope, 0
	for j := len(p.d) - 1; j > left; j-- {
		t := p.z[j] / ((p.d[j] - base) - mu)
		above += t * p.z[j]
		slope += t * t
	}

	s.phi = slope
	s.value += below + above
	s.size += math.Abs(below) + math.Abs(above)
	s.toLeft, s.toRight = (p.d[left]-base)-mu, (p.d[left+1]-base)-mu

	return s
}

// step is the zero of the rational function, as a distance. last says that the root lies above both poles.
func (s secularSum) step(last bool) float64 {
	c := s.value - s.toLeft*s.psi - s.toRight*s.phi
	a := (s.toLeft+s.toRight)*s.value - s.toLeft*s.toRight*(s.psi+s.phi)
	b := s.toLeft * s.toRight * s.value
	root := math.Sqrt(math.Abs(a*a - 4*b*c))
	if last {
		if a >= 0 {
			return (a + root) / (2 * c)
		}
		return 2 * b / (a - root)
	}

	if a <= 0 {
		return (a - root) / (2 * c)
	}

	return 2 * b / (a + root)
}
