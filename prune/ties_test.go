package prune

import (
	"strings"
	"testing"
)

// TestNoteTied: what goes beyond the share asked for, since scores equal the threshold, is counted in a note; a
// matrix as asked has none.
func TestNoteTied(t *testing.T) {
	for _, c := range []struct {
		zeros int64
		group Group
		want  string
	}{
		{5000, Layer, ""},
		{5001, Layer, ""}, // within .05 points
		{5110, Layer, "110 weights of 1 matrices"},
		{5110, Row, ""}, // rows lose as many as asked, whatever is tied
	} {
		r := &Report{Blocks: make([]Block, 1)}
		r.add(Tensor{Name: "w", Group: c.group, Target: .5, Zeros: c.zeros, Kept: 10_000 - c.zeros})
		r.close()

		if notes := strings.Join(r.Notes, "\n"); (c.want != "") != strings.Contains(notes, "ties go together") ||
			!strings.Contains(notes, c.want) {
			t.Errorf("%d zeros by %s: notes %q", c.zeros, c.group, notes)
		}
	}
}
