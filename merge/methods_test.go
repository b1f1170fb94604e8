package merge

import "testing"

// TestExamples: the example of every method is a recipe that is taken.
func TestExamples(t *testing.T) {
	for _, m := range Methods() {
		if _, err := Parse(m.Name+".yaml", []byte(m.Example())); err != nil {
			t.Errorf("%v\n%s", err, m.Example())
		}
	}
}
