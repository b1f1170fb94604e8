package trim_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/lm/tokenizer/trim"
)

// FuzzTrim: whatever a tokenizer and a configuration hold, they are refused, or trimmed to a tokenizer that can be read
// and encodes a text of kept tokens as before.
func FuzzTrim(f *testing.F) {
	f.Add([]byte(small["tokenizer.json"]), []byte(small["generation_config.json"]), "x y")
	f.Add([]byte(`{"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", `+
		`"vocab": {"[UNK]": 0, "a": 1, "##b": 2, "c": 5}}}`), []byte(`{"eos_token_id": [1, 700], "n": null}`), "ab c d")
	f.Add([]byte(`{"model": {"vocab": [["a", -1], ["a", -2], ["<0x41>", 0]], "unk_id": 2}}`),
		[]byte(`{"forced_decoder_ids": [[1]], "sequence_bias": {"[1]": 2}, "bad_words_ids": [[[]]]}`), "a")

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, tokens, config []byte, sample string) {
		defer fuzzlimit.Watch(t, 2*len(tokens)+len(config)+len(sample))()

		for name, text := range map[string][]byte{"tokenizer.json": tokens, "generation_config.json": config} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		v, err := trim.Read(dir)
		if err != nil {
			return
		}

		ids, err := v.Tokenizer().Encode(sample, tokenizer.EncodeOptions{})
		if err != nil {
			return
		}
		counts := make([]int64, v.Tokenizer().VocabSize())
		for _, id := range ids {
			counts[id]++
		}
		s, err := v.Select(counts, trim.Options{Multiple: 1})
		if err != nil {
			return
		}
		if _, whole := s.Map(ids); !whole || !slices.IsSorted(s.Old) || len(s.Old) >= s.Rows {
			t.Fatalf("%v of %d", s.Old, s.Rows)
		}

		if files, _, err := v.Files(s); err == nil {
			if _, err := tokenizer.Parse(files["tokenizer.json"]); err != nil {
				t.Error(err)
			}
		}
	})
}
