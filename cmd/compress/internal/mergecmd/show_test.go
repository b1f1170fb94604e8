package mergecmd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
	"github.com/modelcompress/compress/merge/search"
)

// pairs reads a table of two columns without headings: what stands left of the first gap, and right of it.
func pairs(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			out[name] = strings.TrimSpace(value)
		}
	}
	return out
}

// TestMergedInWords: what a merge prints, with figures worked out by hand, and the warnings beside it.
func TestMergedInWords(t *testing.T) {
	accuracy := 0.875
	r := &merge.Report{
		Method: "ties", Tensors: 1234, Parameters: 480_096, BytesIn: 2_400_000, BytesOut: 960_192,
		Ties:  &merge.Ties{Rule: merge.TieIndex, Elements: 8000, Tied: 1000},
		Zeros: &merge.Zeros{From: "nano/base", Kept: 5000, Restored: 12},
		Mediation: &merge.Mediation{
			Groups: 9, Routed: []string{"a", "b"}, Experts: []string{"sums", "news"}, ExpertBytes: 1500,
			RouterAccuracy: &accuracy,
		},
		NonFinite: []merge.NonFinite{
			{Tensor: "w\x1b[2J", Model: "sums", NaN: 3, Inf: 4, Output: 5}, {Tensor: "v", Output: 6},
		},
		Seconds: 2, BytesPerSecond: 480_096,
	}

	out, said := clitest.Show(t, func(j *cli.Job) { show(j, r, "out") })
	want := map[string]string{
		"method": "ties", "tensors": "1,234", "parameters": "480,096", "read": "2.4 MB", "written": "960 kB",
		"at a threshold":              "1,000 of 8,000 differences (12.5 %); those of the lower index stay",
		"kept zeros":                  "5,000, as in nano/base; the merge had made 12 of them another value",
		"experts":                     "sums, news",
		"routed groups":               "2 of 9",
		"beside the dense model":      "1.5 kB",
		"router, on held-out prompts": "87.5 %",
		"rate":                        "480 kB/s",
	}
	if diff := cmp.Diff(want, pairs(out)); diff != "" {
		t.Error(diff)
	}
	if !strings.HasSuffix(out, "\nin out\n") {
		t.Errorf("it ends in %q", out[len(out)-20:])
	}

	if want := `warning: tensor "w\x1b[2J" of sums has 3 NaN and 4 infinite values; of the merged one 5 are not finite
warning: tensor "v": 6 values of the merged one are not finite, though all of the inputs' are
`; said != want {
		t.Errorf("stderr is %q, want %q", said, want)
	}

	r.Ties.Rule, r.Zeros = "draw", &merge.Zeros{Lost: []merge.LostZeros{{Model: "m"}}}
	r.Mediation = nil
	r.NonFinite = nil
	r.Seconds = 0
	r.Threads = 1
	out, said = clitest.Show(t, func(j *cli.Job) { show(j, r, "out") }, "--threads=3")
	if got := pairs(
		out,
	); got["at a threshold"] != "1,000 of 8,000 differences (12.5 %); those that stay are random" ||
		len(got) != 6 {
		t.Errorf("%q", got)
	}
	if said != "--keep-zeros keeps the zeros of the base, or of the first model of a recipe without one\n"+
		"--memory leaves room for 1 of 3 threads\n" {
		t.Errorf("%q", said)
	}
}

// TestManyWarnings: the first twenty are printed, and how many more there are.
func TestManyWarnings(t *testing.T) {
	var list []string
	for i := range 23 {
		list = append(list, fmt.Sprintf("number %d", i))
	}

	for _, n := range []int{0, 20, 21, 23} {
		_, said := clitest.Show(t, func(j *cli.Job) { warn(j, list[:n]) })
		lines := strings.Count(said, "warning: number ")
		last := fmt.Sprintf("and %d warnings more; all are in the report\n", n-20)
		if lines != min(n, 20) || strings.HasSuffix(said, last) != (n > 20) {
			t.Errorf("%d warnings: %d printed, ending in %.80q", n, lines, said[max(0, len(said)-80):])
		}
	}
}

// TestPlanInWords: a plan has a row for each tensor, and what it takes.
func TestPlanInWords(t *testing.T) {
	s := &merge.Summary{
		Document:   "first",
		Method:     "linear",
		Models:     []string{"a", "b"},
		Donor:      "a",
		Tensors:    2,
		Parameters: 1_000_003,
		BytesIn:    4_000_000,
		BytesOut:   2_000_006,
		Memory:     1_000,
		Warnings:   []string{"mind"},
		Plan: []merge.Planned{
			{Name: "embed", DType: "BF16", Shape: []int64{1000, 1000}, Sources: []string{"a: embed", "b: embed"}},
			{Name: "scale", DType: "F32", Shape: nil, Sources: []string{"a: scale"}},
		},
	}

	out, said := clitest.Show(t, func(j *cli.Job) { showPlan(j, s, false) })
	want := `tensor  type  shape          from
───────────────────────────────────────────────
embed   BF16  1,000 × 1,000  a: embed; b: embed
scale   F32                  a: scale
`
	rest, plan, _ := strings.Cut(out, "tensor  type")
	if plan = "tensor  type" + plan; plan != want {
		t.Errorf("have\n%s\nwant\n%s", plan, want)
	}

	figures := map[string]string{
		"document": "first", "method": "linear", "models": "a, b", "configuration from": "a", "tensors": "2",
		"parameters": "1,000,003", "read": "4 MB", "written": "2 MB", "memory": "1 kB",
	}
	if diff := cmp.Diff(figures, pairs(rest)); diff != "" || said != "warning: mind\n" {
		t.Error(diff, said)
	}
}

// conflicts is a report of two models in so many groups, whose figures tell them apart.
func conflicts(groups int) *mediate.ConflictReport {
	r := &mediate.ConflictReport{
		Base:     "base",
		Models:   []string{"a", "b"},
		Baseline: mediate.Measures{Disagree: .5, Cosine: 1},
		Whole: mediate.ConflictGroup{
			Measures: mediate.Measures{Disagree: .4},
			Excess:   mediate.Measures{Disagree: .8},
		},
	}

	r.Groups = append(r.Groups, mediate.ConflictGroup{Name: "pre", Layer: -1})
	for i := range groups - 1 {
		g := mediate.ConflictGroup{Name: fmt.Sprintf("model.layers.%d.mlp", i), Layer: i}
		g.Elements = 100
		g.Active = 50
		g.Both = int64(i)
		g.Disagree, g.Excess.Disagree = float64(i)/10, float64(i)/5
		r.Groups = append(r.Groups, g)
	}

	return r
}

// TestConflictTable: a row for each group, then all, then what random signs give; a single model contradicts nobody, so
// that there is nothing to divide by.
func TestConflictTable(t *testing.T) {
	r := conflicts(3)
	before := slices.Clone(r.Groups)
	rows := measures(r, r.Groups[:2]).Rows
	if len(rows) != 4 || rows[1][0] != "model.layers.0.mlp" || rows[2][0] != "all" || rows[2][4] != .4 ||
		rows[2][10] != .8 || rows[3][0] != "random signs" || rows[3][4] != .5 || rows[3][9] != 1.0 ||
		rows[3][10] != 1.0 {
		t.Errorf("%v", rows)
	}
	if diff := cmp.Diff(before, r.Groups); diff != "" {
		t.Errorf("the report's own groups were written over: %s", diff)
	}

	r.Baseline = mediate.Measures{}
	if rows := measures(r, nil).Rows; len(rows) != 2 || rows[1][10] != nil {
		t.Errorf("%v", rows)
	}
}

// TestConflictPage: one sentence says how much the models contradict each other, a strip has the layers, a map their
// matrices, the metrics are explained, and a long table is folded.
func TestConflictPage(t *testing.T) {
	for _, groups := range []int{manyGroups, manyGroups + 1} {
		r := conflicts(groups)
		r.Whole.Active = 50
		for i := range 3 {
			for _, role := range []string{"self_attn.q_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight"} {
				g := mediate.ConflictGroup{Name: fmt.Sprintf("model.layers.%d.%s", i, role), Layer: i}
				g.Excess.Disagree = float64(i)
				r.Tensors = append(r.Tensors, g)
			}
		}

		page := conflictPage(r)
		strip, roles := page.Sections[0].Charts[0], page.Sections[0].Charts[1]
		if len(strip.Series) != 1 || len(strip.Labels) != groups-1 ||
			strip.Series[0].Y[3] != r.Groups[4].Excess.Disagree {
			t.Errorf("%+v", strip)
		}
		if len(roles.Series) != 2 || roles.Series[0].Name != "q" || roles.Series[1].Y[2] != 2 ||
			len(roles.Labels) != 3 {
			t.Errorf("%+v", roles)
		}

		tables := page.Sections[2].Tables
		if len(tables) != 2 || tables[0].Folded != (groups > manyGroups) || !tables[1].Folded {
			t.Errorf("%+v", tables)
		}
		if page.Subtitle != "a, b against base" || len(page.Sections[1].Tables[0].Rows) != 7 {
			t.Errorf("%+v", page)
		}
	}
}

// TestConflictInWords: every degree of contradiction has words, one model contradicts nobody, and a layer that stands
// out is named.
func TestConflictInWords(t *testing.T) {
	r := conflicts(4)
	r.Whole.Active = 50
	for x, want := range map[float64]string{
		.17: "0.17 times as often as random signs would, which is " +
			"little", .8: "less than chance", 1: "as much as unrelated",
		1.2: "more than chance", 3: "which is a lot",
	} {
		r.Whole.Excess.Disagree = x
		if got := conflictFinding(r); !strings.Contains(got, want) {
			t.Errorf("%g: %s", x, got)
		}
	}

	r.Whole.Excess.Disagree = .3
	if got := conflictFinding(r); !strings.HasSuffix(got, "Most in model.layers.2.mlp (0.40).") {
		t.Error(got)
	}
	whole := r.Whole
	r.Whole.Disagree, r.Whole.Cosine, r.Whole.Shift = 0, 1e-16, []float64{.3, .3, .3}[:len(r.Models)]
	if got := conflictFinding(r); !strings.HasPrefix(got, "The models are the same: ") {
		t.Error(got)
	}
	r.Whole.Shift = []float64{0, .3, 0}[:len(r.Models)]
	if got := conflictFinding(r); !strings.HasPrefix(got, "Only "+r.Models[1]+" differs from the base") {
		t.Error(got)
	}
	r.Whole = whole

	r.Whole.Active = 0
	if got := conflictFinding(r); got != "The models are the same as the base: nothing was moved." {
		t.Error(got)
	}
	r.Models = r.Models[:1]
	if got := conflictFinding(r); !strings.HasPrefix(got, "There is one model beside the base, which contradicts") {
		t.Error(got)
	}
}

// TestFound: the table of a search has its numbers, and below it the loss with what it was measured by.
func TestFound(t *testing.T) {
	r := &search.Report{
		Options: search.Options{Aims: []search.Aim{{Name: "text.txt"}, {Name: "sums"}}},
		Variables: []search.Variable{
			{Name: "w", Low: 0, High: 1, Start: .5}, {Name: "density", Low: .1, High: .9, Start: .3},
		},
		Values: []float64{.25, .75}, Score: 1.2345678, Start: 1.5,
		Steps: []search.Step{{}, {Failed: "no"}, {}},
	}

	table := found(r, "out")
	if fmt.Sprint(table.Rows) != "[[w 0 1 0.5 0.25] [density 0.1 0.9 0.3 0.75]]" {
		t.Errorf("%v", table.Rows)
	}
	if want := "loss 1.23457 (text.txt, sums), at the start 1.5; 3 candidates, 1 of them without a score; recipe in " +
		"out/" + search.BestName; table.Note != want {
		t.Errorf("%s\nwant %s", table.Note, want)
	}

	r.Start = -1
	if note := found(r, "out").Note; strings.Contains(note, "at the start") {
		t.Errorf("a start that was not measured: %s", note)
	}
}

// TestPromptsInTables: a prompt is one line of at most forty letters, in quotes, and without one its number.
func TestPromptsInTables(t *testing.T) {
	for prompt, want := range map[string]string{
		"": "7", "two\nlines \"x\"": `"two\nlines \"x\""`,
		strings.Repeat("ä", 40): `"` + strings.Repeat("ä", 40) + `"`,
		strings.Repeat("ä", 41): `"` + strings.Repeat("ä", 40) + `…"`,
	} {
		if got := short(prompt, 7); got != want {
			t.Errorf("%q: %s, want %s", prompt, got, want)
		}
	}
}
