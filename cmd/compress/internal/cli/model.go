package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Load opens a model on the device that the flags ask for.
func (j *Job) Load(path string, o lm.Options) (*lm.Model, error) {
	if err := ModelFolder(path); err != nil {
		return nil, err
	}
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	m, err := lm.Load(j.Ctx, path, dev, o)
	if err == nil {
		j.Opened(m, o)
	}
	return m, err
}

// Tokenizer loads the tokenizer in a model's folder; nil if it has none. One with more tokens than the model
// knows is an error.
func Tokenizer(m *lm.Model) (*tokenizer.Tokenizer, error) {
	tok, err := m.Tokenizer()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return tok, err
}

// Cut lays windows over a file (text, JSONL or token ids) for a model: of the default length where none is
// asked for, with no id that the model does not know.
func (j *Job) Cut(m *lm.Model, path string, o corpus.CutOptions) (corpus.Windows, error) {
	w, err := m.Cut(j.Ctx, path, o)
	if err == nil && o.SeqLen == 0 && w.SeqLen < m.DefaultSeqLen() && w.Mode == corpus.Window && len(w.IDs) == 1 {
		j.Note("%s has %d tokens, fewer than a sequence of %d: it is one of that length", path, w.SeqLen,
			m.DefaultSeqLen())
	}
	return w, err
}

// Sample draws windows from a file for a model, with the job's seed; otherwise like Cut. It refuses windows
// whose activations do not fit into memory.
func (j *Job) Sample(m *lm.Model, path string, o corpus.SampleOptions) (corpus.Windows, error) {
	o.Seed = j.Seed
	w, err := m.Sample(j.Ctx, path, o)
	if err == nil {
		err = fits(m, w)
	}

	return w, err
}

// Beyond says that windows are longer than a model was made for; "" if they are not.
func Beyond(m *lm.Model, seqlen int) string {
	if p := m.Config().MaxPositions; p > 0 && seqlen > p {
		return fmt.Sprintf("windows of %d tokens are longer than the %d positions of the model's configuration", seqlen,
			p)
	}
	return ""
}
