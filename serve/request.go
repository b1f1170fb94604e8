package serve

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/modelcompress/compress/lm"
)

// Ways in which a request ends other than by its answer.
var (
	errBusy   = errors.New("too many requests are waiting; try again later")
	errPanic  = errors.New("a fault of this program ended the request")
	errClosed = errors.New("the server is shutting down")
	errMemory = errors.New("the memory for keys and values does not hold this request")
)

// request is prompts that were asked for together.
type request struct {
	ctx    context.Context
	model  *served
	choice string // of the model's Router
	tasks  []*task
	out    outbox
	gone   chan struct{} // a task of which the loop lets go
}

// task is a prompt and the choices that continue it.
type task struct {
	of      *request
	way     *served // in which the model computes; nil: as it is
	first   int     // of its choices among those of the request
	prompt  []int32
	text    string // of the prompt, where it was text
	max     int    // new tokens of a choice
	stop    []int32
	stops   []string // texts that end a choice
	shape   shape
	echo    bool
	tops    int // likely tokens beside each, with logprobs
	scored  bool
	choices []*choice

	// Of the loop alone:
	sequence *lm.Sequence // of the prompt, until it is whole
	done     bool         // with its prompt
	failed   bool
	gone     bool        // the loop has let go of it
	told     bool        // the client knows: what is about the prompt stays
	reused   int         // tokens of the prompt that were computed for others
	err      error       // of the prompt
	prior    []tokenInfo // of the prompt, with echo and logprobs
	began    time.Time
	serial   uint64 // order of arrival
}

// name is that of the model, as it was asked for.
func (r *request) name() string {
	if r.choice == "" {
		return r.model.Name
	}
	return r.model.Name + ":" + r.choice
}

// model is what computes the task.
func (t *task) model() *served {
	if t.way != nil {
		return t.way
	}
	return t.of.model
}

// shape is how the probabilities of the next token are shaped.
type shape struct {
	options   lm.GenerateOptions
	bias      map[int32]float32
	frequency float64 // taken off a logit for each time that the answer has the token
	presence  float64 // taken off a logit if the answer has the token
}

// tokenInfo is a token with its probability under the model.
type tokenInfo struct {
	id      int32
	logprob float64 // natural logarithm; 0 and first for the first token of a prompt
	first   bool    // nothing was before it that could predict it
	tops    []candidate
}

// candidate is a likely token.
type candidate struct {
	id      int32
	logprob float64
}

// event is what the loop has to say of a choice of a request.
type event struct {
	choice int
	prompt *task // the prompt is computed
	text   string
	tokens []tokenInfo
	finish string // why the choice ended; empty: it goes on
	count  int    // its new tokens, where it ended
	err    error  // the whole request ends
}

// outbox carries events from the loop to whoever answers the client. The loop never waits for a client: what is not
// taken yet is bounded by the tokens that a request may have.
type outbox struct {
	mu     sync.Mutex
	events []event
	wake   chan struct{}
}

func newOutbox() outbox { return outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) put(e event) {
	o.mu.Lock()
	o.events = append(o.events, e)
	o.mu.Unlock()

	select {
	case o.wake <- struct{}{}:
	default: // it knows already
	}
}

// take waits for events.
func (o *outbox) take(ctx context.Context) ([]event, error) {
	for {
		o.mu.Lock()
		list := o.events
		o.events = nil
		o.mu.Unlock()

		if len(list) > 0 {
			return list, nil
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
