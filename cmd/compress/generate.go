package main

import (
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

type generateFlags struct {
	prompt string
	o      lm.GenerateOptions
}

func (a *app) generateCmd() *cobra.Command {
	var o generateFlags
	cmd := a.newVerb("generate MODEL --prompt S", "Continue a text",
		"Continues the prompt until --max-tokens or an end token, printing text as it comes. Temperature 0, the default, always takes "+
			"the likeliest token; otherwise tokens are drawn, the same ones for the same --seed.",
		"compress generate testdata/nano/base --prompt 'Question: 14 + 6 =' --max-tokens 8", cobra.ExactArgs(1),
		func(j *job, args []string) (any, error) { return generate(j, args[0], o) })
	f := cmd.Flags()
	f.StringVar(&o.prompt, "prompt", "", "text to continue")
	f.IntVar(&o.o.MaxTokens, "max-tokens", 64, "tokens to add at most")
	f.Float64Var(&o.o.Temperature, "temperature", 0, "0 is greedy")
	f.Float64Var(&o.o.TopP, "top-p", 0, "draw from the likeliest tokens that make up this share; 0 is all")
	f.IntVar(&o.o.TopK, "top-k", 0, "draw from this many likeliest tokens; 0 is all")
	require(cmd, "prompt")
	return cmd
}

// generateReport is a generated text.
type generateReport struct {
	Prompt    string  `json:"prompt"`
	Text      string  `json:"text"` // without the prompt
	PromptIDs []int32 `json:"prompt_ids"`
	IDs       []int32 `json:"ids"`
	PerSecond float64 `json:"tokens_per_second"`
}

// check looks at the ranges of the flags.
func (o *generateFlags) check() error {
	g := o.o
	switch {
	case g.MaxTokens < 1:
		return usagef("--max-tokens %d: want 1 or more", g.MaxTokens)
	case !(g.Temperature >= 0) || math.IsInf(g.Temperature, 0):
		return usagef("--temperature %g: want 0 or more", g.Temperature)
	case g.TopK < 0:
		return usagef("--top-k %d: want 0 or more", g.TopK)
	case !(g.TopP >= 0 && g.TopP <= 1):
		return usagef("--top-p %g: want 0 to 1", g.TopP)
	}
	return nil
}

func generate(j *job, path string, o generateFlags) (any, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := modelFolder(path); err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(path)
	if err != nil {
		return nil, err
	}
	m, err := j.load(path, lm.Options{})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := checkpoint.FitTokenizer(path, tok, m.Config()); err != nil {
		return nil, err
	}
	prompt, err := tok.Encode(o.prompt, tokenizer.EncodeOptions{})
	if err != nil {
		return nil, err
	}
	s := newStream(j, tok, prompt)
	fmt.Fprint(j.out(), o.prompt)
	o.o.Seed, o.o.Each = j.seed, s.token
	start := time.Now()
	ids, err := m.Generate(j.ctx, prompt, o.o)
	fmt.Fprintln(j.out(), s.rest())
	if err != nil {
		return nil, err
	}
	if stop := m.StopTokens(); len(ids) < o.o.MaxTokens && (len(ids) == 0 || !slices.Contains(stop, ids[len(ids)-1])) {
		j.note("ended after %d tokens: the model has %d positions", len(ids), m.Config().MaxPositions)
	}
	return generateReport{
		Prompt: o.prompt, Text: s.text(), PromptIDs: prompt, IDs: ids,
		PerSecond: float64(len(ids)) / time.Since(start).Seconds(),
	}, nil
}

// stream prints tokens as whole characters.
type stream struct {
	j     *job
	tok   *tokenizer.Tokenizer
	ids   []int32 // the prompt's too: how a token is spelt depends on what is before it
	start int     // bytes of the prompt's text
	shown int     // bytes, the prompt's too
}

func newStream(j *job, tok *tokenizer.Tokenizer, prompt []int32) *stream {
	n := len(tok.Decode(prompt, true))
	return &stream{j: j, tok: tok, ids: append([]int32{}, prompt...), start: n, shown: n}
}

// token takes the next token; text that ends inside a character waits for the rest of it.
func (s *stream) token(id int32) bool {
	s.ids = append(s.ids, id)
	text := s.tok.Decode(s.ids, true)
	if r, _ := utf8.DecodeLastRuneInString(text); r == utf8.RuneError || s.shown > len(text) {
		return true
	}
	fmt.Fprint(s.j.out(), text[s.shown:])
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
