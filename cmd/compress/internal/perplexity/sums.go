package perplexity

import (
	"math"

	"github.com/modelcompress/compress/lm/corpus"
)

// Sums collects the losses of windows for a mean over tokens and its standard error over windows.
type Sums struct {
	Loss   []float64 // of each window
	Count  []float64 // predicted tokens of each window
	Tokens int64
}

// Add takes the losses of window i: one for each token after the first, 0 for those that are context only.
func (s *Sums) Add(losses []float64, w corpus.Windows, i int) {
	loss, n := 0.0, 0
	for k, v := range losses {
		if w.Labels == nil || w.Labels[i][k+1] != corpus.Ignore {
			loss, n = loss+v, n+1
		}
	}
	s.Loss, s.Count = append(s.Loss, loss), append(s.Count, float64(n))
	s.Tokens += int64(n)
}

// Means are the mean losses of the windows.
func (s *Sums) Means() []float64 {
	out := make([]float64, len(s.Loss))
	for i, loss := range s.Loss {
		out[i] = loss / max(s.Count[i], 1)
	}
	return out
}

// Mean is the loss per token. Its standard error is that of a ratio of two sums over windows, which for windows
// of equal length is the standard error of their means; nil for a single window, which tells nothing about it.
func (s *Sums) Mean() (m float64, stderr *float64) {
	loss := 0.0
	for _, v := range s.Loss {
		loss += v
	}

	n := float64(s.Tokens)
	m = loss / n
	if len(s.Loss) < 2 {
		return m, nil
	}

	square := 0.0
	for i, v := range s.Loss {
		d := v - m*s.Count[i]
		square += d * d
	}

	k := float64(len(s.Loss))
	se := math.Sqrt(square*k/(k-1)) / n
	return m, &se
}
