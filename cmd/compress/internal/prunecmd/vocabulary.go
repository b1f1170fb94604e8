package prunecmd

import (
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/perplexity"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer/trim"
	"github.com/modelcompress/compress/prune/vocabulary"
)

// Vocabulary are the settings of trimming the vocabulary.
type Vocabulary struct {
	From     []string // files of text; empty: the vocabulary stays
	HeldOut  string   // file of text to count on what is encoded differently, beside that of a perplexity; empty: none
	MinCount int64
	Size     int
}

// check looks at the ranges of the flags.
func (v *Vocabulary) check() error {
	switch {
	case v.MinCount < 1:
		return cli.Usagef("--vocab-min-count %d: want 1 or more", v.MinCount)
	case v.Size < 0:
		return cli.Usagef("--vocab-size %d: want 1 or more, or 0 for what the text needs", v.Size)
	}
	return nil
}

// VocabularyReport is the library's report with what the command line adds.
type VocabularyReport struct {
	*vocabulary.Report
	Out        string            `json:"out"`
	Perplexity *bytesBeforeAfter `json:"perplexity,omitempty"`
}

// bytesBeforeAfter is a perplexity on the same text before and after, also by bytes: after trimming the text has other
// tokens, so that figures by token are not those of the same things.
type bytesBeforeAfter struct {
	perplexity.BeforeAfter
	BitsBefore float64 `json:"bits_per_byte_before"`
	BitsAfter  float64 `json:"bits_per_byte_after"`
}

// CheckVocabulary finds what is wrong with flags by themselves.
func CheckVocabulary(o Options) error { return o.Vocabulary.check() }

// TrimVocabulary trims a model's vocabulary into a folder and prints what became of it.
func TrimVocabulary(j *cli.Job, path string, o Options) (*VocabularyReport, error) {
	if err := o.Vocabulary.check(); err != nil {
		return nil, err
	}
	if err := o.checkPlaces(j, path); err != nil {
		return nil, err
	}
	if err := openmodel.OnlyWeights(path); err != nil {
		return nil, err
	}

	total := int64(0)
	for _, name := range o.Vocabulary.From {
		st, err := os.Stat(name)
		if err != nil {
			return nil, fmt.Errorf("--vocab-from: %w", err)
		}
		total += st.Size()
	}

	m, err := j.Load(path, lm.Options{Stream: true, Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	var heldOut []string
	for _, name := range []string{o.Vocabulary.HeldOut, o.PPL} {
		if name != "" && !slices.Contains(heldOut, name) {
			heldOut = append(heldOut, name)
		}
	}

	bar := j.Bars()
	defer bar.End()
	done, err := vocabulary.Trim(j.Ctx, m, vocabulary.Options{
		From: o.Vocabulary.From, HeldOut: heldOut, MinCount: o.Vocabulary.MinCount, Size: o.Vocabulary.Size,
		Out: o.Out, Overwrite: o.Overwrite, Resume: o.Resume,
		Progress: func(stage string, done int64) { bar.Show(stage, min(done, total), total) },
	})
	bar.End()
	if err != nil {
		return nil, err
	}

	r := &VocabularyReport{Report: done, Out: o.Out}
	if o.PPL != "" {
		size := done.HeldOut[len(done.HeldOut)-1].Changed.Bytes
		if r.Perplexity, err = trimmedPerplexity(j, m, o, size); err != nil {
			return nil, err
		}
	}

	if err := j.WriteCard(o.Out, path, r.card(path)); err != nil {
		return nil, err
	}
	r.print(j)
	return r, nil
}

// trimmedPerplexity measures both models on the held-out text, every token of which is predicted once: the sums are
// then over the same bytes.
func trimmedPerplexity(j *cli.Job, m *lm.Model, o Options, size int64) (*bytesBeforeAfter, error) {
	cut := corpus.CutOptions{Convention: corpus.Rolling, SeqLen: o.SeqLen}
	w, err := j.Cut(m, o.PPL, cut)
	if err != nil {
		return nil, err
	}

	before, _, err := perplexity.Windows(j, stageBefore, m, w)
	if err != nil {
		return nil, err
	}
	after, err := perplexity.Folder(j, stageAfter, o.Out, o.PPL, cut)
	if err != nil {
		return nil, err
	}
	before.Convention, after.Convention = string(cut.Convention), string(cut.Convention)

	bits := func(r *perplexity.Report) float64 {
		return r.NLL * float64(r.Tokens) / math.Ln2 / float64(max(size, 1))
	}
	return &bytesBeforeAfter{perplexity.BeforeAfter{Before: before, After: after}, bits(before), bits(after)}, nil
}

// print shows the result.
func (r *VocabularyReport) print(j *cli.Job) {
	t := &report.Table{Columns: report.Columns("", "before", "after", "stays %|%.2f")}
	stays := func(after, before int64) float64 { return 100 * float64(after) / float64(before) }
	t.Add("tokens", r.Before, r.After, stays(int64(r.After), int64(r.Before)))
	t.Add("rows of the token table", r.Rows, r.RowsAfter, stays(int64(r.RowsAfter), int64(r.Rows)))
	t.Add("weights", cli.Size(r.Bytes), cli.Size(r.BytesAfter), stays(r.BytesAfter, r.Bytes))
	t.Note = fmt.Sprintf("%d tokens of the text, %d added, named or of the alphabet, %d parts of these, %d to fill up",
		r.Reasons.Text, r.Reasons.Rules, r.Reasons.Parts, r.Reasons.Filled)
	if n := r.Reasons.Cut; n > 0 {
		t.Note += fmt.Sprintf("; %d tokens of the text had no room", n)
	}
	j.Table(t)

	t = &report.Table{
		Columns: report.Columns("encoded differently", "documents", "of", "%|%.2f", "tokens", "of", "%|%.2f"),
	}
	add := func(name string, c *trim.Change) {
		t.Add(name, c.Changed, c.Documents, 100*c.Share(), c.Lost, c.Tokens, 100*c.TokenShare())
	}
	for i := range r.Texts {
		add(r.Texts[i].Path, &r.Texts[i].Changed)
	}
	for i := range r.HeldOut {
		add(r.HeldOut[i].Path+" (held out)", &r.HeldOut[i].Changed)
	}
	j.Table(t)

	if p := r.Perplexity; p != nil {
		t := &report.Table{
			Columns: report.Columns("held-out text", "bits a byte|%.4f", "perplexity|%.4f", "tokens"),
			Note:    "bits a byte can be compared; a perplexity is by token, and the tokens are others",
		}
		t.Add("before", p.BitsBefore, p.Before.Perplexity, p.Before.Tokens)
		t.Add("after", p.BitsAfter, p.After.Perplexity, p.After.Tokens)
		j.Table(t)
	}

	if l := r.Logits; l != nil {
		same := "the same to the last bit"
		if !l.Equal {
			same = fmt.Sprintf("the same to %.3g", l.MaxAbs)
		}
		j.Printf("logits of the tokens that stayed: %s at %d positions; they had %.3f %% of the probability\n", same,
			l.Positions, 100*l.Mass)
	}
	for _, name := range r.LeftOut {
		j.Note("%s repeats the vocabulary in another form and was left out", name)
	}
	for _, n := range r.Notes {
		j.Note("%s", n)
	}
	j.Printf("written to %s in %.1f s\n", r.Out, j.Elapsed().Seconds())
}
