package job

import (
	"context"

	"github.com/modelcompress/compress/merge/internal/stream"
)

// Steps is what merges a document into a folder. [Ordinary] merges by one method; package merge/mediate decides by
// measures which tensors are merged and which stay apart, and adds files beside the weights.
//
// They are taken in the order in which they stand here. The folder exists from Begin on; what fails later leaves it to
// a resumed merge, or removes it.
type Steps interface {
	// Identity gives the identity of the job, to which more may be added that the result depends on.
	Identity(ctx context.Context, job string) (string, error)
	// Prepare finds out what has to be known before anything is written. job is what the result keeps of the identity.
	Prepare(ctx context.Context, job string) error
	// Groups makes what the engine runs; done reports which tensors an interrupted run has finished.
	Groups(done func(name string) bool) ([]stream.Group, error)
	// Begin is called with the unfinished folder before the first tensor is written.
	Begin(dir string) error
	// Finish adds to the folder what needs the finished weights; nil: it has no experts.
	Finish(ctx context.Context, dir string) (*Mediation, error)
	// Seal is called when every other file is written.
	Seal(ctx context.Context, dir string) error
	// Intact compares what Finish and Seal have added to a folder that an earlier run has finished.
	Intact(ctx context.Context, dir string) error
}

// Mediator makes the steps of documents by mediate. Like [Handle] it has a public name in package merge.
type Mediator struct {
	steps func(w *Work, works bool) (Steps, error)
}

// NewMediator is a mediator by a function, see [Mediator.Steps].
func NewMediator(steps func(w *Work, works bool) (Steps, error)) Mediator { return Mediator{steps} }

// Steps checks a document that is open. works is false where nothing is going to be written. Steps of a mediator that
// is not there are nil.
func (m Mediator) Steps(w *Work, works bool) (Steps, error) {
	if m.steps == nil {
		return nil, nil
	}
	return m.steps(w, works)
}

// Mediation is what a report says about a document by mediate, see package merge.
type Mediation struct {
	Groups         int
	Routed         []string
	Experts        []string
	ExpertBytes    int64
	Kept           string
	RouterAccuracy *float64
	Router         []string
}

// Ordinary are the steps of a document by one method.
type Ordinary struct{ *Work }

// Identity implements [Steps].
func (Ordinary) Identity(_ context.Context, job string) (string, error) { return job, nil }

// Prepare implements [Steps].
func (Ordinary) Prepare(context.Context, string) error { return nil }

// Begin implements [Steps].
func (Ordinary) Begin(string) error { return nil }

// Finish implements [Steps].
func (Ordinary) Finish(context.Context, string) (*Mediation, error) { return nil, nil }

// Seal implements [Steps].
func (Ordinary) Seal(context.Context, string) error { return nil }

// Intact implements [Steps].
func (Ordinary) Intact(context.Context, string) error { return nil }
