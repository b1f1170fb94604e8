package layer

import (
	"slices"
	"testing"

	"github.com/modelcompress/compress/lm/arch"
)

// TestChoice: offsets move the choice and not the scores; of groups the best by the sum of their two best experts
// (sigmoid) or by their best (softmax) stay in the race; of equal ones the lower number.
func TestChoice(t *testing.T) {
	sigmoid, softmax := &arch.Arch{Router: arch.Sigmoid}, &arch.Arch{}
	scores := []float32{0.9, 0.1, 0.6, 0.5, 0.2, 0.3, 0.4, 0.4}
	for name, c := range map[string]struct {
		config arch.Config
		offset []float32
		want   []int
	}{
		"plain":          {arch.Config{Arch: softmax, TopK: 3, Groups: 1}, nil, []int{0, 2, 3}},
		"ties":           {arch.Config{Arch: softmax, TopK: 5, Groups: 1}, nil, []int{0, 2, 3, 6, 7}},
		"offset":         {arch.Config{Arch: sigmoid, TopK: 2, Groups: 1}, []float32{1: 1, 7: 0}, []int{1, 0}},
		"best of groups": {arch.Config{Arch: softmax, TopK: 2, Groups: 4, TopGroups: 1}, nil, []int{0, 1}},
		"two best":       {arch.Config{Arch: sigmoid, TopK: 2, Groups: 4, TopGroups: 1}, nil, []int{2, 3}},
		"two groups":     {arch.Config{Arch: sigmoid, TopK: 3, Groups: 4, TopGroups: 2}, nil, []int{0, 2, 3}},
		"offset of a group": {
			arch.Config{Arch: sigmoid, TopK: 2, Groups: 4, TopGroups: 1}, []float32{7: 5}, []int{7, 6},
		},
	} {
		row := slices.Clone(scores)
		choice := &choice{c: &c.config, where: Routing{TopK: c.config.TopK}, offset: c.offset}
		for range 2 { // what is kept between tokens does not matter
			if got := choice.of(row); !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		if !slices.Equal(row, scores) {
			t.Errorf("%s: the scores are %v", name, row)
		}
	}
}
