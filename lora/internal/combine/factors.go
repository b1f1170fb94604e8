package combine

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// cat puts factors side by side: A [Σr, in] holds w·s·A, B [out, Σr] the Bs.
func cat(list []part) (a, b linalg.Matrix) {
	rank := 0
	for _, p := range list {
		rank += p.a.Rows
	}

	a, b = linalg.New(rank, list[0].a.Cols), linalg.New(list[0].b.Rows, rank)
	at := 0
	for _, p := range list {
		to := a.Sub(at, at+p.a.Rows, 0, a.Cols)
		to.Copy(p.a)
		to.Scale(p.weight * p.scale)
		b.Sub(0, b.Rows, at, at+p.a.Rows).Copy(p.b)
		at += p.a.Rows
	}

	return a, b
}

// factors combines the As among themselves and the Bs likewise.
func (c *combiner) factors(m adapter.Module, list []part) (a, b linalg.Matrix, err error) {
	var as, bs []linalg.Matrix
	var wa, wb []float64
	for _, p := range list {
		if p.a.Rows != list[0].a.Rows {
			return a, b, fmt.Errorf("%w: %s has %d here, %s has %d", ErrRanks, list[0].name, list[0].a.Rows, p.name,
				p.a.Rows)
		}

		f := p.weight * p.scale
		root := math.Sqrt(math.Abs(f))
		as, bs = append(as, p.a), append(bs, p.b)
		wa, wb = append(wa, math.Copysign(root, f)), append(wb, root)
	}

	a = c.mix(m.Path+".A", as, wa)
	return a, c.mix(m.Path+".B", bs, wb), nil
}

// mix prunes tensors of one shape and adds them up with weights. The tensors are spoilt.
func (c *combiner) mix(name string, list []linalg.Matrix, weights []float64) linalg.Matrix {
	for i, x := range list {
		c.prune(fmt.Sprintf("%s.%d", name, i), x)
	}

	out := linalg.New(list[0].Rows, list[0].Cols)
	values := make([]float64, len(list))
	for i := range out.Rows {
		for j := range out.Cols {
			for k, x := range list {
				values[k] = x.At(i, j)
			}

			if c.method.elect {
				out.Set(i, j, elected(values, weights, c.Sign))
			} else {
				out.Set(i, j, sum(values, weights))
			}
		}
	}

	return out
}

func sum(values, weights []float64) float64 {
	total := 0.0
	for i, v := range values {
		total += v * weights[i]
	}
	return total
}

// elected is the mean of the weighted values that have the elected sign; zeros have none.
func elected(values, weights []float64, how Sign) float64 {
	vote := 0.0
	for _, v := range values {
		if how == Frequency {
			v = sign(v)
		}
		vote += v
	}

	winner := 1.0
	if vote < 0 {
		winner = -1
	}

	total, n := 0.0, 0
	for i, v := range values {
		if sign(v) == winner {
			total += v * weights[i]
			n++
		}
	}

	return total / float64(max(n, 1))
}

func sign(v float64) float64 { return float64(cmp.Compare(v, 0)) }

// prune thins a tensor out in place, as the method does.
func (c *combiner) prune(name string, x linalg.Matrix) {
	if c.Density >= 1 {
		return
	}

	switch c.method.prune {
	case "magnitude":
		keepLargest(x, int(c.Density*float64(x.Rows*x.Cols)))
	case "random":
		key := rng.New(c.Seed, name)
		for i := range x.Rows {
			for j := range x.Cols {
				if key.Float(uint64(i*x.Cols+j)) < c.Density {
					x.Set(i, j, x.At(i, j)/c.Density)
				} else {
					x.Set(i, j, 0)
				}
			}
		}
	}
}

// keepLargest clears all but the n largest values by magnitude; of equal ones the first stay.
func keepLargest(x linalg.Matrix, n int) {
	sizes := make([]float64, 0, x.Rows*x.Cols)
	for i := range x.Rows {
		for _, v := range x.Row(i) {
			sizes = append(sizes, math.Abs(v))
		}
	}

	slices.Sort(sizes)
	least := math.Inf(1)
	if n > 0 {
		least = sizes[len(sizes)-n]
	}

	above := len(sizes) - n // how many lie below, among them some that equal the least
	equal := n
	if n > 0 {
		first, _ := slices.BinarySearch(sizes[above:], math.Nextafter(least, math.Inf(1)))
		equal = first
	}

	for i := range x.Rows {
		row := x.Row(i)
		for j, v := range row {
			switch size := math.Abs(v); {
			case size > least:
			case size == least && equal > 0:
				equal--
			default:
				row[j] = 0
			}
		}
	}
}
