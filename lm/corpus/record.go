package corpus

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/failure"
)

// maxRecord bounds a line of a JSONL file.
const maxRecord = 256 << 20

// RecordText is the text of one line of a JSONL file; see the package comment for the forms. The error wraps
// [ErrRecord] or [ErrUTF8].
func RecordText(line []byte) (string, error) {
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return "", fmt.Errorf("%w: an empty line", ErrRecord)
	}
	return parseRecord(line)
}

// parseRecord gives the text of one line of a JSONL file; see the package comment for the forms.
func parseRecord(line []byte) (string, error) {
	if !utf8.Valid(line) {
		return "", fmt.Errorf("%w at byte %d of the line", ErrUTF8, invalidAt(line))
	}

	if line[0] == '"' {
		var text string
		err := decode(line, &text)
		return text, err
	}

	if line[0] != '{' {
		return "", fmt.Errorf("%w: starts with %q; %s", ErrRecord, line[0], knownForms)
	}

	var r record
	if err := decode(line, &r); err != nil {
		return "", err
	}

	return r.text()
}

// renderedRecord is parseRecord with the messages of a conversation as render writes them; nil: plainly.
func renderedRecord(line []byte, render func([]Turn) (string, error)) (string, error) {
	text, err := parseRecord(line)
	if err != nil || render == nil {
		return text, err
	}

	turns, err := turnsOf(line)
	if err != nil || turns == nil {
		return text, err
	}
	return render(turns)
}

const knownForms = `known forms: a string, {"text"}, {"prompt","completion"}, {"messages":[{"role","content"}]}, ` +
	`{"instruction","output"}, {"conversations":[{"from","value"}]}`

// record is the union of the known forms.
type record struct {
	Text       *string    `json:"text"`
	Prompt     *string    `json:"prompt"`
	Completion *string    `json:"completion"`
	Messages   *[]message `json:"messages"`

	// Alpaca's form: a task, perhaps what it is about, and the answer.
	Instruction *string `json:"instruction"`
	Input       *string `json:"input"`
	Output      *string `json:"output"`
	// ShareGPT's form.
	Conversations *[]struct{ From, Value string } `json:"conversations"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

func (r *record) text() (string, error) {
	switch {
	case r.Text != nil:
		return *r.Text, nil
	case r.Prompt != nil && r.Completion != nil:
		return *r.Prompt + *r.Completion, nil
	}

	turns, err := r.turns()
	if err == nil && turns == nil {
		err = fmt.Errorf("%w: none of the keys; %s", ErrRecord, knownForms)
	}
	return render(turns), err
}

// turns gives the conversation of a record, in whichever form; nil if it has none.
func (r *record) turns() ([]Turn, error) {
	switch {
	case r.Messages != nil:
		turns := make([]Turn, len(*r.Messages))
		for i, m := range *r.Messages {
			content, err := m.text()
			if err != nil {
				return nil, fmt.Errorf("message %d: %w", i, err)
			}
			turns[i] = Turn{m.Role, content}
		}
		return turns, nil
	case r.Instruction != nil && r.Output != nil:
		return []Turn{{"user", r.task()}, {"assistant", *r.Output}}, nil
	case r.Conversations != nil:
		turns := make([]Turn, len(*r.Conversations))
		for i, t := range *r.Conversations {
			role, known := speakers[t.From]
			if !known {
				return nil, fmt.Errorf("%w: turn %d is from %.60q; known: human, user, gpt, assistant, system",
					ErrRecord, i, t.From)
			}
			turns[i] = Turn{role, t.Value}
		}
		return turns, nil
	}
	return nil, nil
}

// task is what Alpaca's records ask for.
func (r *record) task() string {
	if r.Input == nil || *r.Input == "" {
		return *r.Instruction
	}
	return *r.Instruction + "\n\n" + *r.Input
}

// speakers are the roles of who speaks in ShareGPT's records.
var speakers = map[string]string{
	"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
	"system": "system", "tool": "tool", "function": "tool",
}

// Conversation reads a record of Alpaca's or ShareGPT's form, one line of JSON, as the turns of a conversation; nil for
// any other record. An Alpaca record is a turn of the user, the instruction with the input below it, and its answer;
// single says that it is such a pair. The error wraps ErrRecord.
func Conversation(line []byte) (turns []Turn, single bool, err error) {
	var r record
	if err := decode(line, &r); err != nil {
		return nil, false, err
	}
	if r.Text != nil || r.Prompt != nil && r.Completion != nil || r.Messages != nil {
		return nil, false, nil
	}
	turns, err = r.turns()
	return turns, r.Instruction != nil && r.Output != nil, err
}

// render writes a conversation plainly, one line a message.
func render(turns []Turn) string {
	var b strings.Builder
	for i, t := range turns {
		if i > 0 {
			b.WriteByte('\n')
		}

		b.WriteString(t.Role)
		b.WriteString(": ")
		b.WriteString(t.Content)
	}

	return b.String()
}

func (m *message) text() (string, error) {
	if len(m.Content) == 0 || string(m.Content) == "null" {
		return "", nil
	}

	var text string
	if json.Unmarshal(m.Content, &text) == nil {
		return text, nil
	}

	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}

	if err := json.Unmarshal(m.Content, &parts); err != nil {
		return "", fmt.Errorf("%w: content is neither a string nor a list of parts", ErrRecord)
	}

	for _, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return "", fmt.Errorf("%w: a part of type %q; only text is read", ErrRecord, p.Type)
		}
		text += *p.Text
	}

	return text, nil
}

// decode reads exactly one JSON value.
func decode(line []byte, v any) error {
	if err := failure.Unmarshal(line, v); err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return nil
}

func invalidAt(p []byte) int {
	at := 0
	for at < len(p) {
		r, n := utf8.DecodeRune(p[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return at
}

// lineReader reads lines of any length up to maxRecord.
type lineReader struct {
	r    *bufio.Reader
	path string
	buf  []byte
	line int   // number of the line last read, from 1
	at   int64 // bytes of the content before the next line
	skip int   // blank lines so far
}

// next gives the next line that is not blank, without its end and surrounding white space, and the place it begins. The
// line is good until the next call.
func (l *lineReader) next() (line []byte, at int64, err error) {
	for {
		at = l.at
		raw, err := l.raw()
		if err != nil && (!errors.Is(err, io.EOF) || len(raw) == 0) {
			return nil, 0, err
		}

		if line := bytes.TrimSpace(raw); len(line) > 0 {
			return line, at, nil
		}

		l.skip++
	}
}

// raw reads one line with its end. At the end of the file it gives what is left and io.EOF.
func (l *lineReader) raw() ([]byte, error) {
	l.line++
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.buf = append(l.buf, part...)
		l.at += int64(len(part))

		switch {
		case len(l.buf) > maxRecord:
			return nil, fmt.Errorf("%s: line %d: %w: a record of more than %d bytes", l.path, l.line, ErrTooLarge,
				maxRecord)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%s: line %d: %w", l.path, l.line, err)
		}

		return l.buf, err
	}
}

// text gives the text of the next record; io.EOF ends the file.
func (l *lineReader) text(render func([]Turn) (string, error)) (string, error) {
	line, _, err := l.next()
	if err != nil {
		return "", err
	}
	text, err := renderedRecord(line, render)
	if err != nil {
		return "", fmt.Errorf("%s: line %d: %w", l.path, l.line, err)
	}
	return text, nil
}
