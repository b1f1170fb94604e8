package vocabulary

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcompress/compress/internal/chat"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/lm/tokenizer/trim"
)

// count counts the tokens of the texts, and of what the chat template writes around conversations.
func (w *work) count(ctx context.Context) error {
	w.counts = make([]int64, w.was.VocabSize())
	apart := make([]int64, len(w.counts))
	template := w.template(ctx)

	done := int64(0)
	for _, path := range w.From {
		own := make([]bool, len(w.counts))
		t := Text{Path: path}

		err := corpus.Texts(ctx, path, func(x corpus.Text) error {
			ids, err := w.was.Encode(x.Text, tokenizer.EncodeOptions{})
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}

			for _, id := range ids {
				w.counts[id]++
				if !own[id] {
					own[id] = true
					t.Words++
				}
			}
			w.example(ids)
			if !x.Record {
				if err := w.lines(apart, x.Text); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
			}

			done += int64(len(x.Text))
			w.Progress(StageCount, done)
			return w.conversation(ctx, template, x.Turns)
		})
		if err != nil {
			return err
		}
		if t.Words == 0 {
			return fmt.Errorf("%s: %w", path, ErrNoText)
		}
		w.report.Texts = append(w.report.Texts, t)
	}

	for id, n := range apart {
		w.counts[id] = max(w.counts[id], n)
	}
	return nil
}

// lines counts the tokens of each line of a text by itself. Many tokenizers have tokens such as ".\n\n", so that a text
// can lack a plain full stop, which the end of a prompt needs.
func (w *work) lines(counts []int64, text string) error {
	var ids []int32
	var err error
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if ids, err = w.was.AppendEncode(ids[:0], line, tokenizer.EncodeOptions{NoSpecial: true}); err != nil {
			return err
		}
		for _, id := range ids {
			counts[id]++
		}
	}
	return nil
}

// Runs of tokens of the text on which logits are compared: so many, of at most so many tokens.
const (
	maxExamples   = 4
	exampleTokens = 64
)

// example keeps the ids of a text as long as there are few.
func (w *work) example(ids []int32) {
	const enough = 64 * exampleTokens // some of them may have tokens that go
	if len(w.examples) < 16*maxExamples && len(ids) > 1 {
		w.examples = append(w.examples, slices.Clone(ids[:min(len(ids), enough)])) // the rest may go
	}
}

// conversation counts a conversation as the chat template writes it.
func (w *work) conversation(ctx context.Context, t *chat.Template, turns []corpus.Turn) error {
	if t == nil || len(turns) == 0 {
		return nil
	}

	list := make([]chat.Message, len(turns))
	for i, x := range turns {
		list[i] = chat.Message(x)
	}
	text, err := t.Render(ctx, list, false)
	if err != nil {
		return ctx.Err() // a conversation that the template does not take is counted as plain text
	}
	return w.add(text)
}

// add counts a text that has its special tokens.
func (w *work) add(text string) error {
	ids, err := w.was.Encode(text, tokenizer.EncodeOptions{NoSpecial: true})
	for _, id := range ids {
		w.counts[id]++
	}
	return err
}

// conversations are what the template's own text is taken from: it writes other things before a first message, around a
// system message, and to invite an answer.
var conversations = [][]chat.Message{
	{{Role: "user", Content: "Hello"}},
	{{Role: "user", Content: "Hello"}, {Role: "assistant", Content: "Hello"}, {Role: "user", Content: "Hello"}},
	{{Role: "system", Content: "Hello"}, {Role: "user", Content: "Hello"}, {Role: "assistant", Content: "Hello"}},
}

// template reads the model's chat template and counts the tokens of its own text. It is nil where there is none that
// can be read, which a note says.
func (w *work) template(ctx context.Context) *chat.Template {
	src, err := chat.Default(w.m.Path())
	if err == nil && src.Template == "" {
		return nil
	}

	days := []time.Time{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	if strings.Contains(src.Template, "strftime_now") { // it writes the day: the tokens of all days of some years
		for range 4 * 365 {
			days = append(days, days[len(days)-1].AddDate(0, 0, 1))
		}
	}

	var t *chat.Template
	rendered := 0
	for _, day := range days {
		if err == nil {
			t, err = chat.Parse(src.Template, src.Tokens, func() time.Time { return day })
		}
		if err != nil {
			break
		}
		for _, c := range conversations {
			for _, prompt := range []bool{false, true} {
				// Templates refuse conversations of some forms, such as those with a system message.
				if text, failed := t.Render(ctx, c, prompt); failed == nil && w.add(text) == nil {
					rendered++
				}
			}
		}
	}

	if rendered == 0 {
		w.note("the chat template cannot be read, and tokens of its own text may be missing: %v",
			errors.Join(err, ctx.Err()))
		return nil
	}
	return t
}

// note adds a remark to the report, in one line.
func (w *work) note(format string, args ...any) {
	w.report.Notes = append(w.report.Notes, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// foreign is from which share of changed tokens on a text is taken to be of another kind than the one that the
// vocabulary was taken from. Text of the same kind has some in a thousand: names and rare words.
const foreign = 0.05

// compare encodes the texts with both tokenizers.
func (w *work) compare(ctx context.Context) error {
	done := int64(0)
	change := func(path string, c *trim.Change) error {
		return corpus.Texts(ctx, path, func(x corpus.Text) error {
			_, _, _, err := trim.Compare(c, w.s, w.was, w.is, x.Text, !x.Record)
			done += int64(len(x.Text))
			w.Progress(StageCompare, done)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			return nil
		})
	}

	var own trim.Change
	for i := range w.report.Texts {
		t := &w.report.Texts[i]
		if err := change(t.Path, &t.Changed); err != nil {
			return err
		}
		own.Tokens += t.Changed.Tokens
		own.Lost += t.Changed.Lost
	}

	for _, path := range w.HeldOut {
		t := Text{Path: path}
		if err := change(path, &t.Changed); err != nil {
			return err
		}
		w.report.HeldOut = append(w.report.HeldOut, t)
		if has, had := t.Changed.TokenShare(), own.TokenShare(); has > foreign && has > 2*had {
			w.note("%s: %.1f %% of its tokens are others after trimming, against %.1f %% of the text that the "+
				"vocabulary is from: it seems to be in another language, or of another kind", path, 100*has, 100*had)
		}
	}
	return nil
}
