package perplexity

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// Answers are a measurement of the answers of records alone, as a training scores them.
type Answers struct {
	On       bool
	Template string // file with a chat template; empty: the tokenizer's
}

// answersConvention is what reports call such a measurement, beside the ways in which texts are cut.
const answersConvention = "answers"

// maxTemplate is the size of the largest chat template, in bytes.
const maxTemplate = 1 << 20

// Records says what became of the records of a measurement of answers.
type Records struct {
	lora.DataCounts
	Unscored int `json:"unscored"` // sequences without a token of an answer
}

// check looks at the flags that go with answers, and at those that do not.
func (a *Answers) check(o *Options) error {
	switch {
	case !a.On && a.Template != "":
		return cli.Usagef("--chat-template has no effect without --answers")
	case !a.On:
		return nil
	case o.Convention != string(corpus.Window):
		return cli.Usagef("--answers and --convention %s exclude each other: every record is a sequence of its own",
			o.Convention)
	case o.Cut.Stride != 0:
		return cli.Usagef("--answers and --stride exclude each other: every record is a sequence of its own")
	}
	return nil
}

// read reads the records of a file with the labels that a training has for them. Sequences without a token of an
// answer say nothing about the loss, and are left out.
func (a *Answers) read(j *cli.Job, m *lm.Model, path string, cut corpus.CutOptions) (corpus.Windows, *Records, error) {
	tok, err := cli.Tokenizer(m)
	if err != nil {
		return corpus.Windows{}, nil, err
	}

	var t lora.Tokenizer
	if tok != nil {
		t = tok
	}

	o := lora.DataOptions{SeqLen: cut.SeqLen}
	if a.Template != "" {
		text, err := safefile.ReadFile(a.Template, maxTemplate)
		if err != nil {
			return corpus.Windows{}, nil, err
		}
		o.Template = string(text)
	}

	w, counts, err := lora.Read(j.Ctx, path, m, t, o)
	if err != nil {
		return corpus.Windows{}, nil, err
	}

	r := &Records{DataCounts: counts}
	if r.Unscored, err = scored(&w, cut.Limit); err != nil {
		return corpus.Windows{}, nil, err
	}

	return w, r, nil
}

// prompts are the beginnings of records up to their first answer, by which a model with experts chooses: whoever asks
// it has no answer yet. A record that is all answer counts as a whole.
func prompts(w corpus.Windows) [][]int32 {
	list := slices.Clone(w.IDs)
	for i := range w.Labels {
		at := slices.IndexFunc(w.Labels[i], func(y int32) bool { return y != corpus.Ignore })
		if at > 0 {
			list[i] = w.IDs[i][:at]
		}
	}
	return list
}

// scored leaves out the sequences of which no token counts, and says how many there are; limit, unless 0, is how many
// of the others stay.
func scored(w *corpus.Windows, limit int) (without int, err error) {
	var ids, labels [][]int32
	for i, row := range w.IDs {
		of := row
		if w.Labels != nil {
			of = w.Labels[i]
		}

		// The first token of a sequence is predicted by nothing.
		if !slices.ContainsFunc(of[min(1, len(of)):], func(y int32) bool { return y != corpus.Ignore }) {
			without++
			continue
		}

		if limit == 0 || len(ids) < limit {
			ids, labels = append(ids, row), append(labels, of)
		}
	}

	if len(ids) == 0 {
		return 0, fmt.Errorf("%s: %w: no token of an answer in %d sequences (HINT: a larger --seqlen leaves room for "+
			"answers behind long prompts)", w.Source, corpus.ErrEmpty, without)
	}

	w.IDs, w.Labels = ids, labels
	w.Count, w.Hash = len(ids), corpus.HashIDs(ids)
	w.SeqLen = 0
	for _, row := range ids {
		w.SeqLen = max(w.SeqLen, len(row))
	}

	return without, nil
}

// note says what became of the records.
func (r *Records) note(j *cli.Job, w corpus.Windows, most int) {
	if r.Cut > 0 {
		at := ""
		if most > 0 {
			at = fmt.Sprintf(" (--seqlen %d)", most)
		}
		j.Note("%s: %d of %d records are too long%s: their ends are cut off", w.Source, r.Cut, r.DataCounts.Records, at)
	}
	if r.Unscored > 0 {
		j.Note("%s: %d sequences have no token of an answer and are left out", w.Source, r.Unscored)
	}

	for i, row := range w.Labels {
		if slices.Contains(row, corpus.Ignore) {
			break
		}
		if i == len(w.Labels)-1 {
			j.Note("%s: no record has a prompt or turns, so every token is scored", w.Source)
		}
	}
}
