package job

import (
	"fmt"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/plan"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/vocab"
)

// readVocabulary builds the output's tokenizer if the recipe asks for one.
func (w *Work) readVocabulary() error {
	if w.Plan.Tokenizer == nil && w.Plan.ChatTemplate == "" {
		return nil
	}

	v, err := vocab.Build(w.Plan, w.Inputs)
	if err != nil {
		return err
	}

	w.words = v
	w.Warnings = append(w.Warnings, v.Warnings...)
	if v.Rows > 0 {
		w.Plan.SetVocabulary(v.Rows)
	}

	return nil
}

// Arranged reports whether a tensor's rows are arranged by the output's vocabulary.
func (w *Work) Arranged(t *plan.Tensor) bool {
	return w.words != nil && w.words.Rows > 0 && t.VocabAxis >= 0
}

// arranged is a source whose rows come in the order of the output's vocabulary, from several sources where one
// lacks tokens.
type arranged struct {
	stream.Source // of the model itself
	rows          *vocab.Rows
	plain         []stream.Source // of every source of the tensor
	number        int             // which of them this is
	width         int
}

// Read implements [stream.Source]; off and the length are whole rows.
func (a *arranged) Read(dst []float32, off int64) error {
	return a.rows.Fill(a.number, off/int64(a.width), dst, a.width, func(source int, row int64, part []float32) error {
		return a.plain[source].Read(part, row*int64(a.width))
	})
}

// Ahead implements [stream.Source]: which rows come is not known, so nothing is asked for.
func (a *arranged) Ahead(int64, int64) {}

// mappedSource makes the arranged source of a model.
func (w *Work) mappedSource(it *stream.Item, t *plan.Tensor, s *plan.TensorSource) (stream.Source, error) {
	if t.VocabAxis != 0 {
		return nil, fmt.Errorf("tensor %q runs over the vocabulary along axis %d; only axis 0 can be arranged: %w",
			t.Name, t.VocabAxis, method.ErrUnsupported)
	}

	rows, err := w.words.For(t)
	if err != nil {
		return nil, err
	}

	// Every source needs the others too: a token that this model lacks has its row from them.
	a := &arranged{rows: rows, width: int(it.Tensor.N / max(1, t.Shape[0]))}
	for i := range t.Sources {
		other := &t.Sources[i]
		src, err := w.model(other).Source(other.Info.Name, w.Plan.DType)
		if err != nil {
			return nil, err
		}

		a.plain = append(a.plain, src)
		if other == s {
			a.number = i
		}
	}

	a.Source = a.plain[a.number]
	it.Align = true
	return a, nil
}
