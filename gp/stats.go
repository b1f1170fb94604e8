package gp

import (
	"math"

	"github.com/modelcompress/compress/gp/internal/lanes"
	"github.com/modelcompress/compress/internal/mmapsafe"
)

// partial is a statistic of a part of a matrix.
type partial struct {
	lo, hi  float32
	nan     bool
	moments lanes.Moments
	sum     float64   // Σx² or Σ|x|
	columns []float64 // the same by column
}

func newPartial() partial {
	return partial{lo: float32(math.Inf(1)), hi: float32(math.Inf(-1))}
}

// add takes a stretch of values into a scalar statistic.
func (a *partial) add(l *lanes.Loops, kind StatKind, x []float32) {
	switch kind {
	case StatRange:
		lo, hi, nan := l.Range(x)
		a.merge(kind, &partial{lo: lo, hi: hi, nan: nan})
	case StatMoments:
		a.moments.Merge(l.Moments(x))
	case StatNorm:
		a.sum += l.SumSq(x)
	case StatTotal:
		a.sum += l.SumAbs(x)
	}
}

// merge takes the statistic of a following part.
func (a *partial) merge(kind StatKind, b *partial) {
	switch kind {
	case StatRange:
		a.lo = min(a.lo, b.lo)
		a.hi = max(a.hi, b.hi)
		a.nan = a.nan || b.nan
	case StatMoments:
		a.moments.Merge(b.moments)
	default:
		a.sum += b.sum
		for j, v := range b.columns {
			a.columns[j] += v
		}
	}
}

// result rounds a scalar statistic to what OpAffine takes. repeat is how often the value is repeated.
func (a *partial) result(kind StatKind, repeat int) statistic {
	switch kind {
	case StatRange:
		if a.nan {
			return statistic{sub: float32(math.NaN()), div: float32(math.NaN())}
		}
		return statistic{sub: a.lo, div: a.hi - a.lo}
	case StatMoments:
		return statistic{sub: float32(a.moments.Mean), div: float32(math.Sqrt(a.moments.Dev / (a.moments.N - 1)))}
	case StatNorm:
		return statistic{div: float32(math.Sqrt(a.sum * float64(repeat)))}
	}

	return statistic{div: float32(a.sum) + 1e-8}
}

// ofVector takes a scalar statistic of a Row or Col value.
func (m *machine) ofVector(s Stat) statistic {
	x, repeat := m.vec[s.Of], 1
	if s.Over == Matrix {
		repeat = m.rows * m.cols / max(1, len(x))
	}
	a := newPartial()
	for lo := 0; lo < len(x); lo += chunk {
		a.add(m.l, s.Kind, x[lo:min(lo+chunk, len(x))])
	}
	return a.result(s.Kind, repeat)
}

// gather runs a pass over the matrix that takes the statistics of a plan. Tiles are merged from the top.
func (m *machine) gather(pl *plan) {
	t := tiles(m.rows, m.cols)
	parts := make([][]partial, t.count)

	// Statistics of rows are complete within a tile, and are written to their place at once.
	for n := range pl.stats {
		if s := m.p.Stats[pl.stats[n]]; s.Kind == StatRowAbs || s.Kind == StatRowNorm {
			m.stat[pl.stats[n]].vec = make([]float32, m.rows)
		}
	}

	mmapsafe.EachWith(m.threads, t.count, func() *worker { return m.worker(pl) }, func(w *worker, tile int) {
		parts[tile] = m.gatherTile(w, tile*t.rows, min((tile+1)*t.rows, m.rows))
	})

	for n, at := range pl.stats {
		total := newPartial()
		if s := m.p.Stats[at]; s.Kind == StatColAbs || s.Kind == StatColNorm {
			total.columns = make([]float64, m.cols)
		}
		for tile := range parts {
			total.merge(m.p.Stats[at].Kind, &parts[tile][n])
		}

		m.finish(at, &total)
	}
}

// gatherTile takes the statistics of rows [from, to).
func (m *machine) gatherTile(w *worker, from, to int) []partial {
	part := make([]partial, len(w.pl.stats))
	for n, at := range w.pl.stats {
		part[n] = newPartial()
		if s := m.p.Stats[at]; s.Kind == StatColAbs || s.Kind == StatColNorm {
			part[n].columns = make([]float64, m.cols)
		}
	}

	for i := from; i < to; i++ {
		w.row(i)
		for n, at := range w.pl.stats {
			if m.stat[at].vec != nil {
				// Sums of a row begin anew; those of the matrix and of columns go on.
				part[n].sum = 0
			}
		}

		for lo := 0; lo < m.cols; lo += chunk {
			hi := min(lo+chunk, m.cols)
			w.run(i, lo, hi, nil)
			for n, at := range w.pl.stats {
				s := m.p.Stats[at]
				part[n].addPart(m.l, s.Kind, w.val[s.Of], lo)
			}
		}

		for n, at := range w.pl.stats {
			v := m.stat[at].vec
			switch m.p.Stats[at].Kind {
			case StatRowAbs:
				v[i] = float32(part[n].sum)
			case StatRowNorm:
				v[i] = float32(math.Sqrt(part[n].sum))
			}
		}
	}

	return part
}

// addPart takes the values of a stretch of a row from column lo on.
func (a *partial) addPart(l *lanes.Loops, kind StatKind, x []float32, lo int) {
	switch kind {
	case StatRowAbs:
		a.sum += l.SumAbs(x)
	case StatRowNorm:
		a.sum += l.SumSq(x)
	case StatColAbs:
		l.AddAbs(a.columns[lo:lo+len(x)], x)
	case StatColNorm:
		l.AddSq(a.columns[lo:lo+len(x)], x)
	default:
		a.add(l, kind, x)
	}
}

// finish rounds a statistic of a matrix value.
func (m *machine) finish(at int, total *partial) {
	kind := m.p.Stats[at].Kind
	switch kind {
	case StatRowAbs, StatRowNorm: // written row by row
		return
	case StatColAbs, StatColNorm:
		v := make([]float32, m.cols)
		for j, s := range total.columns {
			if kind == StatColNorm {
				s = math.Sqrt(s)
			}
			v[j] = float32(s)
		}

		m.stat[at].vec = v
	default:
		m.stat[at] = total.result(kind, 1)
	}
}
