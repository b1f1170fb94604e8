package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Source is a model, with its adapters, that is opened when a request names one of them, and closed again when others
// need its memory.
type Source struct {
	Name string // of the model, for faults
	// Open opens all of it. One source is opened at a time. Requests wait for it, so that it should not end when ctx,
	// that of the request which happened to be first, does.
	Open func(ctx context.Context) (Opened, error)
	// Unchanged returns an error if what Open would open is not what it has opened first; nil: it cannot change.
	Unchanged func() error
}

// Opened is what a [Source] has opened.
type Opened struct {
	Models Models // the model, then its adapters; the same names every time
	Bytes  int64  // of memory that it takes, a draft's weights too, beside keys and values and [Model].Bytes
	Close  func() // lets go of the model once nothing of it runs
}

// ErrBudget says that a model takes more than [Options].Budget.
var ErrBudget = errors.New("a model does not fit the memory")

// place is where a model and its adapters are when they are open. Those of a [Handler] are never closed. The lock of
// the server guards it.
type place struct {
	name   string
	source *Source  // nil: it stays open
	opened *Opened  // nil: it is closed
	engine *engine  // nil: it is closed
	bytes  int64    // that it takes when it is open, without adapters
	need   int64    // that it takes when it is opened, with its adapters; 0: it never was
	extra  int64    // that open adapters take, also those that were unloaded and have requests
	users  int      // requests that have begun with it
	guests int      // adapters that were loaded at run time: it is not closed while there are any
	pins   int      // adapters that are being loaded: nor now
	gone   []string // adapters that were unloaded
	last   uint64   // when it was last used
	leaves bool     // no request begins with it: it will be closed when those that it has have ended
}

// ready reports whether a request may begin.
func (p *place) ready() bool { return p.engine != nil && !p.leaves }

// closeSource lets go of what the source has opened.
func (p *place) closeSource() {
	if p.opened != nil && p.opened.Close != nil {
		p.opened.Close()
	}
	p.opened = nil
}

// Sources makes a server for models that share a budget of memory ([Options].Budget). All are opened once, so that what
// is wrong with them shows now; those that do not fit are closed again, the first ones stay. Without a budget all stay
// open. The server closes what it has opened when [Server.Shutdown] ends it.
func Sources(ctx context.Context, list []Source, o Options) (*Server, error) {
	if len(list) == 0 {
		return nil, errors.New("serve: no models")
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}

	s := newServer(o)
	for _, source := range slices.Backward(list) {
		s.places = slices.Insert(s.places, 0, &place{name: source.Name, source: &source})
		if err := s.load(ctx, s.places[0]); err != nil {
			s.stop()
			return nil, err
		}
	}

	// They were opened in the opposite order, so that the first are those that were used last. Adapters follow the
	// models.
	slices.SortStableFunc(s.models, func(a, b *served) int {
		if (a.Parent == "") != (b.Parent == "") {
			return cmp.Compare(a.Parent, b.Parent)
		}
		return cmp.Compare(slices.Index(s.places, a.place), slices.Index(s.places, b.place))
	})
	s.routes()
	return s, nil
}

// engines are the loops of open models.
func (s *Server) engines() (list []*engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.places {
		if p.engine != nil {
			list = append(list, p.engine)
		}
	}
	return list
}

// loaded names the models that are open.
func (s *Server) loaded() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{}
	for _, p := range s.places {
		if p.engine != nil {
			names = append(names, p.name)
		}
	}
	return names
}

// useLocked keeps a place open for a request, until it calls what is returned. The lock is held.
func (s *Server) useLocked(p *place) (free func()) {
	s.clock++
	p.last = s.clock
	p.users++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clock++
		p.last = s.clock
		p.users--
		if p.users == 0 {
			s.tell()
		}
	}
}

// tell wakes those who wait for a place. The lock is held.
func (s *Server) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// bring opens a place, or waits until others have. It is worth a look afterwards whether it is open.
func (s *Server) bring(ctx context.Context, p *place, changed chan struct{}) error {
	select {
	case s.loader <- struct{}{}:
	case <-changed:
		return nil
	case <-s.stopped:
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	defer func() { <-s.loader }()
	return s.load(ctx, p)
}

// load opens a place, in the memory of others if it has to be. The caller is the only one.
func (s *Server) load(ctx context.Context, p *place) error {
	if s.ending.Load() {
		return errClosed
	}
	s.mu.Lock()
	ready := p.ready()
	s.mu.Unlock()
	if ready {
		return nil
	}

	refuse := func(left int64) error { return s.noRoom(p, left) }
	if p.need > 0 { // it was open before
		if err := s.unchanged(p); err != nil {
			return err
		}
		if err := s.makeRoom(ctx, p, p.need, refuse); err != nil {
			return err
		}
	}

	began := time.Now()
	opened, err := p.source.Open(ctx)
	if err != nil {
		return s.notLoaded(p, "model_load_failed", err)
	}
	if err := s.unchanged(p); err != nil { // while it was opened
		opened.Close()
		return err
	}

	// How much it takes is only known now.
	bytes := opened.Bytes + s.options.Memory
	if opened.Models[0].DraftBytes > 0 {
		bytes += s.options.draftMemory()
	}
	adapters := p.adapters(opened.Models)
	need := bytes + adapters
	if err = s.fits(p, need, adapters); err == nil && p.need != need {
		err = s.makeRoom(ctx, p, need, refuse)
	}
	if err == nil {
		err = s.install(ctx, p, opened, bytes)
	}
	if err != nil {
		opened.Close()
		return err
	}

	s.watch.loads.WithLabelValues(p.name).Observe(time.Since(began).Seconds())
	return nil
}

// adapters is how many bytes the adapters take that are opened with a model, but for those that were unloaded.
func (p *place) adapters(models Models) (bytes int64) {
	for _, m := range models {
		if !slices.Contains(p.gone, m.Name) {
			bytes += m.Bytes
		}
	}
	return bytes
}

// unchanged refuses to open other files under the same name.
func (s *Server) unchanged(p *place) error {
	if p.source.Unchanged == nil {
		return nil
	}
	if err := p.source.Unchanged(); err != nil {
		return s.notLoaded(p, "model_changed", err)
	}
	return nil
}

// notLoaded is the fault of a model that cannot be opened.
func (s *Server) notLoaded(p *place, code string, err error) error {
	if p.need == 0 { // nobody has asked yet
		return err
	}
	return &fault{
		http.StatusInternalServerError, "server_error",
		fmt.Sprintf("the model %s cannot be loaded: %v", shown(p.name), err), "model", code,
	}
}

// fits refuses a model that takes more than all may.
func (s *Server) fits(p *place, bytes, adapters int64) error {
	if s.options.Budget == 0 || bytes <= s.options.Budget {
		return nil
	}
	with := ""
	if adapters > 0 {
		with = fmt.Sprintf(" and %d for adapters", adapters)
	}
	return s.notLoaded(p, "out_of_memory", fmt.Errorf("%w: %s takes %d bytes, %d of them for keys and values%s, and "+
		"all models together may take %d", ErrBudget, p.name, bytes, s.options.Memory, with, s.options.Budget))
}

// errPinned says that a model has to wait for an adapter of another one, which is being loaded.
var errPinned = errors.New("an adapter is being loaded")

// noRoom is why a model cannot be opened where all that could go has gone. The lock is held.
func (s *Server) noRoom(p *place, left int64) error {
	if slices.ContainsFunc(s.places, func(o *place) bool { return o != p && o.pins > 0 && o.guests == 0 }) {
		return errPinned
	}
	return &fault{
		http.StatusInsufficientStorage, "server_error", fmt.Sprintf("the model %s takes %d bytes, and %d are left "+
			"beside those that have adapters which were loaded at run time", shown(p.name), p.need, left), "model",
		"out_of_memory",
	}
}

// makeRoom closes the places that were used least recently, but for p, as long as there is no room for some bytes: no
// request begins with them any more, and those that they have come to their end. Where that would not be enough, none
// is closed, and refuse, which is called with the lock held, says so. The caller has the loader.
func (s *Server) makeRoom(ctx context.Context, p *place, bytes int64, refuse func(left int64) error) error {
	if s.options.Budget == 0 {
		return nil
	}

	s.mu.Lock()
	list, left := s.least(p, bytes)
	var err error
	if left < bytes {
		list, err = nil, refuse(max(left, 0))
	}
	for _, o := range list {
		o.leaves = true
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}

	err = s.idle(ctx, list)
	for _, o := range list {
		if err == nil {
			s.evict(o)
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range list {
		o.leaves = false
	}
	s.tell()
	return err
}

// least chooses the places that make room, and tells how many bytes are left when they are closed. The lock is held.
func (s *Server) least(p *place, bytes int64) (list []*place, left int64) {
	var open []*place
	for _, o := range s.places {
		if o != p && o.engine != nil && o.source != nil && o.guests+o.pins == 0 {
			open = append(open, o)
		}
	}
	slices.SortFunc(open, func(a, b *place) int { return cmp.Compare(a.last, b.last) })

	left = s.options.Budget - s.held
	for _, o := range open {
		if left >= bytes {
			break
		}
		list = append(list, o)
		left += o.bytes + o.extra
	}
	return list, left
}

// heldLocked counts bytes that a place has taken, or given back. The lock is held.
func (s *Server) heldLocked(p *place, model, adapters int64) {
	s.held += model + adapters
	s.adapted += adapters
	p.extra += adapters
	s.watch.loaded.Set(float64(s.held))
	s.watch.adapted.Set(float64(s.adapted))
}

// countLocked counts what an adapter takes from now on until it is closed. The lock is held.
func (s *Server) countLocked(m *served) {
	s.heldLocked(m.place, 0, m.Bytes)
	end := m.Close
	m.Close = func() {
		if end != nil {
			end()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.heldLocked(m.place, 0, -m.Bytes)
		if s.named(m.Name) == nil {
			s.watch.gone(m.Name)
		}
	}
}

// Use is what a model takes of [Options].Budget.
type Use struct {
	Name     string
	Bytes    int64 // of the model with its adapters, as far as they are open; of a closed one, what it will take
	Adapters int64 // of these, those of adapters
	Loaded   bool
}

// Uses tells what each source of [Sources] takes.
func (s *Server) Uses() (list []Use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.places {
		u := Use{p.name, p.need, p.need - p.bytes, p.engine != nil}
		if u.Loaded {
			u.Bytes, u.Adapters = p.bytes+p.extra, p.extra
		}
		list = append(list, u)
	}
	return list
}

// idle waits until places have no requests any more.
func (s *Server) idle(ctx context.Context, list []*place) error {
	for {
		s.mu.Lock()
		busy := slices.ContainsFunc(list, func(o *place) bool { return o.users > 0 })
		changed := s.changed
		s.mu.Unlock()
		if !busy {
			return nil
		}
		if err := s.awaits(ctx, changed); err != nil {
			return err
		}
	}
}

// evict closes a place that nobody uses.
func (s *Server) evict(p *place) {
	s.mu.Lock()
	e := p.engine
	p.engine = nil
	s.heldLocked(p, -p.bytes, 0)
	s.models = slices.Clone(s.models)
	var leaving []*served
	for i, m := range s.models {
		if m.place == p {
			leaving = append(leaving, m)
			s.models[i] = m.closed()
		}
	}
	s.mu.Unlock()

	e.drain(context.Background())
	s.watch.forget(e)
	for _, m := range leaving {
		m.retire()
	}
	p.closeSource()
	s.watch.evictions.WithLabelValues(p.name).Inc()
}

// install puts what was opened in its place.
func (s *Server) install(ctx context.Context, p *place, opened Opened, bytes int64) error {
	if err := opened.Models.Validate(); err != nil {
		return err
	}
	for _, m := range opened.Models {
		if p.need == 0 && slices.ContainsFunc(s.list(), func(o *served) bool { return o.Name == m.Name }) {
			return fmt.Errorf("serve: two models have the name %q", m.Name)
		}
	}

	e, err := newEngine(p.name, opened.Models[0].LM, s.options, s.watch)
	if err != nil {
		return s.notLoaded(p, "model_load_failed", err)
	}

	at := &place{engine: e} // as newServed wants it; others do not see it yet
	var list []*served
	for _, m := range opened.Models {
		one, err := newServed(ctx, m, at, s.options)
		if err != nil {
			e.drain(context.Background())
			s.watch.forget(e)
			return s.notLoaded(p, "model_load_failed", err)
		}
		one.place = p
		list = append(list, one)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	p.engine = e
	p.opened = &opened
	p.bytes = bytes
	p.need = bytes + p.adapters(opened.Models)
	s.heldLocked(p, bytes, 0)
	s.clock++
	p.last = s.clock
	for _, m := range list {
		if slices.Contains(p.gone, m.Name) {
			m.retire()
			continue
		}
		s.countLocked(m)
		if old := s.putLocked(m); old != nil {
			m.created = old.created
		}
	}
	s.tell()
	return nil
}
