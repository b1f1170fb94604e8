package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/lm"
)

// engine is the loop of a model. Requests come in by submit; what they get goes to their outboxes.
type engine struct {
	name    string // of the model, in metrics
	m       *lm.Model
	batch   *lm.Batch
	options Options
	watch   *watch
	page    int // positions of a page
	size    int // positions that a sequence may have, by the memory

	mu      sync.Mutex
	waiting []*task
	calls   []func() // to be made between passes
	ending  bool     // no new requests
	stopped error    // no requests at all
	failure error    // why, where a fault of the program has brought it about
	serial  uint64
	wake    chan struct{}
	idle    chan struct{} // closed when it has ended
	runs    mmapsafe.Group
	pass    context.Context
	cancel  context.CancelFunc

	// Of the loop alone:
	tasks   []*task // in order of arrival
	entered *served // whose adapter is attached to the whole model; nil: none
	leave   func()
	spare   [][]float32 // copies of logits
}

// newEngine starts the loop of a model; close ends it.
func newEngine(name string, m *lm.Model, o Options, w *watch) (*engine, error) {
	b, err := m.NewBatch(lm.BatchOptions{Memory: o.Memory})
	if err != nil {
		return nil, err
	}

	e := &engine{
		name: name, m: m, batch: b, options: o, watch: w, wake: make(chan struct{}, 1), idle: make(chan struct{}),
		page: lm.PagePositions, size: b.Use().Positions,
	}
	e.pass, e.cancel = context.WithCancel(context.Background())
	e.runs.Go(e.loop)
	return e, nil
}

// submit takes a request in, or refuses it.
func (e *engine) submit(r *request) error {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.failure != nil {
		return e.failure
	}
	if e.ending || e.stopped != nil {
		return errClosed
	}

	// One request may ask for more than the queue holds: it is taken if nobody waits.
	n := 0
	for _, t := range r.tasks {
		n += len(t.choices)
	}
	held := 0
	for _, t := range e.waiting {
		held += len(t.choices)
	}
	if held > 0 && held+n > e.options.Queue {
		return errBusy
	}

	r.gone = make(chan struct{}, len(r.tasks))
	for _, t := range r.tasks {
		e.serial++
		t.serial = e.serial
		t.began = time.Now()
	}
	e.waiting = append(e.waiting, r.tasks...)
	e.poke()
	return nil
}

// between runs f while no pass runs and nothing is attached.
func (e *engine) between(f func() error) error {
	done := make(chan error, 1)
	e.mu.Lock()
	if e.ending || e.stopped != nil {
		e.mu.Unlock()
		return errClosed
	}
	e.calls = append(e.calls, func() { done <- e.safely(f) })
	e.mu.Unlock()
	e.poke()
	return <-done
}

// call makes the calls that came in.
func (e *engine) call() {
	e.mu.Lock()
	calls := e.calls
	e.calls = nil
	e.mu.Unlock()

	for _, f := range calls {
		e.exit()
		f()
	}
}

// poke wakes the loop.
func (e *engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// drain refuses new requests, and waits for those that are there until ctx ends, when they are cut off.
func (e *engine) drain(ctx context.Context) {
	e.mu.Lock()
	e.ending = true
	e.mu.Unlock()
	e.poke()

	select {
	case <-e.idle:
	case <-ctx.Done():
		e.mu.Lock()
		e.stopped = errClosed
		e.mu.Unlock()
		e.cancel()
		e.poke()
		<-e.idle
	}
	e.cancel()
}

// loop takes steps until drained.
func (e *engine) loop() {
	defer close(e.idle)
	defer func() { e.batch.Close() }()
	defer e.exit()

	for {
		e.call()
		e.admit()
		stopped := e.sweep()
		e.watch.state(e)
		if len(e.tasks) == 0 {
			e.mu.Lock()
			more := len(e.waiting)+len(e.calls) > 0
			over := (e.ending || stopped) && !more
			e.mu.Unlock()
			if over {
				return
			}
			if !more {
				<-e.wake
			}
			continue
		}

		err := e.safely(e.step)
		if err != nil && e.pass.Err() != nil {
			err = errClosed
		}
		if errors.Is(err, errPanic) {
			e.forget()
		}
		if err != nil {
			e.failAll(err)
		}
		if errors.Is(err, errPanic) {
			e.renew()
		}
	}
}

// safely gives the error of f, or of a panic in it: a fault of the program that one request has met must not end those
// of other models, which are in the same process.
func (e *engine) safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
			e.options.Failed(e.name, fmt.Errorf("%w\n%s", err, debug.Stack()))
			e.watch.panicked.Inc()
		}
	}()
	return mmapsafe.Do(f)
}

// forget lets go of sequences without touching what the batch has of them.
func (e *engine) forget() {
	for _, t := range e.tasks {
		t.sequence = nil
		for _, c := range t.choices {
			c.sequence = nil
		}
	}
}

// renew begins anew behind a panic, in which what the batch has of sequences may have come apart. Where that fails, the
// model answers no more.
func (e *engine) renew() {
	err := e.safely(func() error {
		e.exit()
		e.batch.Close()
		b, err := e.m.NewBatch(lm.BatchOptions{Memory: e.options.Memory})
		if err == nil {
			e.batch = b
			e.spare = nil
		}
		return err
	})
	if err == nil {
		return
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = fmt.Errorf("%w, and the model could not begin anew: %w", errPanic, err)
	e.failure = e.stopped
}

// broken is why the model answers no more; nil: it does.
func (e *engine) broken() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failure
}

// sweep ends the requests whose client has gone, or all when the server stops.
func (e *engine) sweep() (stopped bool) {
	e.mu.Lock()
	cause := e.stopped
	waiting := e.waiting
	if cause != nil {
		e.waiting = nil
	} else {
		e.waiting = slices.DeleteFunc(e.waiting, func(t *task) bool {
			if t.of.ctx.Err() == nil {
				return false
			}
			t.of.gone <- struct{}{}
			return true
		})
	}
	e.mu.Unlock()

	if cause != nil {
		for _, t := range append(waiting, e.tasks...) {
			e.fail(t, cause)
		}
	}
	for _, t := range slices.Clone(e.tasks) {
		if t.of.ctx.Err() != nil {
			e.fail(t, context.Cause(t.of.ctx))
		}
	}
	return cause != nil
}

// admit takes tasks in from the queue, in order, as long as there are places and memory for them.
func (e *engine) admit() {
	e.mu.Lock()
	defer e.mu.Unlock()

	places := e.options.Sequences
	for _, t := range e.tasks {
		places -= len(t.choices)
	}

	use := e.batch.Use()
	room := use.Positions - use.Used
	for _, t := range e.tasks {
		room -= e.lacking(t)
	}

	for len(e.waiting) > 0 && e.stopped == nil {
		t := e.waiting[0]
		need := e.lacking(t)
		if len(e.tasks) > 0 && (len(t.choices) > places || need > room) {
			return
		}

		places -= len(t.choices)
		room -= need
		e.tasks = append(e.tasks, t)
		e.waiting = e.waiting[1:]
	}
}

// lacking is about how many positions a task will soon take that it does not have: its prompt, and a page for each
// choice.
func (e *engine) lacking(t *task) int {
	if t.done {
		return e.page * len(t.choices)
	}
	n := len(t.prompt) + e.page*len(t.choices)
	if t.sequence != nil {
		n -= t.sequence.Len()
	}
	return n
}

// step runs a pass: for the requests of the model and of all adapters that act on their own rows, or of one adapter
// that acts on the whole model, in turn.
func (e *engine) step() error {
	s := e.turn()
	if err := e.enter(s); err != nil {
		for _, t := range slices.Clone(e.tasks) {
			if t.model().alone() == s {
				e.fail(t, err)
			}
		}
		return nil
	}

	p := e.plan(s)
	if len(p.work) == 0 { // tasks without work have just ended
		return nil
	}

	start := time.Now()
	err := e.batch.Step(e.pass, p.work, p.take)
	switch {
	case errors.Is(err, lm.ErrBatchFull):
		e.release(p)
		return e.giveUp()
	case err != nil:
		e.release(p)
		return err
	}

	e.watch.stepped(p, time.Since(start))
	e.chosen(p)
	return nil
}

// turn is the adapter that acts on the whole model whose requests are next, or nil for all other requests together.
func (e *engine) turn() *served {
	var kinds []*served
	for _, t := range e.tasks {
		if s := t.model().alone(); !slices.Contains(kinds, s) {
			kinds = append(kinds, s)
		}
	}
	slices.SortFunc(kinds, func(a, b *served) int { return cmp.Compare(a.turn(), b.turn()) })

	next := slices.IndexFunc(kinds, func(s *served) bool { return s.turn() > e.entered.turn() })
	return kinds[max(next, 0)]
}

// alone is the model itself if no other can be computed with it in a pass, otherwise nil.
func (s *served) alone() *served {
	if s.Enter == nil {
		return nil
	}
	return s
}

// turn is what turns go by.
func (s *served) turn() uint64 {
	if s == nil {
		return 0
	}
	return s.serial
}

// enter attaches what a model needs.
func (e *engine) enter(s *served) error {
	if e.entered == s {
		return nil
	}
	e.exit()
	if s == nil {
		return nil
	}

	leave, err := s.Enter()
	if err != nil {
		return err
	}
	e.entered, e.leave = s, leave
	return nil
}

// exit detaches it.
func (e *engine) exit() {
	if e.leave != nil {
		e.leave()
	}
	e.entered = nil
	e.leave = nil
}

// plan is the work of a step, and what comes of it.
type plan struct {
	e      *engine
	work   []lm.Work
	of     []owner
	logits [][][]float32 // after tokens of each work, where somebody chooses by them
	share  int           // tokens that may be proposed for a choice
}

// owner is whose a piece of work is: a choice's, or the prompt's of a task.
type owner struct {
	t *task
	c *choice // nil: the prompt's

	proposed []int32 // of the choice, the last tokens of the work
}

// plan chooses the work of a step: a token of each sequence that generates, then parts of prompts.
func (e *engine) plan(s *served) *plan {
	p := &plan{e: e, share: e.draftShare(s)}
	left := e.options.StepTokens
	for _, t := range slices.Clone(e.tasks) {
		if t.model().alone() != s || !t.done {
			continue
		}
		for _, c := range t.choices {
			if c.finish == "" && c.err == nil && !t.failed {
				left -= p.generate(c, max(left, 1))
			}
		}
	}

	// Whole pages, so that a prompt's bits do not depend on how it was cut; at least one in a step, so that prompts do
	// not wait for ever where many generate.
	pages := max(left/e.page, 1)
	prompts := e.prompts(s)
	given := make([]int, len(prompts))
	for more := true; more && pages > 0; {
		more = false
		for i, t := range prompts {
			if pages > 0 && t.sequence.Len()+given[i]*e.page < len(t.prompt) {
				given[i]++
				pages--
				more = true
			}
		}
	}

	for i, t := range prompts {
		if given[i] > 0 {
			p.prompt(t, given[i]*e.page)
		}
	}

	p.logits = make([][][]float32, len(p.work))
	return p
}

// prompts are the tasks whose prompts go on, in order of arrival. One that begins as another does whose pages are not
// there yet waits for these, instead of computing them, too.
func (e *engine) prompts(s *served) (list []*task) {
	for _, t := range e.tasks {
		if t.model().alone() != s || t.done {
			continue
		}

		waits := t.sequence == nil && !t.whole() && slices.ContainsFunc(list, func(o *task) bool {
			n := min(common(o.prompt, t.prompt), len(t.prompt)-1) / e.page * e.page
			return o.sequence.Len() < n
		})
		if waits {
			continue
		}

		if t.sequence == nil {
			t.sequence = e.batch.Add(t.model().kind())
			if !t.whole() {
				n := t.sequence.Begin(t.prompt)
				if !t.told { // whoever was told reads it
					t.reused = n
				}
			}
		}
		list = append(list, t)
	}
	return list
}

// whole reports whether all tokens of the prompt have to be computed: the probabilities of all are wanted.
func (t *task) whole() bool { return t.echo && t.scored }

// common is how many tokens two prompts begin with alike.
func common(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// generate plans the tokens of a choice that have not been computed with: the one that was chosen last, or after its
// memory went to others, all.
func (p *plan) generate(c *choice, most int) int {
	next := c.ids[c.sequence.Len()-len(c.of.prompt):]
	w := lm.Work{Sequence: c.sequence, IDs: next, Overlay: c.of.model().Overlay}
	if len(next) > 1 {
		if r := p.e.m.Config().Rope; r != nil && !r.Static() {
			most = 1 // as they were the first time
		}
		if len(next) > most {
			w.IDs, w.Logits = next[:most], lm.NoLogits
		}
	}

	var ids []int32
	if n := min(p.share, most-1); len(next) == 1 && n > 0 && c.of.model().Draft != nil && p.e.mayDraft(c) {
		var err error
		if ids, err = c.propose(p.e.pass, n); err != nil {
			p.without(c.of)
			p.e.fail(c.of, err)
			return 0
		}
		if len(ids) > 0 {
			w.IDs, w.Logits = append(slices.Clone(next), ids...), lm.AllLogits
		}
	}

	p.work, p.of = append(p.work, w), append(p.of, owner{c.of, c, ids})
	return len(w.IDs)
}

// without leaves out what was planned for a task.
func (p *plan) without(t *task) {
	for i := len(p.of) - 1; i >= 0; i-- {
		if p.of[i].t == t {
			p.work, p.of = slices.Delete(p.work, i, i+1), slices.Delete(p.of, i, i+1)
		}
	}
}

// prompt plans up to n tokens of a prompt.
func (p *plan) prompt(t *task, n int) {
	at := t.sequence.Len()
	end := min(len(t.prompt), at/p.e.page*p.e.page+n)
	w := lm.Work{
		Sequence: t.sequence, IDs: t.prompt[at:end], Prompt: true, Logits: lm.NoLogits, Total: len(t.prompt),
		Overlay: t.model().Overlay,
	}
	switch {
	case t.whole():
		w.Logits = lm.AllLogits
	case end == len(t.prompt):
		w.Logits = lm.LastLogits
	}

	p.work, p.of = append(p.work, w), append(p.of, owner{t: t})
}

// take keeps logits, which are only good during the call.
func (p *plan) take(i, at int, logits []float32) error {
	w, t := p.work[i], p.of[i].t
	if w.Prompt && t.whole() {
		next := w.Sequence.Len() + at + 1
		if next < len(t.prompt) && len(t.prior) == next-1 && !t.told {
			info := scoreOf(logits, t.prompt[next], t.tops)
			if math.IsNaN(info.logprob) {
				t.err = lm.ErrNonFinite
			}
			t.prior = append(t.prior, info)
		}
	}

	drafted := len(p.of[i].proposed) > 0
	if drafted || at == len(w.IDs)-1 && w.Logits != lm.NoLogits {
		p.logits[i] = append(p.logits[i], append(p.e.copyOf(), logits...))
	}
	return nil
}

// copyOf is memory for logits that is used again.
func (e *engine) copyOf() []float32 {
	if n := len(e.spare); n > 0 {
		x := e.spare[n-1]
		e.spare = e.spare[:n-1]
		return x[:0]
	}
	return nil
}

// release gives the memory of logits back.
func (e *engine) release(p *plan) {
	for _, rows := range p.logits {
		e.spare = append(e.spare, rows...)
	}
}

// picked is a choice that has a next token, and further ones as far as the tokens that were proposed are right.
type picked struct {
	c        *choice
	logits   [][]float32
	proposed []int32
	events   []event
}

// next chooses the tokens.
func (x *picked) next() error {
	for i, logits := range x.logits {
		one, err := x.c.next(logits)
		if err != nil {
			return err
		}
		x.events = append(x.events, one)
		if x.c.finish != "" || i < len(x.proposed) && x.c.ids[len(x.c.ids)-1] != x.proposed[i] {
			break
		}
	}
	return nil
}

// right is how many of the proposed tokens were chosen.
func (x *picked) right() int {
	n := 0
	for n < min(len(x.proposed), len(x.events)) && x.c.ids[len(x.c.ids)-len(x.events)+n] == x.proposed[n] {
		n++
	}
	return n
}

// chosen lets every choice whose logits are there choose its next token, and tells the clients.
func (e *engine) chosen(p *plan) {
	var list []*picked
	for i, o := range p.of {
		switch {
		case o.t.err != nil:
			e.fail(o.t, o.t.err)
		case o.c != nil && p.logits[i] != nil:
			list = append(list, &picked{c: o.c, logits: p.logits[i], proposed: o.proposed})
		case o.c == nil && o.t.sequence.Len() == len(o.t.prompt):
			list = append(list, e.continued(o.t, p.logits[i])...)
		}
	}

	// Sampling from a large vocabulary is work; which thread does it makes no difference.
	mmapsafe.Each(0, len(list), func(i int) {
		x := list[i]
		x.c.err = e.safely(x.next)
	})
	e.release(p)

	for _, x := range list {
		t := x.c.of
		switch {
		case t.failed: // by another choice of it
		case x.c.err != nil:
			e.fail(t, x.c.err)
		default:
			e.took(x)
		}
	}

	// Behind all of it: a task whose choices end in the same pass is let go of with the last of them.
	for _, x := range list {
		if !x.c.of.failed {
			e.finish(x.c.of)
		}
	}
}

// took tells the client of the tokens that a choice has chosen, and cuts off those that were proposed in vain.
func (e *engine) took(x *picked) {
	t := x.c.of
	for _, one := range x.events {
		e.watch.token(t, x.c)
		t.of.out.put(one)
	}
	if n := len(x.proposed); n > 0 {
		x.c.draft.of.Saw(x.right(), n)
		e.watch.drafted(t, x.right(), n)
	}

	if x.c.finish != "" {
		x.c.sequence.Close()
		return
	}
	if err := x.c.sequence.Truncate(min(x.c.sequence.Len(), len(t.prompt)+len(x.c.ids)-1)); err != nil {
		e.fail(t, err)
	}
}

// continued makes the choices of a task whose prompt is whole; those that choose their first token are returned.
func (e *engine) continued(t *task, logits [][]float32) (list []*picked) {
	if !t.told {
		t.told = true
		t.of.out.put(event{choice: t.first, prompt: t})
	}

	t.done = true
	last := len(t.choices) - 1
	for i, c := range t.choices {
		if c.finish != "" {
			continue
		}

		c.sequence = t.sequence
		if i < last {
			c.sequence = t.sequence.Fork()
		}
		if len(c.ids) > 0 {
			continue
		}
		if t.max == 0 {
			c.finish = "length"
			t.of.out.put(event{choice: c.index, finish: c.finish})
			c.sequence.Close()
			continue
		}
		if c.err = c.begin(); c.err != nil {
			e.fail(t, c.err)
			return nil
		}
		list = append(list, &picked{c: c, logits: logits})
	}

	if t.choices[last].finish != "" && t.max > 0 { // nobody goes on with the prompt's own
		t.sequence.Close()
	}
	t.sequence = nil
	e.finish(t)
	return list
}

// finish takes a task off the list once all of its choices have ended.
func (e *engine) finish(t *task) {
	if slices.ContainsFunc(t.choices, func(c *choice) bool { return c.finish == "" }) {
		return
	}
	e.letGo(t)
}

// letGo lets go of a task that has ended; it may have been let go of before, when several choices end in a step.
func (e *engine) letGo(t *task) {
	e.tasks = slices.DeleteFunc(e.tasks, func(o *task) bool { return o == t })
	for _, c := range t.choices {
		c.draft.stop()
	}
	if !t.gone {
		t.gone = true
		t.of.gone <- struct{}{}
	}
}

// fail ends a task, and with it its request.
func (e *engine) fail(t *task, err error) {
	e.drop(t)
	t.failed = true
	t.of.out.put(event{choice: t.first, err: err})
	e.letGo(t)
}

// failAll ends all tasks, as when a model's file has gone.
func (e *engine) failAll(err error) {
	for _, t := range slices.Clone(e.tasks) {
		e.fail(t, err)
	}
}

// drop gives the memory of a task back, which can go on later.
func (e *engine) drop(t *task) {
	if t.sequence != nil {
		t.sequence.Close()
		t.sequence = nil
	}
	for _, c := range t.choices {
		if c.sequence != nil {
			c.sequence.Close()
			c.sequence = nil
		}
	}
	t.done = false
}

// giveUp takes the memory of the latest task, which waits and begins again. One that is alone cannot be helped.
func (e *engine) giveUp() error {
	latest := slices.MaxFunc(e.tasks, func(a, b *task) int { return cmp.Compare(a.serial, b.serial) })
	if len(e.tasks) == 1 {
		e.fail(latest, errMemory)
		return nil
	}

	e.drop(latest)
	for _, c := range latest.choices { // it would only keep memory while the request waits
		c.draft.stop()
	}
	e.tasks = slices.DeleteFunc(e.tasks, func(o *task) bool { return o == latest })
	e.watch.gaveUp(latest)

	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = slices.Insert(e.waiting, 0, latest)
	return nil
}
