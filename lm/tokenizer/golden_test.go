package tokenizer_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// shared is the folder with the data that is not part of the repository.
const shared = "../../../shared/data"

// sharedPath returns a path below the shared data; the test is skipped when it is not there.
func sharedPath(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(shared, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no %s", path)
	}
	return path
}

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, path string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// big are the tokenizers in the shared folder, by the names of their golden files.
var big = map[string]string{
	"gpt2": "tokenizers/gpt2", "gpt-neox-20b": "tokenizers/gpt-neox-20b", "qwen2": "tokenizers/qwen2",
	"llama-2": "tokenizers/restricted/llama-2", "llama-3": "tokenizers/restricted/llama-3",
}

func TestGolden(t *testing.T) {
	var inputs []string
	readJSON(t, sharedPath(t, "tokenizers/golden/inputs.json"), &inputs)

	for name, dir := range big {
		t.Run(name, func(t *testing.T) {
			tok := load(t, sharedPath(t, dir))
			var want [][]int32
			readJSON(t, sharedPath(t, "tokenizers/golden/"+name+".json"), &want)
			if len(want) != len(inputs) {
				t.Fatalf("%d results for %d inputs", len(want), len(inputs))
			}

			for i, s := range inputs {
				got, err := tok.Encode(s, tokenizer.EncodeOptions{NoSpecial: true})
				if err != nil || !slices.Equal(got, want[i]) {
					t.Fatalf("%q:\n got %v, %v\nwant %v", s, got, err, want[i])
				}
			}
		})
	}
}
