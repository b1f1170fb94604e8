package vocab

import (
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzParseTokens: whatever the text, reading a tokenizer.json, taking tokens out and adding some ends with a file that
// is read again, or an error.
func FuzzParseTokens(f *testing.F) {
	f.Add(words([]string{"?", "a", "b"}, []string{"<s>"}), 2)
	f.Add(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b",["ab","a"]]},"added_tokens":[]}`, 1)
	f.Add(`{"model":{"type":"Unigram","vocab":[["a",-1.5],["b",0]]}}`, 1)
	f.Fuzz(func(t *testing.T, text string, rows int) {
		defer fuzzlimit.Watch(t, len(text))()

		tok, err := parseTokens([]byte(text))
		if err != nil {
			return
		}

		if err := tok.strip(rows); err != nil {
			return
		}
		if err := tok.add("new", nil); err != nil {
			t.Fatal(err)
		}

		out, err := tok.write()
		if err != nil {
			t.Fatal(err)
		}

		again, err := parseTokens(out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}

		if again.ids["new"] != tok.ids["new"] {
			t.Fatalf("the new token has another id\n%s", out)
		}
	})
}
