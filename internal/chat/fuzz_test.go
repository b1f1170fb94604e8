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
