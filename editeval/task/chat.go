package task

import (
	"context"
	"time"

	"github.com/modelcompress/compress/editeval/task/internal/prompt"
	"github.com/modelcompress/compress/internal/chat"
)

// ErrChat: a chat template is not there, cannot be read, or does not take a prompt.
var ErrChat = chat.ErrTemplate

// Chat writes prompts as conversations: the description and [Options.System] are the message of the system,
// each example is a question of the user and an answer of the assistant.
type Chat struct {
	Template string            `json:"chat_template"` // Jinja, as the transformers library takes it
	Tokens   map[string]string `json:"special_tokens"`
	// Multiturn writes examples as messages of their own; otherwise they are part of the user's only one.
	Multiturn bool `json:"fewshot_as_multiturn"`
	// Now is the clock for templates that write the date; nil: none, so that they take a date of their own
	// where they have one.
	Now func() time.Time `json:"-"`
}

// OwnChat stands for the tokenizer's own chat template where a name is wanted.
const OwnChat = "default"

// ReadChat finds the chat template of a checkpoint: chat_template.jinja, or that of tokenizer_config.json. name
// chooses one of several, "" the default one. Examples are messages of their own, as is usual.
func ReadChat(dir, name string) (*Chat, error) {
	s, err := chat.Read(dir, name)
	if err != nil {
		return nil, err
	}

	// what the harness pads with where a tokenizer has nothing for it
	for _, other := range []string{"unk_token", "eos_token"} {
		if text, ok := s.Tokens[other]; ok && s.Tokens["pad_token"] == "" {
			s.Tokens["pad_token"] = text
		}
	}

	return &Chat{Template: s.Template, Tokens: s.Tokens, Multiturn: true}, nil
}

// prompts is what the package prompt makes conversations with; nil for plain text.
func (c *Chat) prompts(ctx context.Context) (*prompt.Chat, error) {
	if c == nil {
		return nil, nil
	}
	t, err := chat.Parse(c.Template, c.Tokens, c.Now)
	if err != nil {
		return nil, err
	}
	return &prompt.Chat{Template: t, Single: !c.Multiturn, Context: ctx}, nil
}
