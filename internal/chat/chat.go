// Package chat renders conversations by the chat templates of tokenizers, which are written in Jinja, as the
// transformers library does. What a template uses beyond package jinja is an error when it is read, not a wrong
// text.
package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcompress/compress/internal/jinja"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// The ways in which a template can fail.
var (
	ErrTemplate = errors.New("chat template")
	ErrRaised   = jinja.ErrRaised // the template says that it does not take such a conversation
)

// Template is a chat template. It may be used by any number of goroutines.
type Template struct {
	t      *jinja.Template
	tokens map[string]string // bos_token and the like
}

// Message is one turn of a conversation.
type Message struct {
	Role, Content string
}

// Parse reads a template. tokens are what it may refer to: "bos_token", "eos_token" …; now is the clock of
// strftime_now, which is not defined for nil.
func Parse(source string, tokens map[string]string, now func() time.Time) (*Template, error) {
	t, err := jinja.Parse(source, jinja.Chats(now))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return &Template{t, maps.Clone(tokens)}, nil
}

// Render writes a conversation; with prompt it ends with what invites the assistant to answer.
func (t *Template) Render(ctx context.Context, messages []Message, prompt bool) (string, error) {
	list := make([]any, len(messages))
	for i, m := range messages {
		d := pyvalue.NewDict()
		d.Set("role", m.Role)
		d.Set("content", m.Content)
		list[i] = d
	}
	return t.render(ctx, list, nil, prompt)
}

// RenderTools is Render for messages and tools as clients of chat services send them, values of package pyvalue: the
// template decides which of their keys it writes.
func (t *Template) RenderTools(ctx context.Context, messages, tools []any, prompt bool) (string, error) {
	if len(tools) == 0 {
		return t.render(ctx, messages, nil, prompt)
	}
	return t.render(ctx, messages, tools, prompt)
}

func (t *Template) render(ctx context.Context, messages []any, tools any, prompt bool) (string, error) {
	names := pyvalue.NewDict()
	for _, k := range slices.Sorted(maps.Keys(t.tokens)) {
		names.Set(k, t.tokens[k])
	}

	names.Set("messages", messages)
	names.Set("tools", tools)
	names.Set("documents", nil)
	names.Set("add_generation_prompt", prompt)
	text, err := t.t.Render(ctx, names)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrTemplate, err)
	}

	return text, nil
}

// mark tells where a message ends in what a template writes. A blank at its end shows whether the template
// trims messages, as the transformers library does it.
const mark = "CONTINUE_FINAL_MESSAGE_TAG "

// Continue writes a conversation that ends within its last message, so that what follows continues it.
func (t *Template) Continue(ctx context.Context, messages []Message) (string, error) {
	if len(messages) == 0 {
		return "", fmt.Errorf("%w: there is no message to continue", ErrTemplate)
	}

	messages = slices.Clone(messages)
	last := &messages[len(messages)-1]
	content := pyvalue.Strip(last.Content)
	last.Content += mark
	text, err := t.Render(ctx, messages, false)
	if err != nil {
		return "", err
	}

	at := strings.LastIndex(text, strings.TrimSpace(mark))
	if at < 0 || !strings.Contains(text, content) {
		return "", fmt.Errorf("%w: the last message is not written as it is, so nothing can continue it", ErrTemplate)
	}
	if strings.HasPrefix(text[at:], mark) {
		return text[:at], nil
	}

	return strings.TrimRightFunc(text[:at], pyvalue.IsSpace), nil
}

// Answers renders a conversation and says which bytes are the assistant's answers, with what ends each: all
// that the template adds for such a turn after its prompt. The text up to a turn must not depend on the turns
// after it.
func (t *Template) Answers(ctx context.Context, messages []Message) (text string, answers [][2]int, err error) {
	if text, err = t.Render(ctx, messages, false); err != nil {
		return "", nil, err
	}

	for i, m := range messages {
		if m.Role != "assistant" {
			continue
		}

		before, err := t.Render(ctx, messages[:i], true)
		if err != nil {
			return "", nil, err
		}

		after, err := t.Render(ctx, messages[:i+1], false)
		if err != nil {
			return "", nil, err
		}

		if !strings.HasPrefix(after, before) || !strings.HasPrefix(text, after) {
			return "", nil, fmt.Errorf("%w: turn %d is written differently depending on what follows it, so its "+
				"answer cannot be told apart", ErrTemplate, i)
		}

		answers = append(answers, [2]int{len(before), len(after)})
	}

	if len(answers) == 0 {
		return "", nil, fmt.Errorf("%w: the conversation has no turn of the assistant", ErrTemplate)
	}

	return text, answers, nil
}

// readConfig reads templates by name, a single one as "default", and special tokens.
func readConfig(config []byte) (named, tokens map[string]string, err error) {
	var c map[string]json.RawMessage
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}

	tokens, named = map[string]string{}, map[string]string{}
	for _, name := range []string{
		"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token",
		"mask_token",
	} {
		var plain *string
		var rich struct{ Content *string }
		if json.Unmarshal(c[name], &plain) != nil && json.Unmarshal(c[name], &rich) == nil {
			plain = rich.Content
		}
		if plain != nil {
			tokens[name] = *plain
		}
	}

	raw := c["chat_template"]
	var template string
	if len(raw) == 0 || string(raw) == "null" {
		return named, tokens, nil
	}

	if json.Unmarshal(raw, &template) == nil {
		named["default"] = template
		return named, tokens, nil
	}

	var list []struct{ Name, Template string }
	if json.Unmarshal(raw, &list) != nil {
		return nil, nil, fmt.Errorf("%w: chat_template is neither a text nor a list of named ones", ErrTemplate)
	}
	for _, n := range list {
		named[n.Name] = n.Template
	}

	return named, tokens, nil
}
