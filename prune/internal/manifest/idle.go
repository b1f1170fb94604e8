package manifest

import (
	"fmt"
	"strings"
)

// mostNames of matrices are in a note.
const mostNames = 5

// Idle is the note about matrices whose scores are all 0 because their inputs or gradients are; none without such.
func Idle(names []string) []string {
	if len(names) == 0 {
		return nil
	}
	list := strings.Join(names[:min(mostNames, len(names))], ", ")
	if more := len(names) - mostNames; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return []string{fmt.Sprintf("nothing ranks the weights of %d matrices, whose inputs or gradients were 0 "+
		"throughout, so that it makes no difference which of them go; they went as ties do: %s", len(names), list)}
}

// Ratio is a share; 0 of nothing.
func Ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
