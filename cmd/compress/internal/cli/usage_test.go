package cli

import "testing"

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 10, ""},
		{"one two three", 7, "one two\nthree"},
		{"prune --method tree", 9, "prune\n--method\ntree"},
		{"first line\nsecond", 20, "first line\nsecond"},
		{"a wordthatislongerthantheline b", 8, "a\nwordthatislongerthantheline\nb"},
		{"äöü äöü", 7, "äöü äöü"},
	} {
		if got := wrap(c.text, c.width); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.text, c.width, got, c.want)
		}
	}
}
