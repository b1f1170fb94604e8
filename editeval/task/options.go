package task

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/failure"
)

// ErrOptions: an option is out of range.
var ErrOptions = failure.Misuse("bad option", "")

// Options of [Run]. The zero value evaluates all documents as the tasks say.
type Options struct {
	// examples in each prompt; nil: as the task says, otherwise 0. A task that says 0 has none whatever stands
	// here
	Shots *int `json:"num_fewshot"`
	Limit int  `json:"limit"` // documents of each task; 0: all
	// share of each task's documents, from 0 to 1, in the place of Limit: the first ones, rounded up; 0: Limit counts
	Share float64 `json:"limit_share,omitempty"`
	Seed  *uint64 `json:"fewshot_seed"`
	// special tokens of the tokenizer: false never adds them; nil: as the tokenizer does by itself
	Special *bool `json:"special"`
	// tokens of a sequence; 0: the model's positions, at most 2048 where it has none
	MaxLength int `json:"max_length"`
	// texts generated at a time, at most 16; 0: as many as fit in 2 GiB of keys and values. No figure depends
	// on it
	BatchSize int `json:"batch_size"`
	// resamples of standard errors without a formula; at most 10,000,000; 0: 100000, -1: no standard errors
	Bootstrap int `json:"bootstrap_iters"`

	System string `json:"-"` // stands before the description of every prompt
	Chat   *Chat  `json:"-"` // writes prompts as conversations; nil: as plain text

	// Cache is a folder that keeps answers by the model's weights and the request, "" for none.
	Cache string `json:"-"`
	// Journal is a file that keeps the answers of this run, so that the same run can be continued; "" for none.
	// One that belongs to another model is refused.
	Journal string `json:"-"`
	// Identity tells models apart, in the cache and the journal: a hash of everything that an answer depends
	// on. "": the hash of the model's files, which is wrong for a model that was changed in memory or has
	// adapters attached.
	Identity string `json:"-"`
	// Sample gets a JSON line for each document and filter, task by task; nil: nobody.
	Sample func(task string, line []byte) error `json:"-"`
	// Router may change what the model computes from document to document: it gets the prompts of a task and
	// calls run for parts of them, by position, each once the model is ready for it. Every position must come
	// once. nil: the model stays as it is.
	Router func(ctx context.Context, prompts [][]int32, run func(at []int) error) error `json:"-"`
	// Progress is told how far a task is, in tokens; nil: nobody.
	Progress func(task string, done, total int64) `json:"-"`
}

// Validate returns every fault of the options.
func (o *Options) Validate() error {
	var faults []error
	check := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, args...)))
		}
	}

	check(o.Shots != nil && *o.Shots < 0, "%d examples", ptr(o.Shots))
	check(o.Limit < 0, "limit %d: want 1 or more, or 0 for all", o.Limit)
	check(!(o.Share >= 0 && o.Share < 1), "limit %g: a share is above 0 and below 1", o.Share)
	check(o.Share > 0 && o.Limit > 0, "limit %d and the share %g exclude each other", o.Limit, o.Share)
	check(o.MaxLength < 0 || o.MaxLength == 1, "max length %d: want 2 or more, or 0 for the model's", o.MaxLength)
	check(o.Bootstrap < -1 || o.Bootstrap > maxDraws,
		"%d resamples: want 1 to %d, 0 for 100000, or -1 for no standard errors", o.Bootstrap, maxDraws)
	check(o.BatchSize < 0, "batch size %d: want 1 or more, or 0 for automatic", o.BatchSize)

	return errors.Join(faults...)
}

// maxDraws bounds resamples, of which each keeps a number in memory.
const maxDraws = 10_000_000

func ptr(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// seed is that of the draws of examples.
func (o *Options) seed() uint64 {
	if o.Seed == nil {
		return 1234
	}
	return *o.Seed
}

// draws is the number of resamples.
func (o *Options) draws() int {
	if o.Bootstrap == 0 {
		return 100_000
	}
	return max(o.Bootstrap, 0)
}

// documents is how many of a task's documents are taken; 0 is all.
func (o *Options) documents(of int) int {
	if o.Share > 0 {
		return int(math.Ceil(float64(of) * o.Share)) // as lm-evaluation-harness rounds
	}
	return o.Limit
}
