package modelcmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/internal/chat"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Terminal is the file of a chat whose turns come from stdin, one on each line.
const Terminal = "-"

// maxChat bounds a file with a conversation.
const maxChat = 16 << 20

// talk is a conversation with a model.
type talk struct {
	j        *cli.Job
	m        *openmodel.Model
	tok      *tokenizer.Tokenizer
	o        GenerateOptions
	template *chat.Template
	messages []chat.Message
	session  *lm.Session    // keys and values of the turns so far
	report   generateReport // of the last answer
}

// newTalk reads the model's template, and which tokens end an answer.
func newTalk(j *cli.Job, m *openmodel.Model, tok *tokenizer.Tokenizer, o GenerateOptions) (*talk, error) {
	dir := m.Path()
	source, err := chat.Default(dir)
	if err != nil {
		return nil, err
	}
	if source.Template == "" {
		return nil, fmt.Errorf("%s: the model has no chat template (HINT: instruct models have one; generate without "+
			"--chat continues a text)", dir)
	}

	t := &talk{j: j, m: m, tok: tok, o: o}
	if t.template, err = chat.Parse(source.Template, source.Tokens, time.Now); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}

	encode := func(text string) ([]int32, error) {
		return tok.Encode(text, tokenizer.EncodeOptions{NoSpecial: true})
	}
	t.o.Stop, err = t.template.Stops(j.Ctx, tok, encode, m.StopTokens())
	return t, err
}

// talking is a chat: the turns of a file, one of the command line, or those of the terminal.
func talking(j *cli.Job, m *openmodel.Model, tok *tokenizer.Tokenizer, o GenerateOptions) (any, error) {
	t, err := newTalk(j, m, tok, o)
	if err != nil {
		return nil, err
	}
	defer t.end()

	var list []chat.Message
	if o.Chat != Terminal {
		text, err := safefile.ReadFile(o.Chat, maxChat)
		if err == nil {
			list, err = chat.ReadMessages(text)
		}
		if err != nil {
			return nil, fmt.Errorf("--chat: %s: %w", o.Chat, err)
		}
	}

	list = chat.With(o.System, list)
	if o.Prompted {
		list = append(list, chat.Message{Role: "user", Content: o.Prompt})
	}

	if o.Chat == Terminal && !o.Prompted {
		t.messages = list
		err = t.listen()
	} else {
		err = t.answerAll(list)
	}
	if err != nil {
		return nil, err
	}

	for _, m := range t.messages {
		t.report.Messages = append(t.report.Messages, message(m))
	}
	return t.report, nil
}

// answerAll answers every message of the user that has no answer.
func (t *talk) answerAll(list []chat.Message) error {
	places := chat.Unanswered(list)
	if len(places) == 0 {
		return fmt.Errorf("--chat: %s: there is no message of the user that has no answer", t.o.Chat)
	}

	done := 0
	for _, to := range places {
		t.messages = append(t.messages, list[done:to]...)
		done = to
		if len(places) > 1 {
			t.j.Printf("> %s\n", list[to-1].Content)
		}
		if err := t.answer(); err != nil {
			return err
		}
	}

	t.messages = append(t.messages, list[done:]...)
	return nil
}

// listen answers each line of stdin until its end. A blank line says nothing.
func (t *talk) listen() error {
	t.j.Invite("> ")
	err := Texts{File: Terminal}.Each(t.j.Ctx, func(line string) error {
		if line = strings.TrimSpace(line); line != "" {
			t.messages = append(t.messages, chat.Message{Role: "user", Content: line})
			if err := t.answer(); err != nil {
				return err
			}
		}
		t.j.Invite("> ")
		return nil
	})
	if err == nil && t.report.PromptIDs == nil {
		err = cli.Usagef("--chat: nothing was said on stdin (HINT: give --prompt TEXT, or --chat=FILE)")
	}
	return err
}

// begin makes room for the keys and values of a conversation, anew for each answer of experts, which may be others. All
// of them are kept: templates like to write the last answer in another way, for which the sequence is cut off.
func (t *talk) begin() (err error) {
	if t.session != nil && t.m.Experts == nil {
		return nil
	}
	t.end()
	t.session, err = t.m.NewSession(lm.SessionOptions{KeepAll: true})
	return err
}

// end gives the memory of keys and values back.
func (t *talk) end() {
	if t.session != nil {
		t.session.Close()
		t.session = nil
	}
}

// answer lets the model answer the conversation, and takes the answer into it.
func (t *talk) answer() error {
	prompt, err := t.template.Render(t.j.Ctx, t.messages, true)
	if err != nil {
		return err
	}

	ids, err := t.tok.Encode(prompt, tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	t.o.Session = t.session
	if t.report.Experts, err = t.o.enter(t.j, t.m, ids); err != nil {
		return err
	}

	out := t.j.Stream()
	r, err := t.m.GenerateText(t.j.Ctx, t.tok, prompt, lm.TextOptions{
		GenerateOptions: t.o.GenerateOptions, NoSpecial: true, Text: func(piece string) { fmt.Fprint(out, piece) },
	})
	fmt.Fprintln(out)
	if err != nil {
		return err
	}

	t.report.Generated = *r
	// As it is: the template says what is trimmed, and the next prompt shows the model what it has written.
	t.messages = append(t.messages, chat.Message{Role: "assistant", Content: r.Text})
	remarkEnd(t.j, t.m, r, t.o)

	return nil
}
