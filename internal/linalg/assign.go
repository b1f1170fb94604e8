package linalg

import "math"

// MaxAssignment returns for every row of a square matrix a column of its own, so that the sum of the values
// there is as large as it can be, and that sum: the linear sum assignment problem, by shortest augmenting paths
// (Jonker and Volgenant, Computing 38, 1987) from a start that reduces rows and columns. Among equals the
// choice is arbitrary but always the same. The error wraps [ErrNonFinite].
func MaxAssignment(value Matrix) (columns []int, sum float64, err error) {
	value.checkSquare()
	if err := value.CheckFinite(); err != nil {
		return nil, 0, err
	}

	n := value.Rows
	a := &assignment{
		cost: New(n, n), u: make([]float64, n), v: make([]float64, n), col: make([]int, n),
		row: make([]int, n),
	}

	for i := range n {
		for j, x := range value.Row(i) {
			a.cost.Data[i*n+j] = -x // the algorithm finds the smallest sum
		}
	}

	a.start()
	p := newPath(n)
	for i := range n {
		if a.col[i] < 0 {
			a.augment(i, p)
		}
	}

	for i, j := range a.col {
		sum += value.At(i, j)
	}

	return a.col, sum, nil
}

// assignment is a partial assignment of least cost, with prices u and v: cost - u - v is never negative, and 0
// where assigned.
type assignment struct {
	cost     Matrix
	u, v     []float64
	col, row []int // of every row and column; -1 if none
}

// start prices columns and rows by what is least in them and assigns what is then free of charge.
func (a *assignment) start() {
	n := a.cost.Rows
	for j := range n {
		a.v[j] = math.Inf(1)
		a.row[j] = -1
		a.col[j] = -1
	}

	for i := range n {
		for j, c := range a.cost.Row(i) {
			a.v[j] = min(a.v[j], c)
		}
	}

	for i := range n {
		least, at := math.Inf(1), 0
		for j, c := range a.cost.Row(i) { // of equal ones one that is free
			if r := c - a.v[j]; r < least || r == least && a.row[at] >= 0 && a.row[j] < 0 {
				least, at = r, j
			}
		}

		a.u[i] = least
		if a.row[at] < 0 {
			a.col[i], a.row[at] = at, i
		}
	}
}

// path is the scratch memory of a search.
type path struct {
	dist []float64
	from []int
	done []bool
	open []int // columns that are not done
	seen []int // rows reached
}

func newPath(n int) *path {
	return &path{make([]float64, n), make([]int, n), make([]bool, n), make([]int, n), make([]int, 0, n)}
}

// augment gives row start a column by the cheapest chain of reassignments: Dijkstra's shortest paths from the row over
// reduced costs, which the prices keep from being negative, to the first column that is free.
func (a *assignment) augment(start int, p *path) {
	n := a.cost.Rows
	for j := range n {
		p.dist[j] = math.Inf(1)
		p.from[j] = -1
		p.done[j] = false
		p.open[j] = j
	}

	open := p.open
	p.seen = p.seen[:0]

	i := start
	least := 0.0
	sink := -1
	for sink < 0 {
		p.seen = append(p.seen, i)
		row := a.cost.Row(i)

		best := math.Inf(1)
		at := -1
		base := least - a.u[i]
		for q, j := range open {
			if d := base + row[j] - a.v[j]; d < p.dist[j] {
				p.dist[j], p.from[j] = d, i
			}
			if d := p.dist[j]; d < best || d == best && a.row[j] < 0 && a.row[open[at]] >= 0 {
				best, at = d, q
			}
		}

		least = best
		j := open[at]
		p.done[j] = true
		open[at] = open[len(open)-1]
		open = open[:len(open)-1]

		if a.row[j] < 0 {
			sink = j
		} else {
			i = a.row[j]
		}
	}

	a.reprice(start, least, p)

	// Back along the path, each row taking the column by which the next one was reached.
	for j := sink; ; {
		i := p.from[j]
		a.row[j] = i
		a.col[i], j = j, a.col[i]
		if i == start {
			return
		}
	}
}

// reprice keeps the prices valid after a search that has gone as far as least.
func (a *assignment) reprice(start int, least float64, p *path) {
	for _, i := range p.seen {
		if i == start {
			a.u[i] += least
		} else {
			a.u[i] += least - p.dist[a.col[i]]
		}
	}

	for j, done := range p.done {
		if done {
			a.v[j] -= least - p.dist[j]
		}
	}
}
