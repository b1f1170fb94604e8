package main

import (
	"math"

	"github.com/modelcompress/compress/lm/corpus"
)

// sums collects the losses of windows for a mean over tokens and its standard error over windows.
type sums struct {
	loss   []float64 // of each window
	count  []float64 // predicted tokens of each window
	tokens int64
}

// add takes the losses of window i: one for each token after the first, 0 for those that are context only.
func (s *sums) add(losses []float64, w corpus.Windows, i int) {
	loss, n := 0.0, 0
	for k, v := range losses {
		if w.Labels == nil || w.Labels[i][k+1] != corpus.Ignore {
			loss, n = loss+v, n+1
		}
	}
	s.loss, s.count = append(s.loss, loss), append(s.count, float64(n))
	s.tokens += int64(n)
}

// mean is the loss per token. Its standard error is that of a ratio of two sums over windows, which for windows of equal
// length is the standard error of their means; nil for a single window, which tells nothing about it.
func (s *sums) mean() (m float64, stderr *float64) {
	loss := 0.0
	for _, v := range s.loss {
		loss += v
	}
	n := float64(s.tokens)
	m = loss / n
	if len(s.loss) < 2 {
		return m, nil
	}
	square := 0.0
	for i, v := range s.loss {
		d := v - m*s.count[i]
		square += d * d
	}
	k := float64(len(s.loss))
	se := math.Sqrt(square*k/(k-1)) / n
	return m, &se
}
