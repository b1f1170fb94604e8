package searchcmd

import (
	"testing"

	"github.com/modelcompress/compress/gp"
)

// What formulas have in common is counted over those that were measured in full; symbols that hardly any has, or all
// have, say nothing.
func TestTraits(t *testing.T) {
	full := func(v float64) *float64 { return &v }
	var climbs []Climbed
	for i, formula := range []string{
		"W*X", "sqrt(X)*W", "W*X*G", "W*sqrt(X)*G", "W*G", "W + G", "sqr(W)*G", "W - sqrt(G)",
	} {
		c := Climbed{Formula: formula}
		c.Full = full(float64(i))
		climbs = append(climbs, c)
	}
	climbs = append(climbs, Climbed{Formula: "X"})

	got, err := traits(gp.PaperGrammar(), climbs)
	if err != nil {
		t.Fatal(err)
	}

	names := map[string]Trait{}
	for _, x := range got {
		names[x.Symbol] = x
	}
	if _, all := names["W"]; all || got[0].Symbol != "X" {
		t.Fatalf("%+v", got)
	}
	if x := names["X"]; x.Formulas != 4 || x.With != 1.5 || x.Without != 5.5 || !(x.Spearman < -0.8) || !(x.P < 0.1) {
		t.Errorf("%+v", x)
	}
	if g, there := names["G"]; there {
		t.Errorf("two of eight are without it: %+v", g)
	}

	climbs[0].Formula = "W*"
	if _, err := traits(gp.PaperGrammar(), climbs); err == nil {
		t.Error("a damaged formula passes")
	}
}
