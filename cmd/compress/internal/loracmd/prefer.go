package loracmd

import (
	"context"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// Preferring is what the flags say about preferences.
type Preferring struct {
	Objective string // "": the tokens of the data
	Weights   lora.Prefer
}

// settle reads what is said about the loss; nil where the tokens of the data are learned.
func (p *Preferring) settle(taught bool) (*lora.Prefer, error) {
	switch {
	case p.Objective == "" || p.Objective == tokens:
		return nil, nil
	case taught:
		return nil, cli.Usagef("--objective %s and --teacher exclude each other: a training learns preferences or "+
			"what a teacher predicts", p.Objective)
	}

	o := p.Weights
	o.Objective = p.Objective
	return &o, cli.Usage(o.Validate())
}

// right says what the accuracy of rewards counts.
func (p *Preferring) right() string {
	if p.Objective == preferenceOfOne {
		return "answers have rewards on their own side"
	}
	return "the better answer has the higher reward"
}

// preferenceOfOne is the objective whose records have one answer, good or bad.
const preferenceOfOne = "kto"

// tokens is the objective of a training that learns the tokens of its data.
const tokens = "tokens"

// Objectives are the values of --objective.
var Objectives = append([]string{tokens}, lora.Objectives...)

// read reads a file of the objective's kind; good are the marks of kto.
func (p *Preferring) read(ctx context.Context, path string, m *lm.Model, t lora.Tokenizer, o lora.DataOptions) (
	w corpus.Windows, good []bool, counts lora.DataCounts, err error,
) {
	if p.Objective == "" || p.Objective == tokens {
		w, counts, err = lora.Read(ctx, path, m, t, o)
		return w, nil, counts, err
	}
	return lora.ReadPreferences(ctx, path, m, t, o, p.Objective)
}
