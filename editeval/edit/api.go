package edit

import (
	"context"

	"github.com/modelcompress/compress/editeval/edit/internal/covariance"
	"github.com/modelcompress/compress/editeval/edit/internal/fluency"
	"github.com/modelcompress/compress/editeval/edit/internal/hparams"
	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/records"
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
	ErrModel      = site.ErrModel      // no single down-projection in a block that is to be edited
	ErrStatistics = site.ErrStatistics // a covariance is missing, of another shape, or not positive definite
	// an optimisation left the finite numbers, ended worse than it began, or moved a matrix too far; the
	// weights are as they were before
	ErrDiverged = site.ErrDiverged
	ErrJournal  = site.ErrJournal // a journal is damaged, or belongs to another model
)

// Record is one edit and the prompts that judge it.
type Record = records.Record

// Question is a prompt and what a model should say after it.
type Question = records.Question

// Set is a file of edits.
type Set = records.Set

// Remark is something about a record that is not an error.
type Remark = records.Remark

// Read opens a file of edits: a JSON array of records in CounterFact's form (requested_rewrite), zsRE's (src,
// alt) or EasyEdit's (prompt, target_new). All faults of all records are returned at once, each named by the
// record's index and the field's path.
func Read(path string) (*Set, error) { return records.Read(path, ReadOptions{}) }

// ReadOptions say which records of a file are wanted.
type ReadOptions = records.Options

// ReadSome is [Read] of some records only. Those that are skipped are named by [Set].
func ReadSome(path string, o ReadOptions) (*Set, error) { return records.Read(path, o) }

// Parse reads the text of a file of edits; see [Read].
func Parse(data []byte) (*Set, error) { return records.Parse(data, ReadOptions{}) }

// Encoded is a request as token ids.
type Encoded = optimize.Request

// Loss is one iteration of the search for a value.
type Loss = optimize.Loss

// HParams are the hyper-parameters of a method; which ones count is the method's business. In YAML, keys that
// are left out keep their defaults.
type HParams = hparams.HParams

// Statistics are second moments of the keys of a model, not centred: C = Σ k·kᵀ / tokens.
type Statistics = covariance.Statistics

// Matrix holds float64 values in rows; Place is one position of one sequence.
type (
	Matrix = linalg.Matrix
	Place  = site.Place
)

// Damping says what had to be added to the diagonal of a covariance, so that it could be factored.
type Damping = covariance.Damping

// Collect computes the statistics of some blocks from documents of token ids, every token of which counts. The
// model runs no further than it must, and memory holds the moments and one pass.
func Collect(ctx context.Context, m *lm.Model, docs [][]int32, blocks []int,
	progress func(done, total int),
) (*Statistics, error) {
	return covariance.Collect(ctx, m, docs, blocks, progress)
}

// Cached is [Collect] with a folder that keeps what was computed, by the model's fingerprint, the data's hash
// and the block. A file that is damaged is computed anew.
func Cached(ctx context.Context, m *lm.Model, docs [][]int32, blocks []int, folder, model string,
	progress func(done, total int),
) (*Statistics, error) {
	return covariance.Cached(ctx, m, docs, blocks, folder, model, progress)
}

// TraceOptions configure [Trace].
type TraceOptions = trace.Options

// TraceResult is where a model keeps a fact: the mean probability of the answer over noisy runs in which one
// state is what it is in the clean run, by token and block.
type TraceResult = trace.Result

// Trace runs causal tracing (ROME: causal_trace.py): noise is added to the embeddings of the tokens from …
// to-1, the subject, and one state after another is restored. A negative answer means the token that the clean
// model finds likeliest.
func Trace(ctx context.Context, m *lm.Model, ids []int32, from, to int, answer int32,
	o TraceOptions,
) (*TraceResult, error) {
	return trace.Run(ctx, m, ids, from, to, answer, o)
}

// Fluency is the n-gram entropy of a text (ROME: eval_utils_counterfact.py): (2/3·H2 + 4/3·H3)/2 with H the
// entropy, in bits, of word bigrams and trigrams; 0 for a text without them. It falls when a model repeats
// itself.
func Fluency(text string) float64 { return fluency.Fluency(text) }

// Consistency is the cosine of the TF-IDF vectors of two texts; document frequencies are those of the given collection.
func Consistency(a, b string, collection []string) float64 {
	return fluency.Consistency(a, b, collection)
}
