package ggufmodel

import (
	"testing"

	"github.com/modelcompress/compress/gguf"
)

// What tests need that stand outside of the package, since tokenizers read checkpoints through it.

// TokenizerOf gives the tokenizer.json of a file that may have nothing but a vocabulary, and which kind that is.
func TokenizerOf(path string) (text []byte, model string, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()

	v, err := newVocabulary(newMetadata(path, f.Metadata()), 1<<24)
	if err != nil {
		return nil, "", err
	}

	text, err = v.write(false)
	return text, v.model, err
}

// FilesOf gives the files of a model of testdata with a vocabulary, "bytes" or "pieces", and a chat template.
func FilesOf(t *testing.T, vocabulary, template string) map[string][]byte {
	t.Helper()
	d := load(t, "llama")
	map[string]func(){"bytes": d.byteVocabulary, "pieces": d.pieceVocabulary}[vocabulary]()
	d.set(templateKey, gguf.Of(template))

	m, err := d.open(t)
	if err != nil {
		t.Fatal(err)
	}
	files, err := m.Files()
	if err != nil {
		t.Fatal(err)
	}

	return files
}
