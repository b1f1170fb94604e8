package editcmd

import (
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/editeval/edit"
)

// TestEditsInWords: what is printed of edits, the sign of a collapsed model with what helps, and where a codebook lies.
func TestEditsInWords(t *testing.T) {
	r := &edit.FolderReport{
		Method:  "rome",
		Count:   2,
		HParams: edit.HParams{Source: "defaults"},
		Drift:   &edit.Drift{},
		Before:  map[string]float64{"efficacy_success": 0},
		Metrics: map[string]float64{"efficacy_success": 1},
		N:       map[string]int{"efficacy_success": 2},
		Damped:  []edit.Damping{{Layer: 3, Share: .01}},
	}
	o := &Options{}
	o.Out = "out"

	out, said := clitest.Show(t, func(j *cli.Job) { show(j, r, o) })
	if !strings.HasSuffix(
		out,
		"2 edits by rome (defaults) in out: drift was not measured: no prompts are there for it\n",
	) {
		t.Errorf("%s", out)
	}
	if said != "layer 3: the covariance of keys is not positive definite: 0.01 of its mean diagonal was added (HINT: "+
		"--stats with more text)\n" {
		t.Errorf("%s", said)
	}

	r.Drift = &edit.Drift{Prompts: 8, KL: 50, Agreement: 0}
	out, _ = clitest.Show(t, func(j *cli.Job) { show(j, r, o) })
	if !strings.Contains(out, "in out: drift 50.0000 nats, 0% of top-1 predictions kept\n") {
		t.Errorf("%s", out)
	}

	r.Damped = nil
	for _, c := range []struct {
		statistics *edit.Collected
		stats      string
		hint       bool
	}{{&edit.Collected{}, "", true}, {&edit.Collected{}, "text.txt", false}, {nil, "", false}} {
		r.Statistics, o.Stats = c.statistics, c.stats
		_, said := clitest.Show(t, func(j *cli.Job) { show(j, r, o) })
		if !strings.Contains(said, "has collapsed: its top-1 predictions stay the same at 0 % of 8 prompts") ||
			!strings.Contains(said, "(HINT: fewer edits; or ") ||
			strings.Contains(said, "--stats with text of the kind") != c.hint {
			t.Errorf("%+v: %s", c, said)
		}
	}

	r.Drift = &edit.Drift{}
	for method, beside := range map[string]bool{"grace": true, "ike": true, "memit": false} {
		r.Method = method
		_, said := clitest.Show(t, func(j *cli.Job) { show(j, r, o) })
		if strings.Contains(said, "the weights are as they were") != beside {
			t.Errorf("%s: %s", method, said)
		}
	}
}

// TestTraces: a picture of each kind of state, a row for each token, in words and on the page.
func TestTraces(t *testing.T) {
	r := &Traced{
		Prompt:  "Ada was born",
		Subject: "Ada",
		Answer:  "in",
		to:      1,
		Tokens:  []string{" Ada", " was", " born"},
		TraceResult: &edit.TraceResult{
			Clean: .5, Corrupted: .125, Window: 2,
			Hidden: [][]float64{{.1, .2}, {.3, .4}, {.5, .6}}, MLP: [][]float64{{0, 0}, {0, 0}, {0, 0}},
			Attention: [][]float64{{1, 1}, {1, 1}, {1, 1}},
		},
	}

	out, _ := clitest.Show(t, func(j *cli.Job) { r.print(j, true) })
	want := `Ada was born: p("in") is 0.5000, with noise 0.1250
` + r.finding() + `
what leaves the block
token      0      1
───────────────────
Ada    0.100  0.200
was    0.300  0.400
born   0.500  0.600
MLP, 2 blocks
`
	if !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 20 ||
		!strings.Contains(out, "\nattention, 2 blocks\n") {
		t.Errorf("have\n%s\nwant\n%s", out, want)
	}

	short, _ := clitest.Show(t, func(j *cli.Job) { r.print(j, false) })
	for _, line := range []string{
		`what leaves the block  2 " born"  0.6000         1  0–1`, `what leaves the block  1 " was"   0.4000`,
	} {
		if !strings.Contains(short, line) {
			t.Errorf("%s\nlacks %s", short, line)
		}
	}

	s := r.page().Sections[0]
	if len(s.Charts) != 3 || s.Charts[0].Series[0].Name != "Ada*" || s.Charts[1].Scale != [2]float64{0, 1} ||
		s.Charts[0].Series[2].Name != "born" || s.Charts[0].Series[2].Y[1] != .6 ||
		strings.Join(
			s.Charts[0].Labels,
			" ",
		) != "0 1" || s.Facts[1].Value != "0.5000" || s.Facts[2].Value != "0.1250" {
		t.Errorf("%+v", s)
	}
}

// TestTraceInWords: where nothing brings the answer back, the finding says so; the last token is called that.
func TestTraceInWords(t *testing.T) {
	r := &Traced{Subject: "Ada", Answer: "in", Tokens: []string{"Ada", " was"}, TraceResult: &edit.TraceResult{
		Clean: .5, Corrupted: .25, Window: 1, MLP: [][]float64{{.1, .2, .2}, {.1, .1, .1}},
		Attention: [][]float64{{0, .3, 0}, {0, .9, .25}},
	}}
	want := "With noise on \"Ada\" the probability of \"in\" falls from 0.50 to 0.25; what brings most of it back is " +
		"the attention of the last token in layer 1 (up to 0.90)."
	if got := r.finding(); got != want {
		t.Error(got)
	}
	noisy := *r.TraceResult
	noisy.Corrupted = .48
	quiet := *r
	quiet.TraceResult = &noisy
	if got := quiet.finding(); !strings.HasPrefix(got, `Noise on "Ada" does not take the answer away`) {
		t.Error(got)
	}

	r.Attention = r.MLP
	if got := r.finding(); !strings.HasPrefix(got, `Nothing that is restored brings "in" back`) {
		t.Error(got)
	}
}

// TestTracesThatCannotBe: what is wrong with the flags of a trace is told before a model is opened.
func TestTracesThatCannotBe(t *testing.T) {
	good := TraceOptions{Prompt: "Ada was born", Subject: "Ada", Trace: edit.TraceOptions{Samples: 1, Noise: 1}}
	for want, change := range map[string]func(o *TraceOptions){
		`--subject "Bob" is not in --prompt "Ada was born"`: func(o *TraceOptions) { o.Subject = "Bob" },
		"--samples 0":        func(o *TraceOptions) { o.Trace.Samples = 0 },
		"--samples 10001":    func(o *TraceOptions) { o.Trace.Samples = 10_001 },
		"--window -1":        func(o *TraceOptions) { o.Trace.Window = -1 },
		"--noise 0":          func(o *TraceOptions) { o.Trace.Noise = 0 },
		"--noise 1e+07":      func(o *TraceOptions) { o.Trace.Noise = 1e7 },
		"there is no folder": func(o *TraceOptions) { o.HTML = "no/such/page.html" },
	} {
		o := good
		change(&o)
		clitest.Refused(t, clitest.Run(t, func(j *cli.Job) (any, error) { return Trace(j, "none", o) }), want)
	}
}

// TestHintSubject: a subject that is not in the prompt comes with what the user may have meant.
func TestHintSubject(t *testing.T) {
	for _, c := range []struct{ prompt, subject, want string }{
		{"Ada was born in", "ada", `did you mean --subject "Ada"?`},
		{"{} was born in", "Ada", `write the subject into the prompt: --prompt "Ada was born in"`},
		{
			"Ada was born in", "Bob",
			"the subject is the part of the prompt that the fact is about, written as it is there",
		},
	} {
		if got := hintSubject(c.prompt, c.subject); got != c.want {
			t.Errorf("%q in %q: %s", c.subject, c.prompt, got)
		}
	}
}
