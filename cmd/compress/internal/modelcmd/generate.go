package modelcmd

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

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
	lm.Generated
	Experts string `json:"experts,omitempty"` // that answered, of a mediated folder
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

	m, err := openmodel.Open(j, path, lm.Options{}, openmodel.Options{Adapter: o.Adapter, Experts: o.Experts})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	tok, err := m.Tokenizer()
	if err != nil {
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

	o.Seed = j.Seed
	out := j.Stream()
	fmt.Fprint(out, o.Prompt)
	r, err := m.GenerateText(j.Ctx, tok, o.Prompt, lm.TextOptions{
		GenerateOptions: o.GenerateOptions, Text: func(piece string) { fmt.Fprint(out, piece) },
	})
	fmt.Fprintln(out)
	if err != nil {
		return nil, err
	}

	ended := len(r.IDs) > 0 && slices.Contains(m.StopTokens(), r.IDs[len(r.IDs)-1])
	if len(r.IDs) < o.MaxTokens && !ended {
		j.Note("ended after %d tokens: the model has %d positions", len(r.IDs), m.Config().MaxPositions)
	}

	return generateReport{Generated: *r, Experts: answers}, nil
}
