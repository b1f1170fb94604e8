// Package dataset turns files into sequences to train on: token ids with labels that say which tokens count.
package dataset

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Limits of what a file may hold.
const (
	maxLine = 64 << 20
	maxText = 2 << 30
)

// Tokenizer is what reading text needs of one; *tokenizer.Tokenizer has it.
type Tokenizer interface {
	corpus.Tokenizer
	// EncodeOffsets also says which bytes of the text each token stands for.
	EncodeOffsets(text string, o tokenizer.EncodeOptions) ([]int32, []tokenizer.Span, error)
	// AddsEOS reports whether Encode ends a text with EOS by itself.
	AddsEOS() (add, known bool)
}

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Render writes a conversation as text, and says which bytes the assistant's answers are.
type Render func(messages []Message) (text string, answers [][2]int, err error)

// Options of [Read].
type Options struct {
	SeqLen int    // longer sequences are cut: documents into several, answers at their end
	Vocab  int    // ids outside are refused
	Chat   Render // nil: conversations are refused
}

// Counts says what became of the records.
type Counts struct {
	Records int
	Blank   int // lines without a record
	Cut     int // answers and conversations that lost their ends
	Split   int // documents that became several sequences
	Empty   int // completions without a token, which teach to stop at once
	Same    int // pairs without a difference, which are left out
}

// sample is one sequence.
type sample struct {
	ids, labels []int32
}

// Read reads a file of text, records or token ids. What the file holds follows from its name, as in package
// corpus. Every record of text is a sequence that ends with EOS; of a prompt with a completion, and of a
// conversation, only the answers count. The labels of the result are aligned with its ids.
func Read(ctx context.Context, path string, tok Tokenizer, o Options) (corpus.Windows, Counts, error) {
	name := strings.TrimSuffix(path, ".gz")
	if strings.HasSuffix(name, ".safetensors") {
		return readIDs(path, o)
	}
	if tok == nil {
		return corpus.Windows{}, Counts{}, fmt.Errorf("%s: %w", path, corpus.ErrNoTokenizer)
	}

	r := &reader{path: path, tok: tok, o: o}
	err := open(path, func(in io.Reader, records bool) error {
		if records || strings.HasSuffix(name, ".jsonl") || strings.HasSuffix(name, ".ndjson") ||
			strings.HasSuffix(name, ".json") {
			return r.records(ctx, in)
		}
		return r.text(in)
	})
	if err == nil && len(r.list) == 0 {
		err = fmt.Errorf("%s: %w", path, corpus.ErrEmpty)
	}
	if err != nil {
		return corpus.Windows{}, r.counts, err
	}

	return r.windows(), r.counts, nil
}

// open calls f with the contents of a file, unpacked, and whether it holds records whatever its name says.
func open(path string, f func(in io.Reader, records bool) error) error {
	file, err := corpus.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()

	if file.Records || !strings.HasSuffix(path, ".gz") {
		return f(file, file.Records)
	}

	z, err := gzip.NewReader(bufio.NewReader(file))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	return errors.Join(f(z, false), z.Close())
}

// reader collects the sequences of a file.
type reader struct {
	path   string
	tok    Tokenizer
	o      Options
	list   []sample
	counts Counts
	prefer *preferences // nil: records to imitate
}

func (r *reader) windows() corpus.Windows {
	var ids, labels [][]int32
	tokens := int64(0)
	for _, s := range r.list {
		ids, labels = append(ids, s.ids), append(labels, s.labels)
		tokens += int64(len(s.ids))
	}

	w := corpus.New(ids, r.path)
	w.Mode = corpus.Documents
	if r.counts.Split > 0 {
		w.Mode = corpus.Window
	}

	w.Labels = labels
	w.Docs = r.counts.Records
	w.Tokens = tokens
	w.Blank = r.counts.Blank

	return w
}

// text reads plain text as one sequence, cut into pieces.
func (r *reader) text(in io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(in, maxText+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", r.path, err)
	case len(text) > maxText:
		return fmt.Errorf("%s: %w: more than %d bytes of text", r.path, corpus.ErrTooLarge, maxText)
	case !utf8.Valid(text):
		return fmt.Errorf("%s: %w", r.path, corpus.ErrUTF8)
	}

	r.counts.Records = 1
	return r.addText(string(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))))
}

// records reads a file with a record on each line.
func (r *reader) records(ctx context.Context, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLine)

	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(bytes.TrimPrefix(lines.Bytes(), []byte("\xef\xbb\xbf")))
		if len(line) == 0 {
			r.counts.Blank++
			continue
		}

		if err := ctx.Err(); err != nil {
			return err
		}

		r.counts.Records++
		read := r.record
		if r.prefer != nil {
			read = r.prefer.record
		}
		if err := read(line); err != nil {
			return fmt.Errorf("%s: line %d: %w", r.path, n, err)
		}
	}

	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%s: line %d: %w: more than %d bytes", r.path, n+1, corpus.ErrTooLarge, maxLine)
	} else if err != nil {
		return fmt.Errorf("%s: %w", r.path, err)
	}

	return nil
}

// record adds the sequences of one record.
func (r *reader) record(line []byte) error {
	if !utf8.Valid(line) {
		return corpus.ErrUTF8
	}

	var text string
	if line[0] == '"' {
		if err := failure.Unmarshal(line, &text); err != nil {
			return fmt.Errorf("%w: %w", corpus.ErrRecord, err)
		}
		return r.addText(text)
	}

	var rec struct {
		Text       *string         `json:"text"`
		Prompt     *string         `json:"prompt"`
		Completion *string         `json:"completion"`
		Messages   json.RawMessage `json:"messages"`
	}

	if err := failure.Unmarshal(line, &rec); err != nil {
		return fmt.Errorf("%w: %w", corpus.ErrRecord, err)
	}

	switch {
	case rec.Text != nil:
		return r.addText(*rec.Text)
	case rec.Prompt != nil && rec.Completion != nil:
		return r.addAnswer(*rec.Prompt, *rec.Completion)
	case rec.Messages != nil:
		return r.addChat(rec.Messages)
	}

	turns, single, err := corpus.Conversation(line)
	switch {
	case err != nil:
		return err
	case turns == nil:
		return fmt.Errorf("%w: neither text, prompt with completion, messages, instruction with output, "+
			"nor conversations", corpus.ErrRecord)
	case single && r.o.Chat == nil:
		// Made for models that know no chat: the task, a blank line, and what is to follow.
		return r.addAnswer(turns[0].Content+"\n\n", turns[1].Content)
	}

	messages := make([]Message, len(turns))
	for i, t := range turns {
		messages[i] = Message{Role: t.Role, Content: t.Content}
	}
	return r.addMessages(messages)
}

// addText adds a text, all of whose tokens count.
func (r *reader) addText(text string) error {
	ids, err := r.tok.Encode(text, tokenizer.EncodeOptions{})
	if err != nil {
		return err
	}

	ids = r.end(ids, true)
	if len(ids) > r.o.SeqLen {
		r.counts.Split++
	}

	for lo := 0; lo < len(ids); lo += r.o.SeqLen {
		piece := ids[lo:min(lo+r.o.SeqLen, len(ids))]
		r.list = append(r.list, sample{piece, piece})
	}

	return nil
}

// end adds EOS where the tokenizer has not.
func (r *reader) end(ids []int32, special bool) []int32 {
	eos, ok := r.tok.EOS()
	if adds, known := r.tok.AddsEOS(); !ok || special && adds && known || len(ids) > 0 && ids[len(ids)-1] == eos {
		return ids
	}
	return append(ids, eos)
}

// addAnswer adds a prompt with its completion, which alone counts.
func (r *reader) addAnswer(prompt, completion string) error {
	s, err := r.answer(prompt, completion)
	if err == nil {
		r.add(s)
	}
	return err
}

// answer is the sequence of a prompt with its completion.
func (r *reader) answer(prompt, completion string) (sample, error) {
	ids, err := r.encodePrompt(prompt)
	if err != nil {
		return sample{}, err
	}

	answer, err := r.tok.Encode(completion, tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		return sample{}, err
	}

	if len(answer) == 0 {
		r.counts.Empty++
	}

	answer = r.end(answer, false)
	labels := make([]int32, len(ids), len(ids)+len(answer))
	for i := range labels {
		labels[i] = corpus.Ignore
	}

	return sample{append(ids, answer...), append(labels, answer...)}, nil
}

// encodePrompt encodes a text that goes on: without an EOS at its end.
func (r *reader) encodePrompt(text string) ([]int32, error) {
	ids, err := r.tok.Encode(text, tokenizer.EncodeOptions{})
	if err != nil {
		return nil, err
	}

	if eos, ok := r.tok.EOS(); ok && len(ids) > 1 && ids[len(ids)-1] == eos {
		if adds, known := r.tok.AddsEOS(); adds && known {
			ids = ids[:len(ids)-1]
		}
	}

	return ids[:len(ids):len(ids)], nil
}

// add adds a sequence, cut at its end.
func (r *reader) add(s sample) { r.list = append(r.list, r.cut(s)) }

// cut cuts a sequence at its end.
func (r *reader) cut(s sample) sample {
	if len(s.ids) > r.o.SeqLen {
		s.ids, s.labels = s.ids[:r.o.SeqLen], s.labels[:r.o.SeqLen]
		r.counts.Cut++
	}
	return s
}

// addChat adds a conversation, of which the assistant's answers count.
func (r *reader) addChat(raw json.RawMessage) error {
	messages, err := parseMessages(raw)
	if err != nil {
		return err
	}
	return r.addMessages(messages)
}

func (r *reader) addMessages(messages []Message) error {
	s, err := r.chat(messages, 0)
	if err == nil {
		r.add(s)
	}
	return err
}

// chat is the sequence of a conversation. Of its answers those count that come after the first turns.
func (r *reader) chat(messages []Message, first int) (sample, error) {
	if r.o.Chat == nil {
		return sample{}, fmt.Errorf("%w: a conversation needs a chat template, which the tokenizer's configuration "+
			"does not have", corpus.ErrRecord)
	}

	text, answers, err := r.o.Chat(messages)
	if err != nil {
		return sample{}, fmt.Errorf("%w: %w", corpus.ErrRecord, err)
	}
	for _, m := range messages[:first] {
		if m.Role == "assistant" {
			answers = answers[1:]
		}
	}

	ids, spans, err := r.tok.EncodeOffsets(text, tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		return sample{}, err
	}

	labels, k := make([]int32, len(ids)), 0
	for i, s := range spans { // a token that reaches into an answer counts, one that reaches out of it does not
		for k < len(answers) && s.End > answers[k][1] {
			k++
		}

		labels[i] = corpus.Ignore
		if k < len(answers) && s.End > answers[k][0] {
			labels[i] = ids[i]
		}
	}

	return sample{ids, labels}, nil
}

// parseMessages reads turns, whose content is a text or a list of parts with texts.
func parseMessages(raw json.RawMessage) ([]Message, error) {
	var turns []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}

	if err := failure.Unmarshal(raw, &turns); err != nil {
		return nil, fmt.Errorf("%w: messages: %w", corpus.ErrRecord, err)
	}

	var list []Message
	for i, t := range turns {
		m := Message{Role: t.Role}
		var parts []struct{ Type, Text string }
		switch {
		case json.Unmarshal(t.Content, &m.Content) == nil:
		case json.Unmarshal(t.Content, &parts) == nil:
			for _, p := range parts {
				if p.Type != "text" {
					return nil, fmt.Errorf("%w: message %d: content of type %.60q", corpus.ErrRecord, i, p.Type)
				}
				m.Content += p.Text
			}
		default:
			return nil, fmt.Errorf("%w: message %d: content is neither a text nor a list of parts", corpus.ErrRecord, i)
		}

		list = append(list, m)
	}

	return list, nil
}
