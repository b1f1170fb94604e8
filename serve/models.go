package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/modelcompress/compress/internal/chat"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Model is what a name in a request stands for.
type Model struct {
	Name      string               // that requests name it by
	LM        *lm.Model            // several names may share one, with different adapters
	Tokenizer *tokenizer.Tokenizer // of LM
	Root      string               // where it lies, as clients are told; empty: not told
	Parent    string               // name of the model that this is an adapter of; empty: it is a model
	// Overlay makes LM compute as this model, on the rows of its requests; nil: LM is as it should be.
	Overlay *lm.Overlay
	// Enter does the same for all rows of a pass, until leave: it attaches an adapter that cannot be an overlay. It is
	// called between passes, and no other model of the same LM has been entered. Such models take turns, a pass each.
	Enter func() (leave func(), err error)
	// Draft makes what proposes tokens of one answer, which LM checks; end lets go of it. nil: nothing does. It does
	// not change answers, also not sampled ones.
	Draft func() (d lm.Draft, end func(), err error)
	// DraftBytes is about how many bytes of memory a draft takes for each token of its answer; 0: none worth counting.
	DraftBytes int64
	// Router chooses how LM computes for a prompt; nil: in one way.
	Router Router
	// Bytes of memory are what the model takes beyond LM, as an adapter does, until it is closed.
	Bytes int64
	// Close gives back what the model takes beyond LM, once nothing needs it: at the end of the last request after it
	// was unloaded, when its [Source] is closed, or at the end of the server. nil: nothing.
	Close func()
}

// Models is all that a server answers for.
type Models []Model

// Validate returns the first fault.
func (m Models) Validate() error {
	if len(m) == 0 {
		return errors.New("serve: no models")
	}
	for i, x := range m {
		switch {
		case x.Name == "":
			return fmt.Errorf("serve: model %d has no name", i)
		case x.LM == nil || x.Tokenizer == nil:
			return fmt.Errorf("serve: %q has no model or no tokenizer", x.Name)
		case slices.ContainsFunc(m[:i], func(o Model) bool { return o.Name == x.Name }):
			return fmt.Errorf("serve: two models have the name %q", x.Name)
		}
	}
	return nil
}

// Options of [Handler]. The zero value serves whoever reaches it.
type Options struct {
	Keys    []string // one of which requests must show, as Authorization: Bearer KEY; none: nobody has to
	Hosts   []string // names under which the server may be addressed, without ports; none: any
	Origins []string // pages whose scripts may ask (CORS); none: no page of another origin

	Memory     int64 // bytes for keys and values of each [lm.Model]; 0: 1 GiB
	Budget     int64 // bytes for all that sources of [Sources] take together, with adapters and drafts; 0: any number
	StepTokens int   // tokens that a step computes, about; 0: 512
	Sequences  int   // that generate at a time, for each [lm.Model]; 0: 64
	Queue      int   // sequences that wait, for each [lm.Model], beyond which requests are refused; 0: 256

	DraftTokens int // that a draft proposes at a time, at most; 0: 8

	// AdapterRoot is the folder from which clients may load adapters, and OpenAdapter opens one there, of a model that
	// is served, under a name. Its errors are told to clients. None: adapters are neither loaded nor unloaded.
	AdapterRoot string
	OpenAdapter func(ctx context.Context, base Model, name, dir string) (Model, error)

	MaxBody   int64         // bytes of a request; 0: 8 MiB
	MaxPrompt int           // tokens of a prompt; 0: what the model and the memory take
	MaxTokens int           // new tokens of a choice; 0: what the model and the memory take
	Timeout   time.Duration // of a request; 0: 10 minutes

	// Failed is told of faults of the program, which end requests of a model, from any goroutine; nil: nobody is.
	Failed func(model string, err error)

	now func() time.Time // of answers; nil: the clock

	patience time.Duration // that a client has to send a body, and to read of a stream
}

// Validate returns the first fault.
func (o *Options) Validate() error {
	switch {
	case o.Memory < 0 || o.Budget < 0 || o.MaxBody < 0 || o.Timeout < 0:
		return errors.New("serve: a limit is negative")
	case min(o.StepTokens, o.Sequences, o.Queue, o.DraftTokens, o.MaxPrompt, o.MaxTokens) < 0:
		return errors.New("serve: a limit is negative")
	case (o.AdapterRoot == "") != (o.OpenAdapter == nil):
		return errors.New("serve: a folder with adapters and what opens them need each other")
	case slices.Contains(o.Keys, ""):
		return errors.New("serve: a key is empty")
	}
	return nil
}

// filled has the defaults.
func (o Options) filled() Options {
	set := func(x *int, to int) {
		if *x == 0 {
			*x = to
		}
	}
	if o.Memory == 0 {
		o.Memory = 1 << 30
	}
	set(&o.StepTokens, 512)
	set(&o.Sequences, 64)
	set(&o.Queue, 256)

	if o.MaxBody == 0 {
		o.MaxBody = 8 << 20
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Minute
	}
	if o.patience == 0 {
		o.patience = patience
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.Failed == nil {
		o.Failed = func(string, error) {}
	}
	return o
}

// served is a model at work, or one whose place is closed: then it has no LM, no Tokenizer and no engine.
type served struct {
	Model
	place    *place
	engine   *engine
	template *chat.Template // nil: it has none
	stop     []int32        // tokens that end an answer
	chatStop []int32        // and those that end one in a chat
	context  int            // positions
	card     modelCard      // but for when it was made
	routes   bool           // it has a Router, also where its place is closed
	names    []string       // of choices of that, which are listed
	ways     []*served      // of its Router, by Root, those that were used last at the end
	guest    bool           // an adapter that was loaded at run time
	serial   uint64         // of all that were served, from 1
	created  time.Time

	mu      sync.Mutex
	users   int  // requests that have begun with it
	retired bool // and no more begin
}

// hold keeps the model for a request, until it calls what is returned.
func (s *served) hold() (let func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return func() { s.drop(func() { s.users-- }) }
}

// retire lets the model go once the requests that have it have ended.
func (s *served) retire() { s.drop(func() { s.retired = true }) }

// drop lets a user or the server go, and closes the model behind the last of them.
func (s *served) drop(one func()) {
	s.mu.Lock()
	one()
	last := s.retired && s.users == 0 && s.Close != nil
	s.mu.Unlock()
	if last {
		s.Close()
	}
}

// closed is what is left of a model whose place is closed.
func (s *served) closed() *served {
	return &served{
		Model: Model{Name: s.Name, Root: s.Root, Parent: s.Parent, Bytes: s.Bytes}, place: s.place, card: s.card,
		created: s.created, routes: s.routes, names: s.names,
	}
}

// newServed reads the template, and which tokens end an answer.
func newServed(ctx context.Context, m Model, p *place, o Options) (*served, error) {
	s := &served{Model: m, place: p, engine: p.engine, stop: m.LM.StopTokens(), context: p.engine.size}
	if m.Router != nil {
		s.routes, s.names = true, m.Router.Names()
	}
	if n := m.LM.Config().MaxPositions; n > 0 {
		s.context = min(s.context, n)
	}

	if err := s.read(ctx, o); err != nil {
		return nil, err
	}

	s.card = modelCard{
		ID: m.Name, Object: "model", OwnedBy: "compress", Root: m.Root, Context: s.context, Chat: s.template != nil,
		Parameters: m.LM.NumParameters(), Bytes: m.LM.DataSize(),
	}
	if m.Parent != "" {
		s.card.Parent = &m.Parent
	}
	return s, nil
}

// read reads the template.
func (s *served) read(ctx context.Context, o Options) error {
	source, err := chat.Default(s.LM.Path())
	if err != nil || source.Template == "" {
		return err
	}
	if s.template, err = chat.Parse(source.Template, source.Tokens, o.now); err != nil {
		return fmt.Errorf("%s: %w", s.LM.Path(), err)
	}

	s.chatStop, err = s.template.Stops(ctx, s.Tokenizer, s.plain, s.stop)
	return err
}

// kind is what keys and values depend on beside tokens. A name alone may stand for another adapter later.
func (s *served) kind() string { return strconv.FormatUint(s.serial, 10) }

// encode are the tokens of a prompt. What cannot be encoded is the client's fault.
func (s *served) encode(text string, o tokenizer.EncodeOptions) ([]int32, error) {
	ids, err := s.Tokenizer.Encode(text, o)
	if err != nil {
		return nil, badRequest("prompt", "the prompt cannot be encoded: %v", err)
	}
	return ids, nil
}

// plain are the tokens of a text that has its special tokens itself.
func (s *served) plain(text string) ([]int32, error) {
	return s.Tokenizer.Encode(text, tokenizer.EncodeOptions{NoSpecial: true})
}
