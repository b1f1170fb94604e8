// Package chat renders conversations by the chat templates of tokenizers, which are written in a part of the Jinja language: loops,
// conditions, variables and namespaces, filters and methods of texts. What a template uses beyond that is an error when it is
// read, not a wrong text. Macros, imports and the clock are not supported.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// maxTemplate bounds the length of a template.
const maxTemplate = 1 << 20

// Template is a chat template.
type Template struct {
	nodes  []node
	tokens map[string]any // bos_token and the like
}

// Message is one turn of a conversation.
type Message struct {
	Role, Content string
}

// Parse reads a template. tokens are what it may refer to: "bos_token", "eos_token" …
func Parse(source string, tokens map[string]string) (*Template, error) {
	if len(source) > maxTemplate {
		return nil, fmt.Errorf("%w: longer than %d bytes", ErrTemplate, maxTemplate)
	}
	pieces, err := cut(strings.TrimSuffix(source, "\n"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	p := parser{pieces: pieces}
	t := &Template{tokens: map[string]any{}}
	if t.nodes, _, err = p.block(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	for k, v := range tokens {
		t.tokens[k] = v
	}
	return t, nil
}

// Render writes a conversation; with prompt it ends with what invites the assistant to answer.
func (t *Template) Render(messages []Message, prompt bool) (string, error) {
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = object{"role": m.Role, "content": m.Content}
	}
	r := &render{scopes: []map[string]any{{"messages": list, "add_generation_prompt": prompt}}}
	for k, v := range t.tokens {
		r.scopes[0][k] = v
	}
	if err := r.all(t.nodes); err != nil {
		return "", fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return r.out.String(), nil
}

// Answers renders a conversation and says which bytes are the assistant's answers, with what ends each: all that the template adds
// for such a turn after its prompt. The text up to a turn must not depend on the turns after it.
func (t *Template) Answers(messages []Message) (text string, answers [][2]int, err error) {
	if text, err = t.Render(messages, false); err != nil {
		return "", nil, err
	}
	for i, m := range messages {
		if m.Role != "assistant" {
			continue
		}
		before, err := t.Render(messages[:i], true)
		if err != nil {
			return "", nil, err
		}
		after, err := t.Render(messages[:i+1], false)
		if err != nil {
			return "", nil, err
		}
		if !strings.HasPrefix(after, before) || !strings.HasPrefix(text, after) {
			return "", nil, fmt.Errorf("%w: turn %d is written differently depending on what follows it, so its answer cannot be told apart", ErrTemplate, i)
		}
		answers = append(answers, [2]int{len(before), len(after)})
	}
	if len(answers) == 0 {
		return "", nil, fmt.Errorf("%w: the conversation has no turn of the assistant", ErrTemplate)
	}
	return text, answers, nil
}

// FromConfig finds the template and the special tokens in the text of a tokenizer_config.json. The template is "" where there is none.
func FromConfig(config []byte) (template string, tokens map[string]string, err error) {
	var c map[string]json.RawMessage
	if err := json.Unmarshal(config, &c); err != nil {
		return "", nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	tokens = map[string]string{}
	for _, name := range []string{"bos_token", "eos_token", "pad_token", "unk_token"} {
		var plain string
		var rich struct{ Content string }
		if json.Unmarshal(c[name], &plain) == nil {
			tokens[name] = plain
		} else if json.Unmarshal(c[name], &rich) == nil {
			tokens[name] = rich.Content
		}
	}
	raw := c["chat_template"]
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &template) == nil {
		return template, tokens, nil
	}
	var named []struct{ Name, Template string }
	if json.Unmarshal(raw, &named) != nil {
		return "", nil, fmt.Errorf("%w: chat_template is neither a text nor a list of named ones", ErrTemplate)
	}
	for _, n := range named {
		if n.Name == "default" {
			return n.Template, tokens, nil
		}
	}
	return "", nil, errors.Join(ErrTemplate, errors.New("chat_template has no default"))
}
