package editeval

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcompress/compress/editeval/edit"
)

// rowOf is a row of a report with one task.
func rowOf(editor string, edits int, held, value float64, lost int) Row {
	r := Row{
		Editor: editor, Edits: edits, Seeds: 1, Paraphrase: Value(held / 2), Neighborhood: 0.9,
		Abilities: map[string]RowAbility{
			"facts": {Metric: "acc", HigherIsBetter: true, Value: Value(value), Lost: lost},
		},
	}
	r.Held.Mean = held
	r.Held.Low = max(0, held-0.1)
	r.Held.High = min(1, held+0.1)
	return r
}

// modelOf is the part of a report for a model: an unedited row, then editors at 10 and 20 edits.
func modelOf() ModelReport {
	return ModelReport{
		Name: "m",
		Rows: []Row{
			rowOf("", 0, 0, 0.8, 0), rowOf("ft", 10, 0.9, 0.8, 0), rowOf("ft", 20, 0.85, 0.4, 1),
			rowOf("grace", 10, 1, 0.8, 0), rowOf("grace", 20, 1, 0.8, 0),
		},
		Sequences: []SequenceReport{
			{Editor: "ft", Batch: 1, Fading: []Fade{{Edits: 10, Then: 0.9, Last: 0.1, Lost: 8}}},
			{Editor: "grace", Batch: 1, Fading: []Fade{{Edits: 10, Then: 1, Last: 1}}},
		},
	}
}

// TestSummary: what the figures say is said: who keeps most, what fades, which ability is lost by whom and from when.
func TestSummary(t *testing.T) {
	m := modelOf()
	m.Rows[2].Signs = map[string]Signs{"facts": {"mostly repetitions"}}
	r := Report{Counts: []int{10, 20}, Models: []ModelReport{m}}
	got := strings.Join(r.summarize(), "\n")
	for _, want := range []string{
		"After 20 edits, with 95 % intervals, these shares of all edits hold: grace 100 % (90 to 100), " +
			"ft 85 % (75 to 95).",
		"The intervals of ft overlap with that of grace.",
		"and then: ft 42 %, grace 50 %.", "keep their old answer in 90 % of cases before any edit",
		"Early edits fade as later ones arrive, up to 20: ft (of the first 10, 90 % held then and 10 % at last; " +
			"of the first 10, 8 were lost by then and 0 came back, p = 0.0078).",
		"No edit is lost to later ones by grace.",
		"facts (acc) is 0.8 before any edit, and is significantly worse with ft from 20 edits on (0.4, and 0.4 " +
			"at last); not with grace.",
		"Signs of a collapse with ft from 20 edits on, which the unedited model does not show: facts: mostly " +
			"repetitions.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "m: ") || strings.Contains(got, "model by model") {
		t.Errorf("one model is named beside none:\n%s", got)
	}

	r.Models = append(r.Models, m)
	r.Models[1].Name = "n"
	got = strings.Join(r.summarize(), "\n")
	for _, want := range []string{
		"m: After 20 edits", "n: After 20 edits",
		"Edits that hold after 20 edits, model by model: ft on m 85 % (75 to 95), n 85 % (75 to 95); grace on m",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestSummaryOfNothing: an editor whose edits have all diverged is the unedited model, of which nothing else is said.
func TestSummaryOfNothing(t *testing.T) {
	m := modelOf()
	for i := range m.Rows[1:] {
		if r := &m.Rows[i+1]; r.Editor == "ft" {
			r.Failed = r.Edits
		}
	}
	m.Sequences[0].Fading = []Fade{{Edits: 10}}

	r := Report{Counts: []int{10, 20}, Models: []ModelReport{m}}
	got := strings.Join(r.summarize(), "\n")
	if !strings.Contains(got, "do not hold: 20 of 20 with ft. What is said of ft is said of the unedited model") ||
		!strings.Contains(got, "is not lost significantly by any editor") || strings.Contains(got, "fade") {
		t.Error(got)
	}
}

// TestLosses: abilities are ranked by what is lost of them, in parts of the figure or as a factor of a perplexity.
func TestLosses(t *testing.T) {
	row := func(editor string, edits int, acc, ppl float64) Row {
		return Row{Editor: editor, Edits: edits, Seeds: 1, Abilities: map[string]RowAbility{
			"facts": {Metric: "acc", HigherIsBetter: true, Value: Value(acc)},
			"text":  {Metric: "word_perplexity", Value: Value(ppl)},
		}}
	}

	m := ModelReport{Rows: []Row{row("", 0, 0.5, 2), row("a", 10, 0.25, 8), row("b", 10, 0.5, 32)}}
	want := "Over all editors and after 10 edits, the largest loss first: the word_perplexity of text is 8 times " +
		"what it was, facts loses 25 % of its acc."
	if got := m.losses([]string{"facts", "text"}); got != want {
		t.Errorf("%q, want %q", got, want)
	}

	kept := ModelReport{Rows: []Row{row("", 0, 0.5, 2), row("a", 1, 0.5, 2.001), row("b", 1, 0.51, 2)}}
	want = "Over all editors and after 1 edit, nothing of these is lost."
	if got := kept.losses([]string{"facts", "text"}); got != want {
		t.Errorf("%q, want %q", got, want)
	}

	m.Rows[0].Abilities["facts"] = RowAbility{Metric: "acc", HigherIsBetter: true} // nothing to lose
	if got := m.losses([]string{"facts"}); got != "" {
		t.Errorf("%q", got)
	}
}

// TestAdjust: probabilities are adjusted together, only main figures count, and what is better is never lost.
func TestAdjust(t *testing.T) {
	ability := func(p, difference float64, higher, main bool) Ability {
		return Ability{
			Task: "t", Main: main, P: p, Difference: Value(difference), HigherIsBetter: higher, Value: 1,
			Test: "mcnemar",
		}
	}

	m := ModelReport{Sequences: []SequenceReport{{Checkpoints: []CheckpointReport{{Abilities: []Ability{
		ability(0.01, -0.5, true, true),  // worse
		ability(0.02, 0.5, true, true),   // better
		ability(0.03, 0.5, false, true),  // a perplexity that has risen
		ability(1e-9, -0.5, true, false), // not the task's main figure
	}}}}}}
	m.adjust()

	list := m.Sequences[0].Checkpoints[0].Abilities
	// Holm: 3·0.01, then 2·0.02, then 0.03, never less than the one before
	for i, want := range []float64{0.03, 0.04, 0.04} {
		if math.Abs(list[i].Adjusted-want) > 1e-15 {
			t.Errorf("figure %d: %g, want %g", i, list[i].Adjusted, want)
		}
	}
	if !list[0].Lost || list[1].Lost || !list[2].Lost || list[3].Lost {
		t.Errorf("%+v", list)
	}
}

// TestFade: edits are compared with themselves, and losing as many as come back is no fading.
func TestFade(t *testing.T) {
	at := func(held ...float64) (c Checkpoint) {
		for _, h := range held {
			c.Records = append(c.Records, map[string]float64{"efficacy_success": h})
		}
		c.Edits = len(held)
		return c
	}

	var r SequenceReport
	r.fade([]Checkpoint{at(1, 0), at(1, 1, 0, 0), at(0, 1, 1, 1, 0)})
	want := []Fade{
		{Edits: 2, Then: 0.5, Last: 0.5, Lost: 1, Gained: 1, P: 1},
		{Edits: 4, Then: 0.5, Last: 0.75, Lost: 1, Gained: 2, P: 1},
	}
	if !reflect.DeepEqual(r.Fading, want) {
		t.Errorf("%+v", r.Fading)
	}
}

// TestRetention: bins of 1, 2 or 5 times a power of ten, the last of which may be shorter; without an old answer it
// counts whether the whole new one is top-1.
func TestRetention(t *testing.T) {
	for _, c := range [][3]int{
		{10, 10, 1}, {10, 11, 2}, {10, 50, 5}, {10, 51, 10}, {3, 100, 50}, {1, 1, 1}, {20, 1000, 50},
	} {
		s := &Study{Plan: Plan{Bins: c[0]}, Counts: []int{1, c[1]}}
		if got := s.binWidth(); got != c[2] {
			t.Errorf("%d bins of %d edits: %d wide, want %d", c[0], c[1], got, c[2])
		}
	}

	s := &Study{Plan: Plan{Bins: 2}, Counts: []int{4}}
	got := s.retention(&Checkpoint{Edits: 3, Records: []map[string]float64{
		{"efficacy_success": 1}, {"efficacy_success": 0, "efficacy_exact": 1}, {"efficacy_exact": 1},
	}})
	if want := []Bin{{1, 2, 0.5, 0.5}, {3, 3, 1, 1}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestIntervalOf: Wilson's for what is one prompt a record, the normal one for magnitudes; an interval of fractions
// never leaves 0 to 1.
func TestIntervalOf(t *testing.T) {
	i := IntervalOf("efficacy_success", edit.Stat{Mean: 0.5, Stderr: 99, N: 10})
	if math.Abs(i.Low-0.2366) > 5e-5 || math.Abs(i.High-0.7634) > 5e-5 { // Wilson (1927), 5 of 10
		t.Errorf("%+v", i)
	}
	i = IntervalOf("efficacy_magnitude", edit.Stat{Mean: -2, Stderr: 1, N: 10})
	if math.Abs(i.Low+3.96) > 5e-3 || math.Abs(i.High+0.04) > 5e-3 {
		t.Errorf("%+v", i)
	}
	for _, mean := range []float64{0, 0.01, 0.99, 1} {
		i = IntervalOf("paraphrase_success", edit.Stat{Mean: mean, Stderr: 0.2, N: 4})
		if !(i.Low >= 0 && i.Low <= mean && mean <= i.High && i.High <= 1) {
			t.Errorf("%g: %+v", mean, i)
		}
	}
}

// TestRowAbility: means over seeds; the interval is that of the standard error, else of the difference; the worst
// probability counts.
func TestRowAbility(t *testing.T) {
	nan := Value(math.NaN())
	got := rowAbility([]Ability{
		{Metric: "acc", HigherIsBetter: true, N: 100, Value: 0.9, Stderr: 0.2, Adjusted: 0.01, Lost: true},
		{Metric: "acc", HigherIsBetter: true, N: 100, Value: 1, Stderr: 0.2, Adjusted: 0.2},
	})
	if got.Value != 0.95 || got.P != 0.2 || got.Lost != 1 || got.High > 1 || got.Low < 0 || got.Low > 0.95 {
		t.Errorf("%+v", got)
	}

	got = rowAbility([]Ability{
		{Metric: "word_perplexity", Value: 8, Stderr: nan, Base: 5, Difference: 3, Low: 2, High: 4},
	})
	if got.Low != 7 || got.High != 9 {
		t.Errorf("%+v", got)
	}
	got = rowAbility([]Ability{{Metric: "bits_per_byte", Value: 2, Stderr: 0.5}})
	if math.Abs(float64(got.Low)-1.02) > 5e-3 || math.Abs(float64(got.High)-2.98) > 5e-3 {
		t.Errorf("%+v", got)
	}
}

// TestWrites: how many edits a sequence writes, with those that are taken out again.
func TestWrites(t *testing.T) {
	s := &Study{Counts: []int{1, 10, 25}}
	for batch, want := range map[int]int{
		1:     25,          // as it goes
		10:    20 + 1 + 5,  // two whole batches, and the rests of 1 and of 25
		25:    25 + 1 + 10, // one whole batch at the end, 1 and 10 before it
		100:   1 + 10 + 25, // every count is a rest
		whole: 1 + 10 + 25, // every count as one batch
	} {
		if got := s.writes(Editor{Batch: batch}); got != want {
			t.Errorf("batches of %d: %d, want %d", batch, got, want)
		}
	}
}

// TestScale: on a host seconds are divided by the processors that are free, and processor seconds stay; elsewhere the
// clock's seconds stay, and processor seconds are not known.
func TestScale(t *testing.T) {
	before := Estimate{
		Processors: 4, Rate: 100, Statistics: 8, Measure: 12, Judge: 4, Edit: []float64{16}, Total: 40,
	}
	host := before
	host.Edit = []float64{16}
	host.scale(true)
	if host.Rate != 400 || host.Statistics != 2 || host.Measure != 3 || host.Judge != 1 || host.Edit[0] != 4 ||
		host.Total != 10 || host.CPU != 40 {
		t.Errorf("%+v", host)
	}

	away := before
	away.CPU = 7
	away.scale(false)
	if away.Rate != 100 || away.Total != 40 || away.CPU != 0 {
		t.Errorf("%+v", away)
	}

	for free, want := range map[float64]bool{4: false, 2.9: false, 2.7: true} {
		if e := (Estimate{Processors: free, Threads: 4}); e.Busy() != want {
			t.Errorf("%g of 4 processors: %v", free, !want)
		}
	}
}

// TestWords: counts and lists for people.
func TestWords(t *testing.T) {
	if got := label(1, "edit") + ", " + label(2, "edit") + ", " + label(0, "edit"); got != "1 edit, 2 edits, 0 edits" {
		t.Error(got)
	}
	for want, list := range map[string][]string{
		"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"},
	} {
		if got := listed(list); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestOrder: seed 0 is the order of the file; any other is a permutation, always the same.
func TestOrder(t *testing.T) {
	if got := order(4, 0); !reflect.DeepEqual(got, []int{0, 1, 2, 3}) {
		t.Errorf("%v", got)
	}

	got := order(50, 3)
	other := order(50, 4)
	if !reflect.DeepEqual(got, order(50, 3)) || reflect.DeepEqual(got, other) || reflect.DeepEqual(got, order(50, 0)) {
		t.Errorf("%v, %v", got, other)
	}
	seen := make([]bool, 50)
	for _, i := range got {
		if seen[i] {
			t.Fatalf("%d twice", i)
		}
		seen[i] = true
	}
}
