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
	Prompt   string
	Prompted bool   // there is a prompt, which may be empty
	Chat     string // file of a conversation, or Terminal; empty: the prompt is continued as it stands
	System   string // message before a conversation
	lm.GenerateOptions
	Adapter string // folder of an adapter to apply first; empty: none
	Experts string // which experts of a mediated folder answer
	Draft   string // model that proposes tokens, or openmodel.Lookup; empty: none
	cli.Compute
}

// generateReport is a generated text.
type generateReport struct {
	lm.Generated
	Experts  string    `json:"experts,omitempty"`  // that answered, of a mediated folder
	Messages []message `json:"messages,omitempty"` // the whole conversation, with the answers; the last is Text
}

// message is a turn of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Check looks at the ranges of the flags.
func (o *GenerateOptions) Check() error {
	g := o.GenerateOptions
	switch {
	case !o.Prompted && o.Chat == "":
		return cli.Usagef("--prompt is not given (HINT: add --prompt TEXT, or --chat to talk with the model)")
	case o.System != "" && o.Chat == "":
		return cli.Usagef("--system is part of a chat (HINT: add --chat)")
	case !utf8.ValidString(o.System):
		return cli.Usagef("--system: not valid UTF-8")
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
	case !(g.MinP >= 0 && g.MinP <= 1):
		return cli.Usagef("--min-p %g: want 0 to 1", g.MinP)
	case g.DraftTokens < 0:
		return cli.Usagef("--draft-tokens %d: want 1 or more", g.DraftTokens)
	case g.DraftTokens > 0 && o.Draft == "":
		return cli.Usagef("--draft-tokens says how many tokens a draft proposes (HINT: add --draft MODEL, or --draft " +
			"lookup)")
	case o.Draft != "" && o.Positions != 0:
		return cli.Usagef("--draft and --kv-positions exclude each other: what a draft got wrong is taken back, and " +
			"evicted positions are not there to go back to")
	case !(g.RepetitionPenalty > 0) || math.IsInf(g.RepetitionPenalty, 0):
		return cli.Usagef("--repetition-penalty %g: want more than 0", g.RepetitionPenalty)
	}

	return o.CheckPositions()
}

// Generate continues a text, printing it as it comes.
func Generate(j *cli.Job, path string, o GenerateOptions) (any, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if err := cli.ModelFolder(path); err != nil {
		return nil, err
	}

	m, err := openmodel.Open(j, path, o.Compute.Options(), openmodel.Options{Adapter: o.Adapter, Experts: o.Experts})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}

	end, err := o.openDraft(j, m.Model)
	if err != nil {
		return nil, err
	}
	defer end()

	o.Seed = j.Seed
	if o.Chat != "" {
		return talking(j, m, tok, o)
	}

	prompt, err := tok.Encode(o.Prompt, tokenizer.EncodeOptions{})
	if err != nil {
		return nil, err
	}

	if len(prompt) == 0 {
		return nil, cli.Usagef("--prompt is empty, and the tokenizer puts no start token before it: there is " +
			"nothing to continue")
	}

	answers, err := o.enter(j, m, prompt)
	if o.Session != nil {
		defer o.Session.Close()
	}
	if err != nil {
		return nil, err
	}

	out := j.Stream()
	fmt.Fprint(out, o.Prompt)
	r, err := m.GenerateText(j.Ctx, tok, o.Prompt, lm.TextOptions{
		GenerateOptions: o.GenerateOptions, Text: func(piece string) { fmt.Fprint(out, piece) },
	})
	fmt.Fprintln(out)
	if err != nil {
		return nil, err
	}

	o.Stop = m.StopTokens()
	remarkEnd(j, m, r, o)
	if len(r.IDs) == 1 && slices.Contains(o.Stop, r.IDs[0]) {
		name, _ := tok.Token(r.IDs[0])
		j.Note("the model ended at once with %s; instruct models want --chat", name)
	}

	return generateReport{Generated: *r, Experts: answers}, nil
}

// enter routes a prompt, of which sentences that go different ways are then in a session, and says who answers.
func (o *GenerateOptions) enter(j *cli.Job, m *openmodel.Model, prompt []int32) (answers string, err error) {
	if !m.Experts.BySentence() {
		return m.Experts.EnterFor(j.Ctx, prompt)
	}

	if o.Session == nil {
		if o.Session, err = m.NewSession(lm.SessionOptions{KeepAll: true}); err != nil {
			return "", err
		}
	}
	answers, err = m.Experts.Read(j.Ctx, o.Session, prompt)
	if err == nil {
		j.Note("experts: %s", answers)
	}
	return answers, err
}

// openDraft opens what proposes tokens. The function that it returns closes it.
func (o *GenerateOptions) openDraft(j *cli.Job, m *lm.Model) (end func(), err error) {
	begin, _, closeIt, err := openmodel.Drafts(j, m, o.Draft, o.Compute.Options())
	if begin == nil || err != nil {
		return closeIt, err
	}

	d, endDraft, err := begin()
	if err != nil {
		closeIt()
		return nil, err
	}
	o.GenerateOptions.Draft = d
	return func() {
		endDraft()
		closeIt()
	}, nil
}

// remarkDraft says what came of a draft.
func remarkDraft(j *cli.Job, r *lm.Generated) {
	d := r.Draft
	switch {
	case d == nil || d.Passes == 0:
	case d.Alone == d.Passes:
		j.Note("draft: nothing was proposed in %d passes", d.Passes)
	default:
		j.Note("draft: %d of %d proposed tokens were taken, %.2f tokens a pass; %d of %d passes without the draft",
			d.Accepted, d.Proposed, d.PerPass, d.Alone, d.Passes)
	}
}

// remarkEnd says why a text ended where it did, if neither the model nor the user wanted that.
func remarkEnd(j *cli.Job, m *openmodel.Model, r *lm.Generated, o GenerateOptions) {
	ended := len(r.IDs) > 0 && slices.Contains(o.Stop, r.IDs[len(r.IDs)-1])
	if len(r.IDs) < o.MaxTokens && !ended {
		j.Note("ended after %d tokens: the model has %d positions", len(r.IDs), m.Config().MaxPositions)
	}
	remarkDraft(j, r)
}
