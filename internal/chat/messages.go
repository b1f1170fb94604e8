package chat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrMessages: a file holds no conversation.
var ErrMessages = errors.New("no conversation")

// maxMessages bounds a conversation.
const maxMessages = 10_000

// ReadMessages reads one conversation in JSON: a list of messages with role and content, an object with such a list as
// its messages, or a message on each line (JSONL). A content may be a list of parts, which must be texts.
func ReadMessages(text []byte) ([]Message, error) {
	var list []Message
	d := json.NewDecoder(bytes.NewReader(text))
	for first := true; ; first = false {
		var value json.RawMessage
		err := d.Decode(&value)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: byte %d: %w", ErrMessages, d.InputOffset(), err)
		}

		more, whole, err := readValue(value)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: message %d: %w", ErrMessages, len(list)+len(more)+1, err)
		case whole && (!first || d.More()):
			return nil, fmt.Errorf("%w: there are several; want one", ErrMessages)
		}

		if list = append(list, more...); len(list) > maxMessages {
			return nil, fmt.Errorf("%w: more than %d messages", ErrMessages, maxMessages)
		}
	}

	if len(list) == 0 {
		return nil, fmt.Errorf("%w: there are no messages", ErrMessages)
	}
	return list, nil
}

// readValue reads one value of a file, and reports whether it is a whole conversation. With an error, list has the
// messages before the one that is wrong.
func readValue(value json.RawMessage) (list []Message, whole bool, err error) {
	var raw []json.RawMessage
	if json.Unmarshal(value, &raw) != nil {
		var o struct{ Messages []json.RawMessage }
		if err := json.Unmarshal(value, &o); err != nil {
			return nil, false, errors.New("want an object with role and content")
		}
		if o.Messages == nil {
			m, err := readMessage(value)
			if err != nil {
				return nil, false, err
			}
			return []Message{m}, false, nil
		}
		raw = o.Messages
	}

	for _, v := range raw {
		m, err := readMessage(v)
		if err != nil {
			return list, true, err
		}
		list = append(list, m)
	}

	return list, true, nil
}

func readMessage(value json.RawMessage) (Message, error) {
	var o struct {
		Role    string
		Content json.RawMessage
	}
	if err := json.Unmarshal(value, &o); err != nil || o.Role == "" || o.Content == nil {
		return Message{}, errors.New("want an object with role and content")
	}

	m := Message{Role: o.Role}
	if json.Unmarshal(o.Content, &m.Content) == nil && string(o.Content) != "null" {
		return m, nil
	}

	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(o.Content, &parts); err != nil || parts == nil {
		return Message{}, errors.New("its content is no text")
	}
	for _, p := range parts {
		if p.Type != "text" {
			return Message{}, fmt.Errorf("its content has a part of the type %.40q; only text is read", p.Type)
		}
		m.Content += p.Text
	}

	return m, nil
}

// End is what a template writes after an answer of the assistant, such as <|im_end|> and a line break; empty where it
// writes nothing, or does not write the answer as it is.
func (t *Template) End(ctx context.Context) (string, error) {
	text, err := t.Render(ctx, []Message{{"user", "a question"}, {"assistant", strings.TrimSpace(mark)}}, false)
	if err != nil {
		return "", err
	}
	_, end, _ := strings.Cut(text, strings.TrimSpace(mark))
	return end, nil
}

// Vocabulary is what a tokenizer knows of its tokens.
type Vocabulary interface {
	// EOS is the token that ends a text; false: there is none.
	EOS() (int32, bool)
	// Special reports whether a token stands for something other than text.
	Special(id int32) bool
}

// Stops are the tokens that end an answer: those of the model, the tokenizer's, and the special token that the template
// ends a turn with, since some configurations name only the one that ends a document. encode adds no special tokens. A
// template that refuses an example says nothing about that.
func (t *Template) Stops(ctx context.Context, v Vocabulary, encode func(text string) ([]int32, error),
	model []int32,
) ([]int32, error) {
	stop := slices.Clone(model)
	if id, ok := v.EOS(); ok {
		stop = append(stop, id)
	}

	end, err := t.End(ctx)
	if err != nil && !errors.Is(err, ErrTemplate) {
		return nil, err
	}
	ids, err := encode(end)
	if err == nil && len(ids) > 0 && v.Special(ids[0]) {
		stop = append(stop, ids[0])
	}

	slices.Sort(stop)
	return slices.Compact(stop), nil
}

// Unanswered are the places in a conversation at which the assistant has to answer: after each message of the user that
// another role than the assistant's follows, or none.
func Unanswered(list []Message) (places []int) {
	for i, m := range list {
		if m.Role == "user" && (i+1 == len(list) || list[i+1].Role != "assistant") {
			places = append(places, i+1)
		}
	}
	return places
}

// With is a conversation with a system message at its beginning, in the place of one that is there.
func With(system string, list []Message) []Message {
	if system == "" {
		return list
	}
	if len(list) > 0 && list[0].Role == "system" {
		list = list[1:]
	}
	return slices.Concat([]Message{{"system", system}}, list)
}
