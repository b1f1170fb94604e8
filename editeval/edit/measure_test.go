package edit

import (
	"math"
	"strings"
	"testing"
)

// TestProbes: what a record is judged by, in the same order every time: which items share a pass shows in their last
// digits.
func TestProbes(t *testing.T) {
	x := encoder(t)
	r := Record{
		Prompt: "The birthplace of {} is", Subject: "Wanda", New: "Oslo", True: "Bonn",
		Rephrase: []string{"Wanda is from"},
		Near:     []string{"Ann is from", "Bo is from"}, Far: []Question{{"2 + 2 =", "4"}},
		Ported: []Question{{"She speaks", "French"}},
	}

	for range 20 {
		list, err := x.probes(&r)
		if err != nil {
			t.Fatal(err)
		}

		var got []string
		for _, p := range list {
			got = append(got, p.name)
		}
		want := "efficacy paraphrase paraphrase_trained neighborhood locality portability"
		if strings.Join(got, " ") != want {
			t.Fatalf("%q, want %q", got, want)
		}
		if len(list[3].fresh) != 2 || len(list[3].old) != 2 || !list[3].stay || len(list[4].old) != 0 {
			t.Errorf("%+v", list[3])
		}
	}

	r.True = ""
	list, err := x.probes(&r)
	if err != nil || len(list[0].old) != 0 || len(list[0].fresh) != 1 {
		t.Errorf("without an old answer: %+v (%v)", list[0], err)
	}
}

// TestBook: success compares likelihoods, the other way round where the old answer shall stay; what is no number fails.
func TestBook(t *testing.T) {
	a := func(nll float64, right int) *item { return &item{answer: []int32{1, 2}, nll: nll, right: right} }
	bad := a(0, 2)
	bad.bad = true

	for name, c := range map[string]struct {
		panel panel
		want  map[string]float64
	}{
		"written": {
			panel{name: "efficacy", fresh: []*item{a(1, 2), a(3, 1)}, old: []*item{a(2, 0), a(2, 0)}},
			map[string]float64{
				"efficacy_success": 0.5, "efficacy_exact": 0.5, "efficacy_accuracy": 0.75,
				"efficacy_magnitude": (math.Exp(-1) - math.Exp(-2) + math.Exp(-3) - math.Exp(-2)) / 2,
			},
		},
		"stays": {
			panel{name: "neighborhood", stay: true, fresh: []*item{a(1, 2)}, old: []*item{a(2, 0)}},
			map[string]float64{
				"neighborhood_success": 0, "neighborhood_exact": 0, "neighborhood_accuracy": 0,
				"neighborhood_magnitude": math.Exp(-2) - math.Exp(-1),
			},
		},
		"no number": {
			panel{name: "efficacy", fresh: []*item{bad}, old: []*item{a(2, 0)}},
			map[string]float64{
				"efficacy_success": 0, "efficacy_exact": 0, "efficacy_accuracy": 1, "efficacy_magnitude": -math.Exp(-2),
			},
		},
		"alone": {
			panel{name: "efficacy", fresh: []*item{a(1, 2)}},
			map[string]float64{"efficacy_exact": 1, "efficacy_accuracy": 1},
		},
		"questions": {
			panel{name: "locality", fresh: []*item{a(1, 1), a(1, 2)}}, map[string]float64{"locality_accuracy": 0.75},
		},
	} {
		got := map[string]float64{}
		c.panel.book(got)
		for key, want := range c.want {
			if v, ok := got[key]; !ok || math.Abs(v-want) > 1e-15 {
				t.Errorf("%s: %s %g, want %g", name, key, v, want)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestScore: the harmonic mean of three successes, 0 where one is, and none where one was not asked for.
func TestScore(t *testing.T) {
	for _, c := range []struct{ es, ps, ns, want float64 }{
		{1, 1, 1, 1}, {1, 0.5, 1, 0.75}, {1, 0, 1, 0}, {0.5, 0.5, 0.5, 0.5},
	} {
		j := &Judgement{Stats: map[string]Stat{}, Records: []map[string]float64{
			{"efficacy_success": c.es, "paraphrase_success": c.ps, "neighborhood_success": c.ns, "score": 99},
		}}
		j.summarize()
		if _, listed := j.Stats["score"]; listed || math.Abs(j.Score-c.want) > 1e-15 {
			t.Errorf("%+v: %g", c, j.Score)
		}
	}

	j := &Judgement{Stats: map[string]Stat{}, Records: []map[string]float64{
		{"efficacy_success": 1}, {"efficacy_success": 0},
	}}
	j.summarize()
	if s := j.Stats["efficacy_success"]; j.Score != 0 || s.Mean != 0.5 || s.N != 2 || math.Abs(s.Stderr-0.5) > 1e-15 {
		t.Errorf("%+v, score %g", s, j.Score)
	}
}
