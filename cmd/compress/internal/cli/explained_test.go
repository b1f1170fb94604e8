package cli

import (
	"slices"
	"testing"
)

// TestDiffering: an output that does not fit is refused with the options that it was made with.
func TestDiffering(t *testing.T) {
	const then = `compress prune m --calib 'my text.txt' --join --out DIR --sparsity 0.5`
	for now, want := range map[string][]string{
		then: nil,
		`compress prune m --calib 'my text.txt' --join --out DIR --sparsity 0.6`: {"--sparsity 0.5, now 0.6"},
		`compress prune m --calib 'it'\''s.txt' --out DIR --sparsity 0.5`: {
			"--calib my text.txt, now it's.txt", "--join, now without",
		},
		`compress prune n --calib 'my text.txt' --join --out DIR --pattern 2:4 --sparsity 0.5`: {
			"no --pattern, now 2:4", "arguments compress prune m, now compress prune n",
		},
	} {
		if got := differing(then, now); !slices.Equal(got, want) {
			t.Errorf("%s: %q", now, got)
		}
	}
}
