package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Item is a piece of work.
type Item struct {
	ID   string // letters, digits, - and _, at most 64; equal identifiers are the same work
	Data []byte
}

// Result is what a worker made of an item.
type Result struct {
	ID      string  `json:"id"`
	Data    []byte  `json:"data"`
	Failure string  `json:"failure,omitempty"` // what the handler's error says; "" if there was none
	Worker  string  `json:"worker"`
	Attempt int     `json:"attempt"` // how often the item had been handed out by then
	Seconds float64 `json:"seconds"` // that the handler took
}

// Do hands over items and waits for the results, which come in the order of the items. done, which may be nil,
// is called for each as it arrives. Results that an earlier run of the same offer left are taken, but for
// failures: what was in the way may be gone. While the server does not answer, Do waits. Failures of handlers
// are part of the results; the errors of Do are those of ctx, of the server, and [ErrItem].
func (q *Queue) Do(ctx context.Context, items []Item, done func(Result)) ([]Result, error) {
	d := &doing{
		q: q, items: items, done: done, found: map[string]Result{}, handed: map[string]bool{},
		arrived: make(chan struct{}, 1),
	}
	if err := d.check(); err != nil {
		return nil, err
	}

	// Before the first look, or a result that came between look and subscription would be missed until the next.
	sub, err := q.c.nc.Subscribe(q.offer.done()+".*", func(m *nats.Msg) {
		d.take(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], m.Data)
	})
	if err != nil {
		return nil, fmt.Errorf("offer %s: %w", q.offer.Name, err)
	}
	defer func() { _ = sub.Unsubscribe() }()

	for {
		missing, err := d.sweep(ctx)
		if err == nil {
			err = d.worn()
		}
		if err != nil {
			return nil, fmt.Errorf("offer %s: %w", q.offer.Name, err)
		}
		if missing == 0 {
			return d.results(), nil
		}

		wait, cancel := context.WithTimeout(ctx, sweepTime)
		for missing > 0 && wait.Err() == nil {
			select {
			case <-d.arrived:
				missing = d.missing()
				if d.again() {
					cancel() // at once, not when the next look is due
				}
			case <-d.q.c.storeFailed():
				cancel()
				return nil, fmt.Errorf("offer %s: %w", q.offer.Name, q.c.store.err)
			case <-wait.Done():
			}
		}

		cancel()
	}
}

// doing is one call of Do.
type doing struct {
	q     *Queue
	items []Item
	done  func(Result)

	handed map[string]bool // items that are in the queue, or were, on behalf of this call

	mu      sync.Mutex
	found   map[string]Result
	wanted  map[string]int // items by their identifiers
	refused map[string]int // results that were thrown away
	seen    int            // of all these, when they were last looked at
	broken  error          // one item had too many of these
	arrived chan struct{}
}

// maxRefused is how many results of an item are thrown away before the work is given up: who gives them won't stop.
const maxRefused = 20

func (d *doing) check() error {
	d.wanted, d.refused = map[string]int{}, map[string]int{}
	limit := d.q.c.nc.MaxPayload() - 4096
	for i, it := range d.items {
		_, twice := d.wanted[it.ID]
		switch {
		case !names.MatchString(it.ID):
			return fmt.Errorf("%w: identifier %q; want letters, digits, - and _", ErrItem, it.ID)
		case twice:
			return fmt.Errorf("%w: identifier %s is there twice", ErrItem, it.ID)
		case int64(len(it.Data)) > limit:
			return fmt.Errorf("%w: %s has %d bytes; the server takes %d", ErrItem, it.ID, len(it.Data), limit)
		}

		d.wanted[it.ID] = i
	}

	return nil
}

// take keeps the first result of an item that is waited for. It reports whether a text is one, or need not be.
func (d *doing) take(id string, text []byte) bool {
	d.mu.Lock()
	i, wanted := d.wanted[id]
	_, twice := d.found[id]
	d.mu.Unlock()
	if twice || !wanted {
		return true
	}

	// Without the lock, for the check may take its time; so whether the result is there already is asked twice.
	r, err := readResult(text, id)
	if err == nil && r.Failure == "" && d.q != nil && d.q.check != nil {
		err = d.q.check(d.items[i], r.Data)
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	if _, twice := d.found[id]; twice {
		return true
	}

	if err != nil {
		d.refuse(r, err)
		return false
	}

	if d.found[id] = r; d.done != nil {
		d.done(r)
	}

	d.wake()
	return true
}

// refuse notes a result that does not count.
func (d *doing) refuse(r Result, err error) {
	if d.refused == nil {
		d.refused = map[string]int{}
	}

	d.refused[r.ID]++
	reason := Plain(err.Error(), maxReason)
	if d.refused[r.ID] >= maxRefused {
		d.broken = fmt.Errorf("%w: %s: %d results of it were none, the last by %s: %s", ErrItem, r.ID, maxRefused,
			cmp.Or(r.Worker, "somebody"), reason)
	}

	if d.q != nil && d.q.c.events.Rejected != nil && d.q.c.said.first("rejected "+r.ID+" "+r.Worker+" "+reason) {
		d.q.c.events.Rejected(cmp.Or(r.Worker, "somebody"), r.ID, reason)
	}

	d.wake()
}

// wake has Do look at what is there.
func (d *doing) wake() {
	select {
	case d.arrived <- struct{}{}:
	default:
	}
}

// again reports whether results were thrown away since it was last asked, so that items have to be handed out again.
func (d *doing) again() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, k := range d.refused {
		n += k
	}
	more := n > d.seen
	d.seen = n
	return more
}

// worn is the error of an item that had too many results that were none.
func (d *doing) worn() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken
}

func (d *doing) has(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.found[id]
	return ok
}

func (d *doing) missing() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.items) - len(d.found)
}

func (d *doing) results() []Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]Result, len(d.items))
	for i, it := range d.items {
		list[i] = d.found[it.ID]
	}
	return list
}

// sweep looks for the results that are missing and hands over the items that the queue does not hold.
func (d *doing) sweep(ctx context.Context) (missing int, err error) {
	for _, it := range d.items {
		if d.has(it.ID) {
			continue
		}
		if err := d.q.c.persist(ctx, func(ctx context.Context) error { return d.settle(ctx, it) }); err != nil {
			return 0, err
		}
	}
	return d.missing(), nil
}

// settle finds the result of an item or makes sure that the item is in the queue.
func (d *doing) settle(ctx context.Context, it Item) error {
	text, err := d.q.stored(ctx, it.ID)
	if err != nil {
		return err
	}

	// A failure counts if this call has handed the item over; one that an earlier call left is tried again.
	if text != nil && (d.handed[it.ID] || !isFailure(text)) && d.take(it.ID, text) {
		return nil
	}

	if text != nil { // what is in its way: a failure of an earlier call, or no result at all
		if err := d.q.forget(ctx, it.ID); err != nil {
			return err
		}
	}

	_, err = d.q.c.js.Publish(ctx, d.q.offer.work()+"."+it.ID, it.Data)
	if errors.Is(err, jetstream.ErrNoStreamResponse) { // the storage is gone
		if err := d.q.ensure(ctx); err != nil {
			return err
		}
		_, err = d.q.c.js.Publish(ctx, d.q.offer.work()+"."+it.ID, it.Data)
	}
	if present(err) {
		err = nil
	}

	d.handed[it.ID] = err == nil
	return err
}

// isFailure reports whether a stored result is that of a handler that failed.
func isFailure(text []byte) bool {
	var r Result
	return text != nil && json.Unmarshal(text, &r) == nil && r.Failure != ""
}

// forget removes the stored result of an item.
func (q *Queue) forget(ctx context.Context, id string) error {
	stream, err := q.c.js.Stream(ctx, q.offer.stream("done"))
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(q.offer.done()+"."+id))
}

// stored gives the result of an item, nil if there is none.
func (q *Queue) stored(ctx context.Context, id string) ([]byte, error) {
	stream, err := q.c.js.Stream(ctx, q.offer.stream("done"))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if q.joined { // withdrawn, or its coordinator has yet to restore it
			return nil, nil
		}
		return nil, q.ensure(ctx)
	}
	if err != nil {
		return nil, err
	}

	m, err := stream.GetLastMsgForSubject(ctx, q.offer.done()+"."+id)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if m.Data == nil { // a message without anything in it is one nevertheless
		return []byte{}, nil
	}

	return m.Data, nil
}

// present reports whether a message was not stored because one with its subject is there.
func present(err error) bool {
	var api jetstream.JetStreamError
	return errors.As(err, &api) && api.APIError() != nil &&
		strings.Contains(api.APIError().Description, "maximum messages per subject exceeded")
}
