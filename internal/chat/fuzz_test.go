package chat

import (
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzConfig: the tokenizer's configuration, of which templates and special tokens are taken.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"bos_token":"<s>","eos_token":{"content":"</s>"},"chat_template":"{{ messages }}"}`,
		`{"chat_template":[{"name":"default","template":"x"},{"name":"tool_use","template":"y"}]}`,
		`{"chat_template":{"a":1}}`, `{"bos_token":[]}`, `{"bos_token":{"content":null}}`, `null`, `[]`, ``,
	} {
		f.Add([]byte(s))
	}

	f.Fuzz(func(t *testing.T, config []byte) {
		defer fuzzlimit.Watch(t, len(config))()

		named, tokens, err := readConfig(config)
		if err != nil {
			return
		}

		for _, template := range named {
			tpl, err := Parse(template, tokens, nil)
			if err != nil {
				continue
			}
			_, _ = tpl.Render(t.Context(), []Message{{"user", "Hi"}}, true)
			_, _ = tpl.Continue(t.Context(), []Message{{"user", "Hi"}})
		}
	})
}

// FuzzMessages: a file with a conversation.
func FuzzMessages(f *testing.F) {
	for _, s := range []string{
		`[{"role":"user","content":"Hi"}]`, `{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`,
		"{\"role\":\"user\",\"content\":\"a\"}\n{\"role\":\"assistant\",\"content\":\"b\"}", `[[]]`, `{`, ``,
	} {
		f.Add([]byte(s))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()

		list, err := ReadMessages(text)
		if (err == nil) != (len(list) > 0) {
			t.Errorf("%d messages, %v", len(list), err)
		}
		for _, at := range Unanswered(With("s", list)) {
			if at < 2 || at > len(list)+1 {
				t.Errorf("an answer at %d of %d", at, len(list))
			}
		}
	})
}
