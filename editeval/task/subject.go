package task

import (
	"context"

	"github.com/modelcompress/compress/editeval/task/internal/engine"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// subject is what is evaluated: what answers requests, and what the results say of it.
type subject struct {
	answerer
	tok    engine.Tokens
	limit  int // tokens of a sequence
	scored int // and of one whose likelihood is asked for, without its last token
	// report lets somebody be told of answers, in tokens.
	report func(done func(tokens int))
	// fingerprint is a hash of all that an answer depends on beside the request.
	fingerprint func(ctx context.Context) (string, error)

	name       string
	source     string
	url        string // empty: it is in memory
	device     string
	parameters int64
	quantised  []lm.Quantised
	remarks    []string
}

// answerer answers requests; see [engine.Engine], whose methods these are.
type answerer interface {
	Likelihoods(ctx context.Context, seqs []engine.Sequence, known func(i int) bool,
		flush func(i []int, s []engine.Score) error) error
	Generate(ctx context.Context, prompts []engine.Prompt, known func(i int) bool,
		flush func(i int, t engine.Text) error) error
}

// local answers by a model in memory.
type local struct {
	*engine.Engine
	tok *tokenizer.Tokenizer
}

// Generate implements answerer.
func (l local) Generate(ctx context.Context, prompts []engine.Prompt, known func(i int) bool,
	flush func(i int, t engine.Text) error,
) error {
	return l.Engine.Generate(ctx, l.tok, prompts, known, flush)
}

// inMemory is a model that was loaded.
func inMemory(m *lm.Model, tok *tokenizer.Tokenizer, o *Options) *subject {
	limit := limitOf(m, o.MaxLength)
	eng := &engine.Engine{Model: m, Limit: limit, Slots: o.BatchSize}
	s := &subject{
		answerer: local{eng, tok}, tok: tok, limit: limit, scored: limit,
		report:      func(done func(tokens int)) { eng.Done = done },
		fingerprint: m.Fingerprint,
		name:        m.Path(), source: "compress", device: m.Device().Info().Name, parameters: m.NumParameters(),
	}
	s.quantised, s.remarks = m.Quantised()
	return s
}

// defaultLength is the context of a model whose configuration says nothing.
const defaultLength = 2048

// limitOf is how many tokens a sequence may have.
func limitOf(m *lm.Model, asked int) int {
	if asked > 0 {
		return asked
	}
	if p := m.Config().MaxPositions; p > 0 {
		return p
	}
	return defaultLength
}
