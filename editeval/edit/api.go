package edit

import (
	"context"

	"github.com/modelcompress/compress/editeval/edit/internal/covariance"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/editeval/edit/internal/trace"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm"
)

// Ways in which editing can fail; errors wrap one of them.
var (
	// a record lacks a field or contradicts itself; named by index, the field by path
	ErrRecord     = site.ErrRecord
	ErrFormat     = site.ErrFormat     // a file is not JSON, or of no known form
	ErrSubject    = site.ErrSubject    // the subject is not in its prompt
	ErrTokens     = site.ErrTokens     // the tokens of a prompt do not begin those of the prompt with its target
	ErrMethod     = site.ErrMethod     // there is no method of that name
	ErrOptions    = site.ErrOptions    // hyper-parameters are out of range or do not fit the model
	ErrModel      = site.ErrModel      // no single down-projection in a layer that is to be edited
	ErrStatistics = site.ErrStatistics // a covariance is missing, of another shape, or not positive definite
	// an optimisation left the finite numbers, ended worse than it began, or moved a matrix too far; the
	// weights are as they were before
	ErrDiverged = site.ErrDiverged
	ErrJournal  = site.ErrJournal // a journal is damaged, or belongs to another model
)

// Loss is one iteration of the search for a value.
type Loss struct {
	NLL   float64 `json:"nll"`        // mean over prompts of the mean of -log p over the target's tokens
	KL    float64 `json:"kl"`         // times its factor
	Decay float64 `json:"wd"`         // factor · ‖d‖/‖v0‖²
	Total float64 `json:"loss"`       // their sum
	Norm  float64 `json:"delta_norm"` // of d, before the step
}

// Matrix holds float64 values in rows.
type Matrix struct {
	Rows, Cols int
	Stride     int       // elements between the starts of two rows; at least Cols
	Data       []float64 // element i, j is at i·Stride+j
}

// Row is row i, not a copy.
func (m Matrix) Row(i int) []float64 { return m.Data[i*m.Stride : i*m.Stride+m.Cols] }

// Statistics are second moments of the keys of a model, not centred: C = Σ k·kᵀ / tokens (ROME: layer_stats.py).
type Statistics struct {
	Model  string `json:"model"`  // fingerprint of the weights; empty: unknown
	Data   string `json:"data"`   // hash of the token ids
	Source string `json:"source"` // what they were
	Tokens int    `json:"tokens"`

	Moments map[int]Matrix `json:"-"` // by decoder layer, [in, in] of its down-projection
}

// moments are those of the statistics; nil for none.
func (s *Statistics) moments() map[int]linalg.Matrix {
	if s == nil {
		return nil
	}

	out := map[int]linalg.Matrix{}
	for l, m := range s.Moments {
		out[l] = linalg.Matrix(m)
	}

	return out
}

func statisticsOf(found *covariance.Statistics, err error) (*Statistics, error) {
	if err != nil {
		return nil, err
	}

	s := &Statistics{Model: found.Model, Data: found.Data, Tokens: found.Tokens, Moments: map[int]Matrix{}}
	for l, m := range found.Moments {
		s.Moments[l] = Matrix(m)
	}

	return s, nil
}

// Damping says what had to be added to the diagonal of a covariance, so that it could be factored.
type Damping struct {
	Layer int     `json:"layer"`
	Share float64 `json:"share"` // fraction of the mean of the diagonal
}

// Collect computes the statistics of some decoder layers from documents of token ids, every token of which
// counts. The model runs no further than it must, and memory holds the moments and one pass.
func Collect(ctx context.Context, m *lm.Model, docs [][]int32, layers []int,
	progress func(done, total int),
) (*Statistics, error) {
	return statisticsOf(covariance.Collect(ctx, m, docs, layers, progress))
}

// Cached is [Collect] with a folder that keeps what was computed, by the model's fingerprint, the data's hash
// and the layer. A file that is damaged is computed anew.
func Cached(ctx context.Context, m *lm.Model, docs [][]int32, layers []int, folder, model string,
	progress func(done, total int),
) (*Statistics, error) {
	return statisticsOf(covariance.Cached(ctx, m, docs, layers, folder, model, progress))
}

// TraceOptions configure [Trace].
type TraceOptions struct {
	Samples int     // noisy copies; 0 means 10
	Noise   float64 // standard deviations of the subject's embeddings; 0 means 3
	Window  int     // layers whose MLP or attention is restored together; 0 means 10, at most half of the model's
	Seed    uint64  // of the noise
}

// TraceResult is where a model keeps a fact: the mean probability of the answer over noisy runs in which one
// state is what it is in the clean run, by token and decoder layer.
type TraceResult struct {
	Answer    int32       `json:"answer"`
	Clean     float64     `json:"clean"`     // probability without noise
	Corrupted float64     `json:"corrupted"` // and with
	Sigma     float64     `json:"sigma"`     // standard deviation of the noise
	Window    int         `json:"window"`
	Hidden    [][]float64 `json:"hidden"` // hidden state after a decoder layer
	MLP       [][]float64 `json:"mlp"`
	Attention [][]float64 `json:"attention"`
}

// Trace runs causal tracing (ROME: causal_trace.py): noise is added to the embeddings of the tokens from …
// to-1, the subject, and one state after another is restored. A negative answer means the top-1 token of the
// clean model.
func Trace(ctx context.Context, m *lm.Model, ids []int32, from, to int, answer int32,
	o TraceOptions,
) (*TraceResult, error) {
	r, err := trace.Run(ctx, m, ids, from, to, answer, trace.Options{
		Samples: o.Samples, Noise: o.Noise, Window: o.Window, Seed: o.Seed,
	})
	return (*TraceResult)(r), err
}
