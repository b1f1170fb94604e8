package prompt

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/chat"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// Chat writes prompts as conversations.
type Chat struct {
	Template *chat.Template
	// Single puts the examples and the document into one message of the user; otherwise each is a message, and
	// its answer one.
	Single bool

	// Context ends renderings early.
	Context context.Context
}

// Roles of messages.
const (
	user      = "user"
	assistant = "assistant"
	system    = "system"
)

// message is a part of a prompt: a turn of a conversation, with what stands behind it in plain text.
type message struct {
	chat.Message
	after string
}

// write makes a prompt of its parts.
func (p *Prompter) write(parts []message) (string, error) {
	if p.chat == nil {
		return plainText(parts), nil
	}
	return p.chat.write(parts)
}

func plainText(parts []message) string {
	var b strings.Builder
	for _, m := range parts {
		b.WriteString(m.Content + m.after)
	}
	return b.String()
}

// write applies the template. One that refuses a conversation is asked again without the message of the system.
func (c *Chat) write(parts []message) (string, error) {
	var turns []chat.Message
	if c.Single {
		turns = single(parts)
	} else {
		for _, m := range parts {
			turns = append(turns, m.Message)
		}
	}

	text, err := c.render(turns)
	if err == nil || !errors.Is(err, chat.ErrTemplate) || turns[0].Role != system {
		return text, err
	}

	text, again := c.render(slices.DeleteFunc(turns, func(m chat.Message) bool { return m.Role == system }))
	if again != nil {
		return "", err
	}

	return text, nil
}

// render ends with what invites an answer, or within the answer where that has begun.
func (c *Chat) render(turns []chat.Message) (string, error) {
	if turns[len(turns)-1].Role == assistant {
		return c.Template.Continue(c.Context, turns)
	}
	return c.Template.Render(c.Context, turns, true)
}

// single joins all messages but that of the system and the beginning of the answer.
func single(parts []message) []chat.Message {
	var out []chat.Message
	if parts[0].Role == system {
		out, parts = append(out, parts[0].Message), parts[1:]
	}

	var begun []chat.Message
	if last := parts[len(parts)-1]; last.Role == assistant {
		begun, parts = []chat.Message{last.Message}, parts[:len(parts)-1]
	}

	parts = slices.Clone(parts)
	parts[len(parts)-1].after = ""
	return append(append(out, chat.Message{Role: user, Content: plainText(parts)}), begun...)
}

// delimiter stands before choices. Behind a conversation there is none, unless the answer has begun without
// white space at its end.
func (p *Prompter) delimiter() string {
	last, _ := utf8.DecodeLastRuneInString(p.Task.GenPrefix)
	if p.chat != nil && (p.Task.GenPrefix == "" || pyvalue.IsSpace(last)) {
		return ""
	}
	return p.Task.TargetDelimiter
}
