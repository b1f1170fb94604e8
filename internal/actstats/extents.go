package actstats

import (
	"fmt"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// extents are sums and bounds of inputs, over all tokens.
type extents struct {
	magnitude []float64 // Σ |x|
	low, high []float32
}

func newExtents(n int) *extents {
	return &extents{magnitude: make([]float64, n), low: make([]float32, n), high: make([]float32, n)}
}

// spread is some of the tokens that reach an input: every so many of them.
type spread struct {
	limit int // tokens that are kept at least, where there are as many; there may be twice as many
	every int
	seen  int
	x     []float32
}

// The tokens that Spread keeps: fewer of each of a mixture's many experts.
const (
	spreadTokens       = 512
	spreadExpertTokens = 128
)

func (s *Stats) spreadLimit(a *Sum) int {
	if a.expert {
		return spreadExpertTokens
	}
	return spreadTokens
}

// addOnHost takes the rows of x into what is computed in host memory.
func (s *Stats) addOnHost(a *Sum, x kernels.Mat) error {
	if !s.dev.Info().Host {
		var err error
		if x, err = hostmat.F32(s.dev, x); err != nil {
			return err
		}
	} else if err := s.dev.Ops().Sync(); err != nil {
		return err
	}

	if a.spread != nil {
		a.spread.add(x)
	}
	if a.extents == nil {
		return nil
	}

	// Threads share the columns, so that each sum is in the order of the tokens.
	first := a.tokens == int64(x.Rows)
	mmapsafe.Split(s.dev.Info().Threads, a.in, func(lo, hi int) { a.extents.add(x, lo, hi, first) })
	return nil
}

// add takes some columns of x; first says that nothing came before.
func (e *extents) add(x kernels.Mat, lo, hi int, first bool) {
	sum := e.magnitude[lo:hi]
	low := e.low[lo:hi]
	high := e.high[lo:hi]
	for i := range x.Rows {
		row := x.RowF32(i)[lo:hi]
		if first && i == 0 {
			copy(low, row)
			copy(high, row)
		}
		for j, v := range row {
			sum[j] += float64(max(v, -v))
			low[j] = min(low[j], v)
			high[j] = max(high[j], v)
		}
	}
}

// add takes the tokens whose turn it is.
func (k *spread) add(x kernels.Mat) {
	for i := range x.Rows {
		if k.seen%k.every == 0 {
			k.x = append(k.x, x.RowF32(i)...)
			if len(k.x) == 2*k.limit*x.Cols {
				k.thin(x.Cols)
			}
		}
		k.seen++
	}
}

// thin drops every other token.
func (k *spread) thin(cols int) {
	for i := range k.limit {
		copy(k.x[i*cols:(i+1)*cols], k.x[2*i*cols:])
	}
	k.x = k.x[:k.limit*cols]
	k.every *= 2
}

// ExtentsOf gives, for the inputs of a matrix, Σ|x| over all tokens that reach it, and the least and the largest x;
// nil where there are none. A value that is not finite is an error.
func (s *Stats) ExtentsOf(l lm.Linear) (magnitude []float64, low, high []float32, err error) {
	a := s.sums[l.Name]
	if a.tokens == 0 {
		return nil, nil, nil, nil
	}
	for j, v := range a.extents.magnitude {
		if v-v != 0 {
			return nil, nil, nil, fmt.Errorf("tensor %q: input %d: %w: the activations that reach it overflow or are "+
				"NaN", l.Name, j, hostmat.ErrNonFinite)
		}
	}
	return a.extents.magnitude, a.extents.low, a.extents.high, nil
}

// SpreadOf gives the tokens of [Spread] that reach a matrix, F32 [tokens, in] in host memory; the zero Mat if there are
// none.
func (s *Stats) SpreadOf(name string) kernels.Mat {
	a := s.sums[name]
	if a.spread == nil || len(a.spread.x) == 0 {
		return kernels.Mat{}
	}
	return kernels.MatOf(kernels.WrapF32(a.spread.x), len(a.spread.x)/a.in, a.in)
}
