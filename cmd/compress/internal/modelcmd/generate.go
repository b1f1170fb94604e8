package modelcmd

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// GenerateOptions say what is continued, and how.
type GenerateOptions struct {
	Prompt string
	lm.GenerateOptions
	Adapter string // folder of an adapter to apply first; empty: none
	Experts string // which experts of a mediated folder answer
}

// generateReport is a generated text.
type generateReport struct {
	Prompt    string  `json:"prompt"`
	Text      string  `json:"text"` // without the prompt
	PromptIDs []int32 `json:"prompt_ids"`
	IDs       []int32 `json:"ids"`
	PerSecond float64 `json:"tokens_per_second"`
	Experts   string  `json:"experts,omitempty"` // that answered, of a mediated folder
}

// check looks at the ranges of the flags.
func (o *GenerateOptions) check() error {
	g := o.GenerateOptions
	switch {
	case !utf8.ValidString(o.Prompt):
		return cli.Usagef("--prompt: not valid UTF-8")
	case g.MaxTokens < 1:
		return cli.Usagef("--max-tokens %d: want 1 or more", g.MaxTokens)
	case !(g.Temperature >= 0) || math.IsInf(g.Temperature, 0):
		return cli.Usagef("--temperature %g: want 0 or more", g.Temperature)
	case g.TopK < 0:
		return cli.Usagef("--top-k %d: want 0 or more", g.TopK)
	case !(g.TopP >= 0 && g.TopP <= 1):
		return cli.Usagef("--top-p %g: want 0 to 1", g.TopP)
	}

	return nil
}

// Generate continues a text, printing it as it comes.
func Generate(j *cli.Job, path string, o GenerateOptions) (any, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := cli.ModelFolder(path); err != nil {
		return nil, err
	}

	tok, err := tokenizer.Load(path)
	if err != nil {
		return nil, err
	}

	m, err := openmodel.Open(j, path, lm.Options{}, openmodel.Options{Adapter: o.Adapter, Experts: o.Experts})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	if err := checkpoint.FitTokenizer(path, tok, m.Config()); err != nil {
		return nil, err
	}

	prompt, err := tok.Encode(o.Prompt, tokenizer.EncodeOptions{})
	if err != nil {
		return nil, err
	}

	if len(prompt) == 0 {
		return nil, cli.Usagef("--prompt is empty, and the tokenizer puts no start token before it: there is " +
			"nothing to continue")
	}

	answers, err := m.Experts.EnterFor(j.Ctx, prompt)
	if err != nil {
		return nil, err
	}

	s := newStream(j.Stream(), tok, prompt)
	fmt.Fprint(s.out, o.Prompt)
	o.Seed, o.Each = j.Seed, s.token
	start := time.Now()
	ids, err := m.Generate(j.Ctx, prompt, o.GenerateOptions)
	fmt.Fprintln(s.out, s.rest())
	if err != nil {
		return nil, err
	}

	if stop := m.StopTokens(); len(ids) < o.MaxTokens && (len(ids) == 0 || !slices.Contains(stop, ids[len(ids)-1])) {
		j.Note("ended after %d tokens: the model has %d positions", len(ids), m.Config().MaxPositions)
	}

	return generateReport{
		Prompt: o.Prompt, Text: s.text(), PromptIDs: prompt, IDs: ids,
		PerSecond: float64(len(ids)) / time.Since(start).Seconds(), Experts: answers,
	}, nil
}

// stream prints tokens as whole characters.
type stream struct {
	out   io.Writer
	tok   *tokenizer.Tokenizer
	ids   []int32 // the prompt's too: how a token is spelt depends on what is before it
	start int     // bytes of the prompt's text
	shown int     // bytes, the prompt's too
}

func newStream(out io.Writer, tok *tokenizer.Tokenizer, prompt []int32) *stream {
	n := len(tok.Decode(prompt, true))
	return &stream{out: out, tok: tok, ids: append([]int32{}, prompt...), start: n, shown: n}
}

// token takes the next token; text that ends inside a character waits for the rest of it.
func (s *stream) token(id int32) bool {
	s.ids = append(s.ids, id)
	text := s.tok.Decode(s.ids, true)
	if r, _ := utf8.DecodeLastRuneInString(text); r == utf8.RuneError || s.shown > len(text) {
		return true
	}
	fmt.Fprint(s.out, text[s.shown:])
	s.shown = len(text)
	return true
}

// text is everything after the prompt.
func (s *stream) text() string {
	text := s.tok.Decode(s.ids, true)
	return text[min(s.start, len(text)):]
}

// rest is what has not been shown yet.
func (s *stream) rest() string {
	text := s.tok.Decode(s.ids, true)
	return text[min(s.shown, len(text)):]
}
