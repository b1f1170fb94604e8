package lm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// PerplexityOptions of [Perplexity].
type PerplexityOptions struct {
	Load Options // how the model is loaded
	// Cut says how the text is cut into sequences. The zero value is what papers on pruning report: sequences that do
	// not overlap, of [Model.DefaultSeqLen] tokens. The size of the vocabulary is the model's.
	Cut corpus.CutOptions
	// Progress gets how much is done, in tokens that have passed a decoder layer; nil: nobody wants to know.
	Progress func(done, total int64)
}

// PerplexityReport is a measured perplexity, the exponential of the mean negative log-likelihood of a token.
type PerplexityReport struct {
	Model      string   `json:"model"`
	Perplexity float64  `json:"ppl"`
	NLL        float64  `json:"nll"`        // nats per token
	Stderr     *float64 `json:"stderr"`     // of ppl, over sequences; nil for a single one
	NLLStderr  *float64 `json:"nll_stderr"` // of nll
	SeqLen     int      `json:"seqlen"`
	Stride     int      `json:"stride,omitempty"`
	Convention string   `json:"convention"`
	Windows    int      `json:"windows"` // sequences
	Tokens     int64    `json:"tokens"`  // predicted
	// mean loss of each sequence, in their order, so that runs on the same data can be compared in pairs
	WindowNLL []float64      `json:"window_nll"`
	Data      corpus.Windows `json:"data"`
}

// Perplexity measures the model in a folder on a file: plain text, JSON Lines or token ids, for which the folder need
// not hold a tokenizer. It is [Load], [corpus.Cut] and [Model.Perplexity] for a single measurement.
func Perplexity(ctx context.Context, dir, file string, dev kernels.Device, o PerplexityOptions) (
	*PerplexityReport, error,
) {
	m, err := Load(ctx, dir, dev, o.Load)
	if err != nil {
		return nil, err
	}
	defer m.Close()

	w, err := m.Cut(ctx, file, o.Cut)
	if err != nil {
		return nil, err
	}

	done, total := int64(0), m.LossWork(w)
	r, err := m.Perplexity(ctx, w, func(more int64) {
		done += more
		if o.Progress != nil {
			o.Progress(done, total)
		}
	})
	if err != nil {
		return nil, err
	}

	r.Stride = o.Cut.Stride
	r.Convention = string(w.Mode)
	return r, nil
}

// Cut lays sequences over a file for the model, with its tokenizer: [corpus.Cut] with the model's vocabulary and, where
// o says none, its default length, or that of the whole text where it is shorter.
func (m *Model) Cut(ctx context.Context, file string, o corpus.CutOptions) (corpus.Windows, error) {
	text, err := m.textTokenizer()
	if err != nil {
		return corpus.Windows{}, err
	}

	o.VocabSize = m.config.Vocab
	if o.SeqLen == 0 {
		o.SeqLen, o.AnyLength = m.DefaultSeqLen(), true
	}

	return corpus.Cut(ctx, file, text, o)
}

// Sample draws sequences from a file for the model, with its tokenizer: [corpus.Sample] with the model's vocabulary
// and, where o says none, its default length. It is what calibration takes, and [Model.Cut] what is measured on.
func (m *Model) Sample(ctx context.Context, file string, o corpus.SampleOptions) (corpus.Windows, error) {
	text, err := m.textTokenizer()
	if err != nil {
		return corpus.Windows{}, err
	}

	if o.VocabSize = m.config.Vocab; o.SeqLen == 0 {
		o.SeqLen = m.DefaultSeqLen()
	}

	return corpus.Sample(ctx, file, text, o)
}

// textTokenizer is the tokenizer in the folder of the model, nil if there is none. A nil *tokenizer.Tokenizer in the
// interface would not be nil, which is what corpus asks about.
func (m *Model) textTokenizer() (corpus.Tokenizer, error) {
	tok, err := m.Tokenizer()
	switch {
	case err == nil:
		return tok, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return nil, nil
}

// DefaultSeqLen is the length of sequences where none is asked for: 2048 tokens, or the model's positions if they are
// fewer.
func (m *Model) DefaultSeqLen() int {
	if p := m.config.MaxPositions; p > 0 {
		return min(p, 2048)
	}
	return 2048
}

// Perplexity measures the model on sequences. progress, unless nil, gets how much more of [Model.LossWork] is done.
// The stride and the convention of the report are left to whoever has cut the sequences.
func (m *Model) Perplexity(ctx context.Context, w corpus.Windows, progress func(more int64)) (
	*PerplexityReport, error,
) {
	s, err := m.SequenceLosses(ctx, w, progress)
	if err != nil {
		return nil, err
	}
	return s.Perplexity(m, w)
}

// lossBatch is about how many tokens are run at a time to measure losses.
const lossBatch = 8192

// SequenceLosses runs sequences through the model. progress, unless nil, gets how much more of [Model.LossWork] is
// done, with every block of a batch: a batch of a large model takes minutes.
func (m *Model) SequenceLosses(ctx context.Context, w corpus.Windows, progress func(more int64)) (
	*SequenceLosses, error,
) {
	if progress == nil {
		progress = func(int64) {}
	}

	s := &SequenceLosses{}
	for _, part := range w.Batches(lossBatch) {
		tokens := int64(0)
		for _, ids := range part.IDs {
			tokens += int64(len(ids))
		}

		o := ForwardOptions{
			Labels: part.Labels, Hooks: &Hooks{BlockOutput: func(int, kernels.Mat) { progress(tokens) }},
		}

		lists, err := m.lossesOf(ctx, part, o)
		if err != nil {
			return nil, err
		}

		for i, losses := range lists {
			var labels []int32
			if part.Labels != nil {
				labels = part.Labels[i]
			}
			s.Add(losses, labels)
		}

		// The head's work is counted in blocks' worth of time, so that progress runs evenly.
		progress(tokens * m.HeadBlocks())
	}

	return s, nil
}

// lossesOf gives the losses of sequences.
func (m *Model) lossesOf(ctx context.Context, part corpus.Windows, o ForwardOptions) ([][]float64, error) {
	if m.opts.KVPositions == 0 {
		r, err := m.Forward(ctx, part.IDs, o)
		if err != nil {
			return nil, err
		}
		return r.LossPerToken, nil
	}

	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		return nil, err
	}
	defer s.Close()

	lists := make([][]float64, len(part.IDs))
	for i, ids := range part.IDs {
		labels := ids
		if part.Labels != nil {
			labels = part.Labels[i]
		}
		s.empty()
		if lists[i], err = s.losses(ctx, ids, labels); err != nil {
			return nil, err
		}
	}

	for l := range m.blocks {
		o.Hooks.BlockOutput(l, kernels.Mat{})
	}
	return lists, nil
}

// evictedRows is how many tokens run at a time where losses are measured with some positions: text is generated one
// token at a time, and the more run together, the more positions are seen that would be gone.
const evictedRows = 16

// losses runs a sequence, and gives the loss of each token after the first.
func (s *Session) losses(ctx context.Context, ids, labels []int32) ([]float64, error) {
	if err := s.m.checkIDs(0, ids, 0); err != nil {
		return nil, err
	}

	all := make([]float64, max(len(ids)-1, 0))
	for at := 0; at < len(ids); {
		n := min(evictedRows, s.chunk(), len(ids)-at)
		x, err := s.run(ctx, ids[at:at+n], len(ids))
		if err != nil {
			return nil, err
		}

		k := min(n, len(all)-at)
		h := &Hidden{X: x, Lens: []int{n}}
		p := s.m.outside(s.scratch, h.Lens)
		if err := p.losses(ctx, h, layer.Rows(k), labels[at+1:at+1+k], all[at:at+k]); err != nil {
			return nil, err
		}
		at += n
	}
	return all, s.m.checkLosses([]int{len(ids)}, all)
}

// LossWork is what measuring sequences takes, in tokens that pass a decoder layer.
func (m *Model) LossWork(w corpus.Windows) int64 {
	tokens := int64(0)
	for _, ids := range w.IDs {
		tokens += int64(len(ids))
	}
	return tokens * (int64(m.Blocks()) + m.HeadBlocks())
}

// HeadBlocks is how many blocks have the work of the model's head, at least one.
func (m *Model) HeadBlocks() int64 {
	head := int64(m.config.Vocab) * int64(m.config.Hidden)
	blocks := max(1, m.NumParameters()-head)
	return max(1, head*int64(m.Blocks())/blocks)
}

// SequenceLosses are the losses of sequences, for a mean over tokens and its standard error over sequences.
type SequenceLosses struct {
	Loss   []float64 // of each sequence, the sum over its predicted tokens
	Count  []float64 // predicted tokens of each sequence
	Tokens int64     // predicted tokens of all
}

// Add takes the losses of the next sequence: one for each token after the first, of which those count whose label (of
// the same token; nil: all) is not [corpus.Ignore].
func (s *SequenceLosses) Add(losses []float64, labels []int32) {
	loss, n := 0.0, 0
	for k, v := range losses {
		if labels == nil || labels[k+1] != corpus.Ignore {
			loss += v
			n++
		}
	}

	s.Loss = append(s.Loss, loss)
	s.Count = append(s.Count, float64(n))
	s.Tokens += int64(n)
}

// Means are the mean losses of the sequences.
func (s *SequenceLosses) Means() []float64 {
	out := make([]float64, len(s.Loss))
	for i, loss := range s.Loss {
		out[i] = loss / max(s.Count[i], 1)
	}
	return out
}

// Mean is the loss per token. Its standard error is that of a ratio of two sums over sequences, which for sequences
// of equal length is the standard error of their means; nil for a single sequence, which says nothing about it.
func (s *SequenceLosses) Mean() (mean float64, stderr *float64) {
	loss := 0.0
	for _, v := range s.Loss {
		loss += v
	}

	n := float64(s.Tokens)
	mean = loss / n
	if len(s.Loss) < 2 {
		return mean, nil
	}

	square := 0.0
	for i, v := range s.Loss {
		d := v - mean*s.Count[i]
		square += d * d
	}

	k := float64(len(s.Loss))
	se := math.Sqrt(square*k/(k-1)) / n
	return mean, &se
}

// Perplexity makes the report of the losses of a model on sequences.
func (s *SequenceLosses) Perplexity(m *Model, w corpus.Windows) (*PerplexityReport, error) {
	nll, se := s.Mean()
	if math.IsNaN(nll) || math.IsInf(nll, 0) {
		return nil, failure.Hinted(fmt.Errorf("%s: the loss on %s is %g", m.dir, w.Source, nll),
			fmt.Sprintf("compress inspect %s --verify finds weights that are not finite", m.dir))
	}

	r := &PerplexityReport{
		Model: m.dir, Perplexity: math.Exp(nll), NLL: nll, NLLStderr: se, SeqLen: w.SeqLen,
		Windows: len(w.IDs), Tokens: s.Tokens, WindowNLL: s.Means(), Data: w,
	}
	if se != nil {
		// The perplexity is the exponential of the mean, so its error is the mean's times its own size.
		p := *se * r.Perplexity
		r.Stderr = &p
	}

	return r, nil
}
