package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

type pplFlags struct {
	data       string
	convention string
	cut        corpus.CutOptions
	fast       bool
}

func (a *app) pplCmd() *cobra.Command {
	var o pplFlags
	cmd := a.newVerb("ppl MODEL --data FILE", "Measure the perplexity of a model on a text",
		"Measures perplexity, exp of the mean negative log-likelihood in nats per token, with its standard error over windows. "+
			"window: the text is cut into windows of --seqlen that do not overlap (what papers on pruning report). rolling: every "+
			"token is predicted once, windows overlap by --seqlen minus --stride. FILE: text, JSONL, or token ids (.safetensors, .json).",
		"compress ppl testdata/nano/base --data testdata/nano/text/test.txt --seqlen 256", cobra.ExactArgs(1),
		func(j *job, args []string) (any, error) { return ppl(j, args[0], o) })
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", "text, JSONL or token ids")
	f.IntVar(&o.cut.SeqLen, "seqlen", 0, "tokens of a window; 0 is 2048, or the model's positions if they are fewer")
	f.IntVar(&o.cut.Stride, "stride", 0, "rolling: tokens that each further window predicts; 0 is as many as fit")
	f.StringVar(&o.convention, "convention", string(corpus.Window), "window or rolling")
	f.IntVar(&o.cut.Limit, "limit", 0, "use the first windows only; 0 is all")
	f.BoolVar(&o.fast, "fast", false, "round activations to BF16 where weights are BF16 and the processor has dot products for it")
	require(cmd, "data")
	complete(cmd, "convention", string(corpus.Window), string(corpus.Rolling))
	return cmd
}

// pplReport is a measured perplexity.
type pplReport struct {
	Model      string         `json:"model"`
	Perplexity float64        `json:"ppl"`
	NLL        float64        `json:"nll"`        // nats per token
	Stderr     *float64       `json:"stderr"`     // of ppl, over windows; null for a single one
	NLLStderr  *float64       `json:"nll_stderr"` // of nll
	SeqLen     int            `json:"seqlen"`
	Stride     int            `json:"stride,omitempty"`
	Convention string         `json:"convention"`
	Windows    int            `json:"windows"`
	Tokens     int64          `json:"tokens"` // predicted
	Data       corpus.Windows `json:"data"`
	Notes      []string       `json:"notes,omitempty"`
}

// check looks at the ranges of the flags.
func (o *pplFlags) check() error {
	switch {
	case o.cut.SeqLen < 0 || o.cut.SeqLen == 1:
		return usagef("--seqlen %d: want 2 or more, or 0 for the default", o.cut.SeqLen)
	case o.cut.Stride < 0:
		return usagef("--stride %d: want 1 or more, or 0 for as many as fit", o.cut.Stride)
	case o.cut.Limit < 0:
		return usagef("--limit %d: want 1 or more, or 0 for all", o.cut.Limit)
	}
	return nil
}

func ppl(j *job, path string, o pplFlags) (any, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	precision := kernels.Exact
	if o.fast {
		precision = kernels.Fast
	}
	m, err := j.load(path, lm.Options{Precision: precision})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	o.cut.Convention = corpus.Mode(o.convention)
	w, err := cutFor(j, m, o.data, o.cut)
	if err != nil {
		return nil, err
	}
	r, err := measure(j, m, w)
	if err != nil {
		return nil, err
	}
	r.Convention, r.Stride = o.convention, o.cut.Stride
	if text := beyond(m, w.SeqLen); text != "" {
		r.Notes = append(r.Notes, text)
		j.note("%s", text)
	}
	t := &report.Table{Columns: report.Columns("perplexity|%.4f", "± |%.4f", "nll|%.6f", "seqlen", "tokens", "windows", "convention")}
	t.Add(r.Perplexity, orNone(r.Stderr), r.NLL, r.SeqLen, r.Tokens, r.Windows, r.Convention)
	printTable(j.out(), t)
	switch {
	case o.cut.Limit > 0 && r.Windows == o.cut.Limit:
		j.note("%s: --limit %d: what comes after is left out", o.data, o.cut.Limit)
	case w.Dropped > 0:
		j.note("%s: %d tokens at the end fill no window and are left out", o.data, w.Dropped)
	}
	return r, nil
}

// cutFor lays windows over a file for a model: no longer than it has positions, no id that it does not know.
func cutFor(j *job, m *lm.Model, path string, o corpus.CutOptions) (corpus.Windows, error) {
	tok, err := tokenizerOf(m)
	if err != nil {
		return corpus.Windows{}, err
	}
	if o.VocabSize = m.Config().Vocab; o.SeqLen == 0 {
		o.SeqLen = defaultLength(m)
	}
	return corpus.Cut(j.ctx, path, textOf(tok), o)
}

// defaultLength is 2048 tokens, or the model's positions if they are fewer.
func defaultLength(m *lm.Model) int {
	if p := m.Config().MaxPositions; p > 0 {
		return min(p, 2048)
	}
	return 2048
}

// beyond says that windows are longer than a model was made for; "" if they are not.
func beyond(m *lm.Model, seqlen int) string {
	if p := m.Config().MaxPositions; p > 0 && seqlen > p {
		return fmt.Sprintf("windows of %d tokens are longer than the %d positions of the model's configuration", seqlen, p)
	}
	return ""
}

// batchTokens is about how many tokens are run at a time.
const batchTokens = 8192

// measure runs the windows through the model.
func measure(j *job, m *lm.Model, w corpus.Windows) (*pplReport, error) {
	r, _, err := measureWindows(j, m, w)
	return r, err
}

// measureWindows also gives the losses of every window.
func measureWindows(j *job, m *lm.Model, w corpus.Windows) (*pplReport, *sums, error) {
	bar := j.progress("measuring", int64(len(w.IDs)))
	defer bar.end()
	s := &sums{}
	batch := max(1, batchTokens/max(w.SeqLen, 1))
	for at := 0; at < len(w.IDs); at += batch {
		end := min(at+batch, len(w.IDs))
		o := lm.ForwardOptions{}
		if w.Labels != nil {
			o.Labels = w.Labels[at:end]
		}
		r, err := m.Forward(j.ctx, w.IDs[at:end], o)
		if err != nil {
			return nil, nil, err
		}
		for i, row := range r.LossPerToken {
			s.add(row, w, at+i)
		}
		bar.set(int64(end))
	}
	nll, se := s.mean()
	if math.IsNaN(nll) || math.IsInf(nll, 0) {
		return nil, nil, fmt.Errorf("%s: the loss on %s is %g (HINT: compress inspect %s --verify finds weights that are not finite)", m.Path(), w.Source, nll, m.Path())
	}
	p := math.Exp(nll)
	return &pplReport{
		Model: m.Path(), Perplexity: p, NLL: nll, Stderr: scaled(se, p), NLLStderr: se,
		SeqLen: w.SeqLen, Windows: len(w.IDs), Tokens: s.tokens, Data: w,
	}, s, nil
}

// scaled multiplies a figure that may be missing.
func scaled(v *float64, by float64) *float64 {
	if v == nil {
		return nil
	}
	p := *v * by
	return &p
}

// orNone is a table's cell for a figure that may be missing.
func orNone(v *float64) any {
	if v == nil {
		return "n/a"
	}
	return *v
}
