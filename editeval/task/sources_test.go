package task

import (
	"path"
	"strings"
	"testing"
)

// TestOrigins: every data file of every shipped task has a source, and would be found under the name that it gets.
func TestOrigins(t *testing.T) {
	lib, err := shipped()
	if err != nil {
		t.Fatal(err)
	}

	seen := 0
	for name := range lib.Tasks {
		for _, pattern := range describe(lib, name).Data {
			o, ok := OriginOf(pattern)
			if !ok {
				t.Errorf("%s: nobody knows where %s comes from", name, pattern)
				continue
			}
			seen++
			if fits, err := path.Match(pattern, o.As); !fits || err != nil {
				t.Errorf("%s: %s is not found as %s", name, o.As, pattern)
			}
			if (o.Dataset == "") == (o.URL == "") || strings.Contains(o.As+o.File+o.URL+o.Inside, "$") {
				t.Errorf("%s: %+v", name, o)
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d files", seen)
	}

	list, err := Origins([]string{"arc_easy", "arc_easy"})
	if err != nil || len(list) != 3 {
		t.Errorf("%v, %v", list, err)
	}
}
