package main

import (
	"errors"
	"io/fs"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// load opens a model on the device that the flags ask for.
func (j *job) load(path string, o lm.Options) (*lm.Model, error) {
	if err := modelFolder(path); err != nil {
		return nil, err
	}
	dev, err := j.open()
	if err != nil {
		return nil, err
	}
	return lm.Load(j.ctx, path, dev, o)
}

// tokenizerOf loads the tokenizer in a model's folder; nil if it has none. One with more tokens than the model knows is an error.
func tokenizerOf(m *lm.Model) (*tokenizer.Tokenizer, error) {
	tok, err := tokenizer.Load(m.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = checkpoint.FitTokenizer(m.Path(), tok, m.Config())
	}
	return tok, err
}

// textOf makes a nil tokenizer a nil interface, which is what corpus asks about.
func textOf(tok *tokenizer.Tokenizer) corpus.Tokenizer {
	if tok == nil {
		return nil
	}
	return tok
}
