package lm

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// TextOptions say how [Generate] continues a text.
type TextOptions struct {
	GenerateOptions
	Load Options // how the model is loaded
	// NoSpecial: the prompt has its special tokens itself, as a chat template writes them, and the tokenizer adds none.
	NoSpecial bool
	// Text gets the new text as it comes, in whole characters; nil: nobody wants it before the end. To end a generation
	// there is [GenerateOptions].Each.
	Text func(piece string)
}

// Generated is a text that a model has continued.
type Generated struct {
	Prompt    string  `json:"prompt"`
	Text      string  `json:"text"`       // what is new, without special tokens
	PromptIDs []int32 `json:"prompt_ids"` // with what the tokenizer puts before a text
	IDs       []int32 `json:"ids"`        // new ones, with the stop token where one ended the text
	// PerSecond is how many new tokens there were a second, the pass over the prompt included.
	PerSecond float64 `json:"tokens_per_second"`
	// Reused is how many tokens of the prompt had keys and values from an earlier text of the session.
	Reused int          `json:"reused_tokens,omitempty"`
	Draft  *DraftReport `json:"draft,omitempty"` // what came of the draft, if there is one
}

// Generate continues a text with the model and the tokenizer in a folder. It is [Load], [Model.Tokenizer] and
// [Model.GenerateText] for a single text.
func Generate(ctx context.Context, dir, prompt string, dev kernels.Device, o TextOptions) (*Generated, error) {
	m, err := Load(ctx, dir, dev, o.Load)
	if err != nil {
		return nil, err
	}
	defer m.Close()

	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}

	return m.GenerateText(ctx, tok, prompt, o)
}

// GenerateText continues a text; the prompt is taken as it stands, without a chat template. See [Model.Generate] for
// what ends it. The error wraps [ErrInput] for an empty prompt before which the tokenizer puts nothing.
func (m *Model) GenerateText(ctx context.Context, tok *tokenizer.Tokenizer, prompt string, o TextOptions) (
	*Generated, error,
) {
	ids, err := tok.Encode(prompt, tokenizer.EncodeOptions{NoSpecial: o.NoSpecial})
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: the prompt is empty, and the tokenizer puts no start token before it: there is "+
			"nothing to continue", ErrInput)
	}

	// How a token is spelt depends on what is before it (a space that begins the first word is not shown), so the
	// decoder has to see the prompt too.
	decoder := tok.StreamDecoder(true)
	for _, id := range ids {
		decoder.Next(id)
	}

	show := func(piece string) {
		if o.Text != nil && piece != "" {
			o.Text(piece)
		}
	}

	each := o.Each
	o.Each = func(id int32) bool {
		show(decoder.Next(id))
		return each == nil || each(id)
	}

	reused := 0
	if o.Session != nil {
		reused = o.Session.Keep(ids)
	}

	if o.Draft == nil {
		o.Drafted = nil
	} else if o.Drafted == nil {
		o.Drafted = &DraftReport{}
	}

	start := time.Now()
	fresh, err := m.Generate(ctx, ids, o.GenerateOptions)
	show(decoder.Flush())
	if err != nil {
		return nil, err
	}

	before := len(tok.Decode(ids, true))
	all := tok.Decode(append(ids[:len(ids):len(ids)], fresh...), true)
	return &Generated{
		Prompt: prompt, Text: all[min(before, len(all)):], PromptIDs: ids, IDs: fresh,
		PerSecond: float64(len(fresh)) / time.Since(start).Seconds(), Reused: reused, Draft: o.Drafted,
	}, nil
}

// Tokenizer loads the tokenizer in the model's folder. The error wraps [io/fs.ErrNotExist] where there is none; one
// with more tokens than the model knows is refused.
func (m *Model) Tokenizer() (*tokenizer.Tokenizer, error) {
	tok, err := tokenizer.Load(m.dir)
	if err == nil {
		err = m.fits(tok)
	}
	if err != nil {
		return nil, err
	}
	return tok, nil
}

// fits checks that the model knows every token of a tokenizer. It may have more: rows that fill its table up.
func (m *Model) fits(tok *tokenizer.Tokenizer) error {
	c := m.config
	if tok.VocabSize() <= c.Vocab {
		return nil
	}

	table := ""
	for _, t := range c.Arch.Tensors {
		if t.Role == arch.Embed {
			table = t.Name
		}
	}

	return fmt.Errorf("%s: the tokenizer has %d token ids, but tensor %q and vocab_size of config.json have %d: "+
		"they do not belong together", filepath.Join(m.dir, "tokenizer.json"), tok.VocabSize(), table, c.Vocab)
}
