package strictyaml

import "testing"

// TestSuggest: the nearest word, or all of them, or nothing where there are none.
func TestSuggest(t *testing.T) {
	for _, c := range []struct {
		known []string
		want  string
	}{{[]string{"model", "data"}, `; did you mean "model"?`}, {[]string{"b", "a"}, "; known: a, b"}, {nil, ""}} {
		if got := Suggest("modle", c.known); got != c.want {
			t.Errorf("%v: %q", c.known, got)
		}
	}
}
