package weights

import (
	"context"
	"slices"
	"sync"
)

// Quantised is a model that was opened whose values are decoded.
type Quantised struct {
	Path string `json:"path"` // of the GGUF file, where a folder holds one
	Form string `json:"form"` // as [Source.Quantisation] says it
}

// String is what a reader of a result has to know.
func (q Quantised) String() string {
	return q.Path + ": its values are those of a quantised model (" + q.Form + ")"
}

// Quantised is what a reader of a result has to know of the source; false for one of floating-point numbers.
func (s *Source) Quantised() (Quantised, bool) {
	return Quantised{s.Origin(), s.quantisation}, s.quantisation != ""
}

// Record is the quantised models that one run has opened, for its report. It is handed down in the context that
// [Recorded] makes. The zero value is ready; all methods may be called from several goroutines at once.
type Record struct {
	around *Record // that of the run which this one is a part of; nil: none
	mu     sync.Mutex
	list   []Quantised
}

// recordKey is the key of a context's record.
type recordKey struct{}

// Recorded gives a context in which every quantised model that is opened enters a new record, and those that the
// context had already.
func Recorded(ctx context.Context, r *Record) context.Context {
	r.around = recordOf(ctx)
	return context.WithValue(ctx, recordKey{}, r)
}

// recordOf gives the record of a context; nil where there is none.
func recordOf(ctx context.Context) *Record {
	r, _ := ctx.Value(recordKey{}).(*Record)
	return r
}

// Remarks is what a reader of a result has to know of the models that were opened in a context; nothing where that has
// no record.
func Remarks(ctx context.Context) (texts []string) {
	r := recordOf(ctx)
	if r == nil {
		return nil
	}
	for _, q := range r.Models() {
		texts = append(texts, q.String())
	}
	return texts
}

// note enters a source into the record of a context, if it is quantised and there is one. A model is entered once, so
// that a run which opens the same ones for days does not grow.
func note(ctx context.Context, s *Source) {
	q, quantised := s.Quantised()
	for r := recordOf(ctx); r != nil && quantised; r = r.around {
		r.add(q)
	}
}

func (r *Record) add(q Quantised) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.list, q) {
		r.list = append(r.list, q)
	}
}

// Models lists what was entered, in the order of the first opening.
func (r *Record) Models() []Quantised {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}
