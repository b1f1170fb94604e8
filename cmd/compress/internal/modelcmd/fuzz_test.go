package modelcmd

import (
	"testing"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// FuzzLine: a line of a file of texts, or of ids.
func FuzzLine(f *testing.F) {
	for _, s := range []string{
		`"a"`, `{"text":"b"}`, `{"text":null}`, `[1, 2]`, "1 2,3\t4", "[99999999999]", "-1",
		`{"Text":"x"}`, `"\ud800"`, "\xff", "",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}

	tok, err := tokenizer.Parse(
		[]byte(
			`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"added_tokens":[{"id":3,"content":"<s>","special":true}]}`))
	if err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, line string, ids bool) {
		defer fuzzlimit.Watch(t, len(line))()
		text, err := jsonText(line, ids)
		if err == nil && !utf8.ValidString(text) {
			t.Errorf("%q gives %q", line, text)
		}
		if _, err := DecodeLine(tok, line, true); err != nil {
			return
		}
	})
}
