package spectral

import (
	"errors"
	"math"

	"github.com/modelcompress/compress/internal/linalg"
)

// Parts are n matrices of one shape that are read a part at a time, and a result that is written so. What is
// kept meanwhile has the size of the shorter side squared: the longer side is swept in panels.
type Parts struct {
	Rows, Cols, N int
	// Read fills dst with the elements of matrix j from (row, col) on.
	Read func(j, row, col int, dst linalg.Matrix) error
	// Write takes the elements of the result from (row, col) on.
	Write func(row, col int, m linalg.Matrix) error
}

// panel is how many rows or columns are read at a time.
const panel = 256

// errRatio: singular values differ too much for Gram matrices.
var errRatio = errors.New("spectral: singular values too far apart")

// sides are the shorter and the longer side.
func (p Parts) sides() (short, long int) { return min(p.Rows, p.Cols), max(p.Rows, p.Cols) }

// wide reports whether panels are columns.
func (p Parts) wide() bool { return p.Rows <= p.Cols }

// read fills dst, [short, any], with a panel of matrix j.
func (p Parts) read(j, at int, dst linalg.Matrix) error {
	if p.wide() {
		return p.Read(j, 0, at, dst)
	}
	t := linalg.New(dst.Cols, dst.Rows)
	err := p.Read(j, at, 0, t)
	dst.Copy(t.T())
	return err
}

// write gives a panel of the result away.
func (p Parts) write(at int, m linalg.Matrix) error {
	if p.wide() {
		return p.Write(0, at, m)
	}
	return p.Write(at, 0, m.T())
}

// sweep calls f for panels in order.
func (p Parts) sweep(s linalg.Solver, f func(at, n int) error) error {
	_, long := p.sides()
	for at := 0; at < long; at += panel {
		if err := f(at, min(panel, long-at)); err != nil {
			return err
		}
		if err := stopped(s); err != nil {
			return err
		}
	}

	return nil
}

// gram sums the products of panels of k rows with themselves; the lower triangle counts.
func (p Parts) gram(k int, s linalg.Solver, load func(at int, dst linalg.Matrix) error) (linalg.Matrix, error) {
	g, buf := linalg.New(k, k), linalg.New(k, panel)
	err := p.sweep(s, func(at, n int) error {
		b := buf.Sub(0, k, 0, n)
		if err := load(at, b); err != nil {
			return err
		}

		for i := 0; i < k; i += 2 * panel {
			end := min(k, i+2*panel)
			s.Mul(g.Sub(i, end, 0, end), b.Sub(i, end, 0, n), b.Sub(0, end, 0, n),
				linalg.Product{TransB: true, Accumulate: true})
		}

		return nil
	})

	return g, err
}

// inverseRoot is the inverse square root of a Gram matrix, and the mean of the singular values.
func inverseRoot(g linalg.Matrix, s linalg.Solver) (root linalg.Matrix, mean float64, err error) {
	values, w, err := s.SymEigen(g)
	if err != nil {
		return g, 0, err
	}

	k := len(values)
	if values[0]*maxRatio*maxRatio < values[k-1] || values[0] <= 0 {
		return g, 0, errRatio
	}
	for i, v := range values {
		values[i] = math.Sqrt(v)
	}

	return rooted(values, w, s), average(values), stopped(s)
}

// Isotropic is [Isotropic] of the sum of all matrices. The errors are those of Read and Write as well.
func (p Parts) Isotropic(s linalg.Solver) error {
	err := p.isotropic(s)
	if !errors.Is(err, errRatio) {
		return err
	}

	total, one := linalg.New(p.Rows, p.Cols), linalg.New(p.Rows, p.Cols)
	for j := range p.N {
		if err := p.Read(j, 0, 0, one); err != nil {
			return err
		}
		for i, v := range one.Data {
			total.Data[i] += v
		}
	}

	out, err := Isotropic(total, s)
	if err != nil {
		return err
	}

	return p.Write(0, 0, out)
}

func (p Parts) isotropic(s linalg.Solver) error {
	k, _ := p.sides()
	one := linalg.New(k, panel)
	sum := func(at int, dst linalg.Matrix) error {
		dst.Zero()

		for j := range p.N {
			b := one.Sub(0, k, 0, dst.Cols)
			if err := p.read(j, at, b); err != nil {
				return err
			}

			for i := range k {
				row := dst.Row(i)
				for c, v := range b.Row(i) {
					row[c] += v
				}
			}
		}

		return nil
	}

	g, err := p.gram(k, s, sum)
	if err != nil {
		return err
	}

	root, mean, err := inverseRoot(g, s)
	if err != nil {
		return err
	}

	root.Scale(mean)
	return p.multiplied(root, k, sum, s)
}

// multiplied writes m times what load gives, panel by panel of k rows.
func (p Parts) multiplied(m linalg.Matrix, k int, load func(at int, dst linalg.Matrix) error, s linalg.Solver) error {
	in, out := linalg.New(k, panel), linalg.New(m.Rows, panel)
	return p.sweep(s, func(at, n int) error {
		b, o := in.Sub(0, k, 0, n), out.Sub(0, m.Rows, 0, n)
		if err := load(at, b); err != nil {
			return err
		}
		s.Mul(o, m, b, linalg.Product{})
		return p.write(at, o)
	})
}

// TaskSingular is [TaskSingular] of the matrices. The errors are those of Read and Write as well.
func (p Parts) TaskSingular(s linalg.Solver) error {
	err := p.taskSingular(s)
	if !errors.Is(err, errRatio) {
		return err
	}

	var failed error
	out, err := TaskSingular(p.Rows, p.Cols, p.N, func(j int, dst linalg.Matrix) {
		failed = errors.Join(failed,
			p.Read(j, 0, 0, dst))
	}, s)

	if err = errors.Join(failed, err); err != nil {
		return err
	}

	return p.Write(0, 0, out)
}

func (p Parts) taskSingular(s linalg.Solver) error {
	k, _ := p.sides()
	keep := max(1, k/p.N)
	all := keep * p.N

	bases, scales := linalg.New(k, all), make([]float64, 0, all) // of the shorter side
	for j := range p.N {
		values, err := p.basis(j, bases.Sub(0, k, j*keep, (j+1)*keep), s)
		if err != nil {
			return err
		}
		scales = append(scales, values...)
	}

	one := linalg.New(k, panel)
	others := func(at int, dst linalg.Matrix) error { // singular vectors of the longer side, as rows
		for j := range p.N {
			b, o := one.Sub(0, k, 0, dst.Cols), dst.Sub(j*keep, (j+1)*keep, 0, dst.Cols)
			if err := p.read(j, at, b); err != nil {
				return err
			}

			s.Mul(o, bases.Sub(0, k, j*keep, (j+1)*keep), b, linalg.Product{TransA: true})
			for i := range keep {
				o.Sub(i, i+1, 0, o.Cols).Scale(1 / scales[j*keep+i])
			}
		}

		return nil
	}

	g, err := p.gram(all, s, others)
	if err != nil {
		return err
	}

	root, _, err := inverseRoot(g, s)
	if err != nil {
		return err
	}

	left, _, err := polar(bases, s)
	if err != nil {
		return err
	}

	for r := range left.Rows {
		row := left.Row(r)
		for c := range row {
			row[c] *= scales[c]
		}
	}

	m := linalg.New(k, all)
	s.Mul(m, left, root, linalg.Product{})
	return p.multiplied(m, all, others, s)
}

// basis puts the first singular vectors of matrix j, of the shorter side, into u, and returns the singular values.
func (p Parts) basis(j int, u linalg.Matrix, s linalg.Solver) ([]float64, error) {
	k, keep := u.Rows, u.Cols
	g, err := p.gram(k, s, func(at int, dst linalg.Matrix) error { return p.read(j, at, dst) })
	if err != nil {
		return nil, err
	}

	squares, w, err := s.SymEigen(g)
	if err != nil {
		return nil, err
	}

	if least := squares[k-keep]; least <= 0 || least*maxRatio*maxRatio < squares[k-1] {
		return nil, errRatio
	}

	values := make([]float64, keep)
	for c := range keep {
		values[c] = math.Sqrt(squares[k-1-c])
		for r := range k {
			u.Set(r, c, w.At(r, k-1-c))
		}
	}

	return values, nil
}
