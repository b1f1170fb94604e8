package actstats

import (
	"fmt"
	"math"

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

// spread is some of the tokens that reach an input: every so many of them, in the mean. Which ones is said by the
// multiples of the golden ratio, whose fractions are spread evenly: by counting alone the first token of each sequence,
// which is not like others, would always be among them, or never.
type spread struct {
	limit int // about how many tokens are kept at least, where there are as many; there may be twice as many
	every uint32
	seen  uint32
	kept  []uint32 // the numbers of those in x
	x     []float32
}

// turn reports whether a token is one of every so many.
func turn(token, every uint32) bool {
	const golden = 0x9e3779b9 // 2³² over the golden ratio
	return token*golden <= math.MaxUint32/every
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
		if turn(k.seen, k.every) {
			k.x = append(k.x, x.RowF32(i)...)
			k.kept = append(k.kept, k.seen)
			if len(k.x) == 2*k.limit*x.Cols {
				k.thin(x.Cols)
			}
		}
		k.seen++
	}
}

// thin drops every other token, in the mean.
func (k *spread) thin(cols int) {
	k.every *= 2
	n := 0
	for i, token := range k.kept {
		if turn(token, k.every) {
			copy(k.x[n*cols:(n+1)*cols], k.x[i*cols:])
			k.kept[n] = token
			n++
		}
	}
	k.x = k.x[:n*cols]
	k.kept = k.kept[:n]
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
