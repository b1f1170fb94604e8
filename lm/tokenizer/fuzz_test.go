package tokenizer_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/hostile"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// FuzzLoad: the two files beside tokenizer.json.
func FuzzLoad(f *testing.F) {
	const vocabulary = `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"added_tokens":[{"id":3,"content":"<s>","special":true}]}`
	for _, s := range []string{`{"bos_token":"<s>","add_bos_token":true}`, `{"bos_token":{"content":"a"},"eos_token":null,"add_eos_token":true}`, `{"bos_token":1}`, `{"add_bos_token":"yes"}`, `{`, ``} {
		f.Add([]byte(s), []byte(`{"eos_token":"b","pad_token":"none"}`))
	}
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(vocabulary), 0o666); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, config, special []byte) {
		defer hostile.Watch(t, len(config)+len(special))()
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
