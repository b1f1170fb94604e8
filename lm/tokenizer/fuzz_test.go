package tokenizer_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// FuzzLoad: the two files beside tokenizer.json.
func FuzzLoad(f *testing.F) {
	const vocabulary = `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"added_tokens":[{"id":3,"content":"<s>","special":true}]}`

	for _, s := range []string{
		`{"bos_token":"<s>","add_bos_token":true}`,
		`{"bos_token":{"content":"a"},"eos_token":null,"add_eos_token":true}`, `{"bos_token":1}`,
		`{"add_bos_token":"yes"}`, `{`, ``,
	} {
		f.Add([]byte(s), []byte(`{"eos_token":"b","pad_token":"none"}`))
	}

	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(vocabulary), 0o666); err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, config, special []byte) {
		defer fuzzlimit.Watch(t, len(config)+len(special))()

		for name, text := range map[string][]byte{"tokenizer_config.json": config, "special_tokens_map.json": special} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
				t.Fatal(err)
			}
		}

		tok, err := tokenizer.Load(dir)
		if err != nil {
			return
		}

		ids, err := tok.Encode("ab", tokenizer.EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}

		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Errorf("token %d of %d", id, tok.VocabSize())
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, name := range smallNames(f) {
		data, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}

	f.Add(
		[]byte(
			`{"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"added_tokens":[{"id":3,"content":" ","lstrip":true}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()

		tok, err := tokenizer.Parse(data)
		if err != nil {
			return
		}

		if tok.VocabSize() > 8*len(data)+1<<21 {
			t.Fatalf("%d tokens from %d bytes", tok.VocabSize(), len(data))
		}

		ids, err := tok.Encode("It's the first <s> ab 12é", tokenizer.EncodeOptions{})
		if err == nil {
			tok.Decode(ids, true)
		}

		if _, err := json.Marshal(ids); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzEncode(f *testing.F) {
	var texts []string
	readJSON(f, "testdata/golden/inputs.json", &texts)
	for _, s := range texts {
		f.Add(s)
	}

	f.Add("\xff\xfe<s>")
	all := map[string]*tokenizer.Tokenizer{}
	for _, name := range smallNames(f) {
		all[name] = small(f, name)
	}

	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()

		for name, tok := range all {
			ids, err := tok.Encode(text, bare)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}

			again, spans, err := tok.EncodeOffsets(text, bare)
			if err != nil || !slices.Equal(ids, again) || len(spans) != len(ids) {
				t.Fatalf("%s: %v, with offsets %v, %v", name, ids, again, err)
			}

			if got := tok.Decode(ids, false); !utf8.ValidString(got) {
				t.Fatalf("%s: decoded text is not UTF-8", name)
			}
		}
	})
}
