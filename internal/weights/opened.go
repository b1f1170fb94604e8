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

// Record is the quantised models that one run of a verb has opened, for its report. It is handed down in the context
// that [Recorded] makes. The zero value is ready; all methods may be called from several goroutines at once.
type Record struct {
	mu   sync.Mutex
	list []Quantised
}

// recordKey is the key of a context's record.
type recordKey struct{}

// Recorded gives a context in which every quantised model that is opened enters a record.
func Recorded(ctx context.Context, r *Record) context.Context {
	return context.WithValue(ctx, recordKey{}, r)
}

// note enters a source into the record of a context, if it is quantised and there is one. A model is entered once, so
// that a run which opens the same ones for days does not grow.
func note(ctx context.Context, s *Source) {
	r, _ := ctx.Value(recordKey{}).(*Record)
	q, quantised := s.Quantised()
	if r == nil || !quantised {
		return
	}

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
