package perplexity

import (
	"math"
	"testing"

	"github.com/modelcompress/compress/lm/corpus"
)

func TestSumsKnowTheirError(t *testing.T) {
	s := &Sums{}
	w := corpus.Windows{}
	for i, row := range [][]float64{{1, 2, 3}, {2, 3, 4}, {3, 4, 5}} {
		s.Add(row, w, i)
	}
	// Window means 2, 3, 4: mean 3, standard deviation 1, so the error of the mean is 1/√3.
	if m, se := s.Mean(); math.Abs(m-3) > 1e-12 || se == nil || math.Abs(*se-1/math.Sqrt(3)) > 1e-12 || s.Tokens != 9 {
		t.Errorf("mean %v ± %v over %d tokens", m, se, s.Tokens)
	}
	if got := s.Means(); len(got) != 3 || got[0] != 2 || got[1] != 3 || got[2] != 4 {
		t.Errorf("means of the windows: %v", got)
	}

	s = &Sums{}
	s.Add([]float64{5, 7}, corpus.Windows{Labels: [][]int32{{1, corpus.Ignore, 2}}}, 0)
	if m, se := s.Mean(); m != 7 || se != nil || s.Tokens != 1 {
		t.Errorf("mean %v over %d tokens: a token that is context only was counted", m, s.Tokens)
	}
}
