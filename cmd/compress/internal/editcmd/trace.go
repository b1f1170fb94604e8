package editcmd

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// TraceOptions are the flags of edit trace.
type TraceOptions struct {
	Prompt  string
	Subject string
	Answer  string
	HTML    string
	Trace   edit.TraceOptions
	Decode  bool // quantised matrices become floats when they are loaded
	Grids   bool // print every value
}

// Traced is the report of edit trace.
type Traced struct {
	Prompt  string   `json:"prompt"`
	Subject string   `json:"subject"`
	Answer  string   `json:"answer"`
	Tokens  []string `json:"tokens"`
	*edit.TraceResult

	from, to int // tokens of the subject
}

// Trace runs causal tracing.
func Trace(j *cli.Job, path string, o TraceOptions) (any, error) {
	at := strings.LastIndex(o.Prompt, o.Subject)
	if at < 0 {
		err := cli.Usagef("--subject %q is not in --prompt %q", o.Subject, o.Prompt)
		return nil, failure.Hinted(err, hintSubject(o.Prompt, o.Subject))
	}
	switch {
	case o.Trace.Samples < 1 || o.Trace.Samples > 10_000:
		return nil, cli.Usagef("--samples %d: want 1 to 10000", o.Trace.Samples)
	case o.Trace.Window < 0:
		return nil, cli.Usagef("--window %d: want 0 or more", o.Trace.Window)
	case !(o.Trace.Noise > 0) || o.Trace.Noise > 1e6:
		return nil, cli.Usagef("--noise %g: want more than 0, and at most 1e6", o.Trace.Noise)
	}

	if o.HTML != "" {
		place := cli.Place{Flag: "html", Path: o.HTML, What: "a page", Own: report.IsPage, Inputs: j.Inputs}
		if err := place.Check(); err != nil {
			return nil, err
		}
	}

	if err := cli.Apart([2]string{"html", o.HTML}, [2]string{"report", j.ReportTo()}); err != nil {
		return nil, err
	}

	m, err := j.Load(path, lm.Options{Decode: o.Decode})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	if o.Trace.Window > m.Blocks() {
		return nil, cli.Usagef("--window %d: the model has %d blocks", o.Trace.Window, m.Blocks())
	}
	if err := openmodel.AttachCodebook(j, m); err != nil {
		return nil, err
	}

	tok, err := cli.Tokenizer(m)
	if err != nil {
		return nil, err
	}

	if tok == nil {
		return nil, fmt.Errorf("%s: %w", path, edit.ErrNoTokenizer)
	}

	r, err := trace(j, m, tok, at, o)
	if err != nil {
		return nil, err
	}

	r.print(j, o.Grids)
	if o.HTML == "" {
		return r, nil
	}

	var text bytes.Buffer
	if err := r.page().HTML(&text); err != nil {
		return nil, err
	}

	return r, j.Write(o.HTML, text.Bytes())
}

// hintSubject says what helps where a prompt does not have the subject in it.
func hintSubject(prompt, subject string) string {
	if strings.Contains(prompt, "{}") { // as in files of edits
		return fmt.Sprintf("write the subject into the prompt: --prompt %q",
			strings.ReplaceAll(prompt, "{}", subject))
	}
	// Only where upper and lower case do not change the length are both at the same place.
	if low := strings.ToLower(prompt); len(low) == len(prompt) {
		if i := strings.Index(low, strings.ToLower(subject)); i >= 0 && i+len(subject) <= len(prompt) {
			return fmt.Sprintf("did you mean --subject %q?", prompt[i:i+len(subject)])
		}
	}
	return "the subject is the part of the prompt that the fact is about, written as it is there"
}

// trace encodes the prompt and runs the trace.
func trace(j *cli.Job, m *lm.Model, tok *tokenizer.Tokenizer, at int, o TraceOptions) (*Traced, error) {
	ids, spans, err := tok.EncodeOffsets(o.Prompt, tokenizer.EncodeOptions{})
	if err != nil {
		return nil, err
	}

	from, to := -1, -1
	r := &Traced{Prompt: o.Prompt, Subject: o.Subject}
	for i, s := range spans {
		r.Tokens = append(r.Tokens, tok.Decode(ids[i:i+1], false))

		if s.Start < at+len(o.Subject) && s.End > at && s.End > s.Start {
			if from < 0 {
				from = i
			}
			to = i + 1
		}
	}

	r.from, r.to = from, to

	answer := int32(-1)
	if o.Answer != "" {
		x := &edit.Encoder{Tokenizer: tok}
		list, err := x.Answer(o.Prompt, o.Answer)
		if err != nil {
			return nil, err
		}
		answer = list[0]
		if len(list) > 1 {
			j.Note("of --answer %q the first token is followed, %q", o.Answer, tok.Decode(list[:1], false))
		}
	}

	o.Trace.Seed = j.Seed
	if r.TraceResult, err = edit.Trace(j.Ctx, m, ids, from, to, answer, o.Trace); err != nil {
		return nil, err
	}

	r.Answer = strings.TrimSpace(tok.Decode([]int32{r.TraceResult.Answer}, false))
	return r, nil
}

// grid is one picture.
type grid struct {
	name   string
	values [][]float64
}

func (r *Traced) grids() []grid {
	return []grid{
		{"what leaves the block", r.Hidden},
		{fmt.Sprintf("MLP, %d blocks", r.Window), r.MLP},
		{fmt.Sprintf("attention, %d blocks", r.Window), r.Attention},
	}
}

// strongest are the tokens of a grid that bring most of the answer back.
const strongest = 2

// findings shows where restoring brings most of the answer back, a few lines for each grid.
func (r *Traced) findings() *report.Table {
	t := &report.Table{
		Columns: report.Columns("restored", "token", "p|%.4f", "in layer", "half of that and more in"),
		Note:    "p: of the answer, with noise and this one state restored; --grids prints all, --html draws them",
	}

	for _, g := range r.grids() {
		order := make([]int, len(g.values))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Compare(slices.Max(g.values[b]), slices.Max(g.values[a]))
		})

		for _, i := range order[:min(strongest, len(order))] {
			row := g.values[i]
			most := slices.Max(row)
			var layers []int
			for l, v := range row {
				// half of what there is to win over the answer with noise
				if v-r.Corrupted >= (most-r.Corrupted)/2 {
					layers = append(layers, l)
				}
			}
			t.Add(g.name, fmt.Sprintf("%d %q", i, r.Tokens[i]), most, slices.Index(row, most), cli.Spans(layers))
		}
	}
	return t
}

// print shows what was found, or all values of the grids.
func (r *Traced) print(j *cli.Job, all bool) {
	j.Printf("%s: p(%q) is %.4f, with noise %.4f\n", r.Prompt, r.Answer, r.Clean, r.Corrupted)
	j.Printf("%s\n", r.finding())
	if !all {
		j.Table(r.findings())
		return
	}

	for _, g := range r.grids() {
		columns := []string{"token"}
		for b := range g.values[0] {
			columns = append(columns, fmt.Sprintf("%d|%%.3f", b))
		}

		t := &report.Table{Title: g.name, Columns: report.Columns(columns...)}
		for i, row := range g.values {
			cells := []any{strings.TrimSpace(r.Tokens[i])}
			for _, v := range row {
				cells = append(cells, v)
			}
			t.Add(cells...)
		}

		j.Table(t)
	}
}

// tracePlace is where a grid is strongest: a token, its best layer, and those with half of that and more.
type tracePlace struct {
	token, layer int
	p            float64
	layers       []int
}

// strongestOf is the place of a grid's largest value; none: nothing brings the answer back.
func (r *Traced) strongestOf(values [][]float64) (at tracePlace, ok bool) {
	at.p = r.Corrupted
	for i, row := range values {
		for l, v := range row {
			if v > at.p {
				at = tracePlace{token: i, layer: l, p: v}
				ok = true
			}
		}
	}
	if !ok {
		return at, false
	}

	for l, v := range values[at.token] {
		if v-r.Corrupted >= (at.p-r.Corrupted)/2 {
			at.layers = append(at.layers, l)
		}
	}
	return at, true
}

// finding says in one sentence where the answer is kept and where it is read.
func (r *Traced) finding() string {
	say := func(at tracePlace, by string) string {
		token := fmt.Sprintf("the token %q", strings.TrimSpace(r.Tokens[at.token]))
		if at.token == len(r.Tokens)-1 {
			token = "the last token"
		}
		return fmt.Sprintf("%s of %s in %s (up to %.2f)", by, token, layers(at.layers), at.p)
	}

	var parts []string
	if at, ok := r.strongestOf(r.MLP); ok {
		parts = append(parts, say(at, "the MLP"))
	}
	if at, ok := r.strongestOf(r.Attention); ok {
		parts = append(parts, say(at, "the attention"))
	}
	answer := strings.TrimSpace(r.Answer)
	if answer == "" {
		answer = r.Answer
	}
	if r.Corrupted >= 0.9*r.Clean {
		return fmt.Sprintf("Noise on %q does not take the answer away: the probability of %q is %.2g without it and "+
			"%.2g with it, so that nothing can be said about where it is kept.",
			r.Subject, answer, r.Clean, r.Corrupted)
	}
	if len(parts) == 0 {
		return fmt.Sprintf("Nothing that is restored brings %q back: with noise on %q its probability falls from %.2f "+
			"to %.2f and stays there.", r.Answer, r.Subject, r.Clean, r.Corrupted)
	}
	return fmt.Sprintf("With noise on %q the probability of %q falls from %.2f to %.2f; what brings most of it back "+
		"is %s.",
		r.Subject, r.Answer, r.Clean, r.Corrupted, strings.Join(parts, " and "))
}

// layers names layers in a sentence.
func layers(list []int) string {
	if len(list) == 1 {
		return fmt.Sprint("layer ", list[0])
	}
	return "layers " + cli.Spans(list)
}

// page draws the grids as the papers on causal tracing do: a row for each token, a column for each layer, one scale of
// colours for all of them.
func (r *Traced) page() *report.Page {
	s := report.Section{Title: "Where the answer comes from", Text: []string{
		r.finding(),
		fmt.Sprintf("Noise hides the subject (its tokens are marked *). Then one state of the undisturbed run is put "+
			"back, of one token in one layer, or of %d layers around it for MLP and attention, and the probability of "+
			"the answer is read again: the stronger a square, the more of the answer passes through that place. All "+
			"squares share one scale of colours; the figure is shown where the pointer rests on one.", r.Window),
	}, Facts: []report.Fact{
		{Name: "answer", Value: r.Answer},
		{Name: "its probability", Value: fmt.Sprintf("%.4f", r.Clean)},
		{Name: "with noise on the subject", Value: fmt.Sprintf("%.4f", r.Corrupted)},
	}}

	scale := [2]float64{r.Corrupted, r.Corrupted}
	for _, g := range r.grids() {
		for _, row := range g.values {
			scale[0], scale[1] = min(scale[0], slices.Min(row)), max(scale[1], slices.Max(row))
		}
	}

	for _, title := range []string{
		"State after the layer restored", fmt.Sprintf("MLP of %d layers restored", r.Window),
		fmt.Sprintf("Attention of %d layers restored", r.Window),
	} {
		g := r.grids()[len(s.Charts)]
		c := &report.Chart{
			Title: title, Kind: report.Cells, X: report.Axis{Label: "layer"}, Scale: scale,
			Format: "%.2f",
		}
		for b := range g.values[0] {
			c.Labels = append(c.Labels, fmt.Sprint(b))
		}

		for i, row := range g.values {
			name := strings.TrimSpace(r.Tokens[i])
			if i >= r.from && i < r.to {
				name += "*"
			}
			c.Series = append(c.Series, report.Series{Name: name, Y: row})
		}

		s.Charts = append(s.Charts, c)
	}

	return &report.Page{Title: "Causal trace", Subtitle: r.Prompt, Sections: []report.Section{s}}
}
