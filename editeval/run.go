package editeval

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Options of [Run]. The zero value measures into a temporary folder.
type Options struct {
	Dir      string // of results and of what an interrupted run goes on with; "": a temporary one, removed at the end
	Name     string // of the model in the report; "": model
	Contract string // what results depend on besides plan, data and model, such as a version
	// Tokenizer of the model; nil: that of its folder.
	Tokenizer *tokenizer.Tokenizer
	// Identity is a hash of everything that the model's answers depend on; "": that of its files, which is
	// wrong for a model that was changed in memory or has adapters attached.
	Identity string
	// Progress is told how many of the steps of all sequences are done; nil: nobody.
	Progress func(done, total int)
	// Note is told of results that were damaged since they were written, and are made anew; nil: nobody.
	Note func(text string)
}

// ErrOptions: an option is out of range.
var ErrOptions = failure.Misuse("bad option", "")

// Validate returns every fault of the options.
func (o *Options) Validate() error {
	if o.Name != "" && !plainName.MatchString(o.Name) {
		return fmt.Errorf("%w: the name %.100q of the model is no plain word", ErrOptions, o.Name)
	}
	return nil
}

// Run carries out a plan on one model, sequence after sequence; models that the plan names are not looked at.
// The model is what it was when the call is over. A folder in which the same plan was interrupted is gone on
// with.
func Run(ctx context.Context, m *lm.Model, p Plan, o Options) (_ *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}

	if o.Dir == "" {
		dir, release, tempErr := scratch.Folder("compress-study-")
		if tempErr != nil {
			return nil, tempErr
		}
		defer func() { err = errors.Join(err, release()) }()
		o.Dir = dir
	}

	if o.Name == "" {
		o.Name = "model"
	}

	s, err := Open(p, o.Dir)
	if err != nil {
		return nil, err
	}

	s.Contract, s.Note = o.Contract, o.Note
	sub := &Subject{Name: o.Name, Model: m, Tokenizer: o.Tokenizer, Identity: o.Identity}
	if sub.Tokenizer == nil {
		if sub.Tokenizer, err = tokenizer.Load(m.Path()); err != nil {
			return nil, err
		}
	}

	if sub.Identity == "" {
		if sub.Identity, err = m.Fingerprint(ctx); err != nil {
			return nil, err
		}
	}

	if err := s.Prepare(ctx, sub, nil); err != nil {
		return nil, err
	}

	return s.all(ctx, sub, o.Progress)
}

// all measures the model unedited and in all sequences.
func (s *Study) all(ctx context.Context, sub *Subject, progress func(done, total int)) (*Report, error) {
	if err := s.Base(ctx, sub); err != nil {
		return nil, err
	}

	units := s.Units([]string{sub.Name})
	done, total := 0, len(units)*s.Work()
	for i, u := range units {
		err := s.Sequence(ctx, sub, u, func(edits, checkpoints int) {
			done += Share(edits, checkpoints)
			if progress != nil {
				progress(min(done, (i+1)*s.Work()), total)
			}
		})
		if err != nil {
			return nil, err
		}

		done = (i + 1) * s.Work()
		if progress != nil {
			progress(done, total)
		}
	}

	return s.Report([]*Subject{sub})
}

// perCheckpoint is how many edits a measurement counts for in displays of progress.
const perCheckpoint = 10

// Share is what edits and measurements count for in displays of progress.
func Share(edits, checkpoints int) int { return edits + perCheckpoint*checkpoints }

// Work is what a sequence counts for, about.
func (s *Study) Work() int { return Share(s.Counts[len(s.Counts)-1], len(s.Counts)) }
