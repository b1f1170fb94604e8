package openmodel

import (
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/merge/mediate"
)

// TestPolicies: what follows auto changes what it names and nothing else, and a fault is a wrong use that says which
// part is wrong.
func TestPolicies(t *testing.T) {
	var plain mediate.Policy
	for text, change := range map[string]func(*mediate.Policy){
		"":                       func(*mediate.Policy) {},
		"most=2":                 func(p *mediate.Policy) { p.Most = 2 },
		"cover=0.9,most=1":       func(p *mediate.Policy) { p.Cover, p.Most = .9, 1 },
		"certain=0.5":            func(p *mediate.Policy) { p.Certain = .5 },
		"soften=2,outside=dense": func(p *mediate.Policy) { p.Soften, p.Outside = 2, "dense" },
	} {
		want := plain
		change(&want)
		got := plain
		if err := setPolicy(&got, text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}

	for _, text := range []string{
		"most", "most=x", "most=1.5", "most=1,most=2", "cover=", "nothing=1", ",", "cover=-1", "outside=base",
	} {
		p := plain
		if err := setPolicy(&p, text); !cli.IsUsage(err) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestWeightsText: weights are written by their names, those of 0 left out.
func TestWeightsText(t *testing.T) {
	names := []string{"sums", "news", "tales"}
	seen := map[string]bool{}
	for _, w := range [][]float64{{1, 0, 0}, {0, 1, 0}, {.5, .5, 0}, {.25, .25, .5}, {0, 0, 0}} {
		text := WeightsText(names, w)
		if text == "" || seen[text] {
			t.Errorf("%v: %q", w, text)
		}
		seen[text] = true
	}
}
