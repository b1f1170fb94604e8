// Package perplexity takes the perplexity of models.
package perplexity

import (
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// Options are the settings of a measurement.
type Options struct {
	Data       string            // text, JSONL or token ids
	Convention string            // how windows lie: corpus.Window or corpus.Rolling
	Cut        corpus.CutOptions // windows
	cli.Compute
	Adapter string // folder of an adapter that is applied first; empty: none
	Experts string // which experts of a mediated folder answer
	Against string // model to compare with on the same text; empty: none
	Answers Answers
}

// Report is a measured perplexity, and what the command line adds.
type Report struct {
	lm.PerplexityReport
	Bytes   int64          `json:"model_bytes"` // of the weights, as they are stored
	Against *Against       `json:"against,omitempty"`
	Notes   []string       `json:"notes,omitempty"`
	Experts map[string]int `json:"experts,omitempty"` // windows by the experts that answered, of a mediated folder
	Records *Records       `json:"records,omitempty"` // where answers alone were scored
}

// Against is a comparison with another model on the same text.
type Against struct {
	Model string  `json:"model"`
	PPL   float64 `json:"ppl"`
	NLL   float64 `json:"nll"`
	*lm.Divergence
	// Paired tests whether the losses differ, window by window; nil for a single window.
	Paired *stats.Versus `json:"paired,omitempty"`
}

// check looks at the ranges of the flags.
func (o *Options) check() error {
	switch {
	case o.Cut.SeqLen < 0 || o.Cut.SeqLen == 1:
		return cli.Usagef("--seqlen %d: want 2 or more, or 0 for the default", o.Cut.SeqLen)
	case o.Cut.Stride < 0:
		return cli.Usagef("--stride %d: want 1 or more, or 0 for as many as fit", o.Cut.Stride)
	case o.Cut.Limit < 0:
		return cli.Usagef("--limit %d: want 1 or more, or 0 for all", o.Cut.Limit)
	case o.Positions != 0 && o.Against != "":
		return cli.Usagef("--kv-positions and --against exclude each other (HINT: measure without --kv-positions too)")
	}
	if err := o.Answers.check(o); err != nil {
		return err
	}
	return o.CheckPositions()
}

// Perplexity measures a model in a folder on the text that the options name, and prints it.
func Perplexity(j *cli.Job, path string, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}

	m, err := openmodel.Open(j, path, o.Compute.Options(),
		openmodel.Options{Adapter: o.Adapter, Experts: o.Experts})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	var w corpus.Windows
	var records *Records
	if o.Answers.On {
		o.Convention = answersConvention
		w, records, err = o.Answers.read(j, m.Model, o.Data, o.Cut)
	} else {
		o.Cut.Convention = corpus.Mode(o.Convention)
		w, err = j.Cut(m.Model, o.Data, o.Cut)
	}
	if err != nil {
		return nil, err
	}

	var r *Report
	if o.Against != "" {
		if m.Experts != nil {
			return nil, cli.Usagef("--against: the experts of %s answer differently from window to window", path)
		}
		r, err = compared(j, m.Model, w, o.Against, o.Compute)
	} else {
		asked := w.IDs
		if o.Answers.On {
			asked = prompts(w)
		}
		r, err = routed(j, m.Model, w, asked, m.Experts, o.Positions)
	}
	if err != nil {
		return nil, err
	}

	r.Convention, r.Stride, r.Records = o.Convention, o.Cut.Stride, records

	if text := cli.Beyond(m.Model, w.SeqLen); text != "" {
		r.Notes = append(r.Notes, text)
		j.Note("%s", text)
	}

	t := &report.Table{
		Columns: report.Columns("perplexity|%.4f", "± |%.4f", "nll|%.6f", "seqlen", "tokens", "windows", "convention"),
	}
	t.Add(r.Perplexity, OrNone(r.Stderr), r.NLL, r.SeqLen, r.Tokens, r.Windows, r.Convention)
	j.Table(t)
	r.Against.print(j)

	switch {
	case o.Cut.Limit > 0 && r.Windows == o.Cut.Limit:
		j.Note("%s: --limit %d: what comes after is left out", o.Data, o.Cut.Limit)
	case w.Dropped > 0:
		j.Note("%s: %d tokens at the end fill no window and are left out", o.Data, w.Dropped)
	}
	if records != nil {
		records.note(j, w, o.Cut.SeqLen)
	}

	return r, nil
}

// Windows runs windows through a model and also gives the losses of every window. name is that of the progress.
func Windows(j *cli.Job, name string, m *lm.Model, w corpus.Windows) (*Report, *lm.SequenceLosses, error) {
	bar := newMeter(j, name, m, w)
	defer bar.end()

	s, err := m.SequenceLosses(j.Ctx, w, bar.add)
	if err != nil {
		return nil, nil, err
	}

	r, err := summarise(m, w, s)
	return r, s, err
}

// routed runs windows through a model with experts, those that are routed alike together; experts may be nil. asked are
// the beginnings of the windows by which they are routed.
func routed(j *cli.Job, m *lm.Model, w corpus.Windows, asked [][]int32, experts *openmodel.Experts, positions int) (
	*Report, error,
) {
	if experts == nil {
		r, _, err := Windows(j, "measuring", m, w)
		return r, err
	}

	bar := newMeter(j, "measuring", m, w)
	defer bar.end()

	if experts.BySentence() && positions > 0 {
		return nil, cli.Usagef("--kv-positions and experts by sentence exclude each other (HINT: leave out one)")
	}
	if experts.BySentence() {
		return bySentence(j, m, w, asked, experts)
	}

	groups, err := experts.Groups(j.Ctx, asked)
	if err != nil {
		return nil, err
	}

	all := &lm.SequenceLosses{Loss: make([]float64, len(w.IDs)), Count: make([]float64, len(w.IDs))}
	for _, g := range groups {
		part := w
		part.IDs, part.Labels = nil, nil
		for _, i := range g.At {
			part.IDs = append(part.IDs, w.IDs[i])
			if w.Labels != nil {
				part.Labels = append(part.Labels, w.Labels[i])
			}
		}

		if err := experts.Use(g.Weights); err != nil {
			return nil, err
		}

		s, err := m.SequenceLosses(j.Ctx, part, bar.add)
		if err != nil {
			return nil, err
		}

		all.Tokens += s.Tokens
		for k, i := range g.At {
			all.Loss[i] = s.Loss[k]
			all.Count[i] = s.Count[k]
		}
	}

	r, err := summarise(m, w, all)
	if err == nil {
		r.Experts = experts.Used()
	}

	return r, err
}

// bySentence measures windows one after another, the sentences of what is asked in their ways, and what follows as the
// last of them.
func bySentence(j *cli.Job, m *lm.Model, w corpus.Windows, asked [][]int32, experts *openmodel.Experts) (
	*Report, error,
) {
	bar := newMeter(j, "measuring", m, w)
	defer bar.end()

	all := &lm.SequenceLosses{}
	for i, ids := range w.IDs {
		labels := ids
		if w.Labels != nil {
			labels = w.Labels[i]
		}

		losses, err := sentences(j, m, experts, len(asked[i]), ids, labels)
		if err != nil {
			return nil, fmt.Errorf("window %d: %w", i, err)
		}
		all.Add(losses, labels)
		bar.add(m.LossWork(corpus.Windows{IDs: [][]int32{ids}}))
	}

	r, err := summarise(m, w, all)
	if err == nil {
		r.Experts = experts.Used()
	}
	return r, err
}

// sentences gives the loss of each token of a window after the first, 0 where its label does not count. The first asked
// tokens are routed.
func sentences(j *cli.Job, m *lm.Model, experts *openmodel.Experts, asked int, ids, labels []int32) (
	[]float64, error,
) {
	s, err := m.NewSession(lm.SessionOptions{})
	if err != nil {
		return nil, err
	}
	defer s.Close()

	losses := make([]float64, max(0, len(ids)-1))
	err = experts.EachPiece(j.Ctx, ids[:asked], func(begin, end int) error {
		if end == asked {
			end = len(ids)
		}
		h, err := m.Step(j.Ctx, []*lm.Session{s}, [][]int32{ids[begin:end]})
		if err != nil {
			return err
		}
		defer h.Free()

		var rows []int32
		var want [][]int32
		for at := begin; at < min(end, len(losses)); at++ {
			if labels[at+1] != corpus.Ignore {
				rows, want = append(rows, int32(at-begin)), append(want, labels[at+1:at+2])
			}
		}

		found, best, err := m.Score(j.Ctx, h, rows, want)
		for k, row := range rows {
			if err == nil && best[k] < 0 {
				err = fmt.Errorf("token %d: %w", begin+int(row), lm.ErrNonFinite)
			}
			if err == nil {
				losses[begin+int(row)] = found[k][0]
			}
		}
		return err
	})
	return losses, err
}

// compared measures a model and how far its predictions are from those of another.
func compared(j *cli.Job, m *lm.Model, w corpus.Windows, path string, c cli.Compute) (*Report, error) {
	load := c.Options()
	load.Stream = true
	load.KVBits = 0 // what they cost is of interest, which nothing would show if both had them
	baseline, err := j.Load(path, load)
	if err != nil {
		return nil, err
	}
	defer baseline.Close()

	bar := &meter{bar: j.Progress("measuring", m.LossWork(w)+baseline.LossWork(w))}
	defer bar.end()
	d, err := m.DivergenceFrom(j.Ctx, baseline, w, bar.add)
	if err != nil {
		return nil, err
	}

	r, err := summarise(m, w, d.Losses)
	if err != nil {
		return nil, err
	}
	was, err := summarise(baseline, w, d.BaselineLosses)
	if err != nil {
		return nil, err
	}

	r.Against = &Against{Model: path, PPL: was.Perplexity, NLL: was.NLL, Divergence: d}
	if len(w.IDs) > 1 {
		test := stats.NewVersus(d.Losses.Means(), d.BaselineLosses.Means())
		test.Best = path
		test.Adjusted = test.P // one test
		r.Against.Paired = test
	}
	return r, nil
}

// print shows what a comparison has found; nothing for nil.
func (a *Against) print(j *cli.Job) {
	if a == nil {
		return
	}

	t := &report.Table{Columns: report.Columns("against", "perplexity|%.4f", "KL, nats|%.6f", "± |%.6f",
		"median|%.6f", "99 %|%.4f", "same top|%.2f %%")}
	t.Add(a.Model, a.PPL, a.KL, OrNone(a.Stderr), a.Median, a.P99, 100*a.Same)
	j.Table(t)
	if p := a.Paired; p != nil {
		j.Printf("nll %+.5f ± %.5f nats a token over %d windows in pairs, p %.2g\n", p.Difference, p.Stderr,
			p.Windows, p.P)
	}
}

// meter is the progress of a measurement.
type meter struct {
	bar  *cli.Progress
	done int64
}

func newMeter(j *cli.Job, name string, m *lm.Model, w corpus.Windows) *meter {
	return &meter{bar: j.Progress(name, m.LossWork(w))}
}

func (p *meter) add(more int64) {
	p.done += more
	p.bar.Set(p.done)
}

func (p *meter) end() { p.bar.End() }

// summarise makes the report of losses.
func summarise(m *lm.Model, w corpus.Windows, s *lm.SequenceLosses) (*Report, error) {
	r, err := s.Perplexity(m, w)
	if err != nil {
		return nil, err
	}
	return &Report{PerplexityReport: *r, Bytes: m.DataSize()}, nil
}

// OrNone is a table's cell for a figure that may be missing.
func OrNone(v *float64) any {
	if v == nil {
		return "n/a"
	}
	return *v
}

// Folder measures a model in a folder on a file. name is that of the progress.
func Folder(j *cli.Job, name, path, data string, o corpus.CutOptions) (*Report, error) {
	return Adapted(j, name, path, "", data, o)
}

// Adapted is Folder with an adapter; an empty name means none.
func Adapted(j *cli.Job, name, path, adapter, data string, o corpus.CutOptions) (*Report, error) {
	m, err := j.Load(path, lm.Options{Stream: true, Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	_, undo, err := openmodel.AttachAdapter(j, m, adapter)
	if err != nil {
		return nil, err
	}
	defer undo()

	w, err := j.Cut(m, data, o)
	if err != nil {
		return nil, err
	}

	r, _, err := Windows(j, name, m, w)
	return r, err
}
