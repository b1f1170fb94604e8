package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/modelcompress/compress/internal/mmapsafe"
)

// Handler does the work of an item. Its error becomes the item's result, unless ctx has ended: then another
// worker gets the item. It is called from as many goroutines at once as the worker has slots.
type Handler func(ctx context.Context, item Item) ([]byte, error)

// Work takes items of this queue, up to slots at a time, until ctx ends. While the server does not answer, it waits.
func (q *Queue) Work(ctx context.Context, slots int, handle Handler) error {
	free := make(chan struct{}, slots)
	return q.serve(ctx, free, handle)
}

// serve takes items as long as there are free slots.
func (q *Queue) serve(ctx context.Context, slots chan struct{}, handle Handler) error {
	q.sign("joined", "")
	var wg sync.WaitGroup
	defer wg.Wait()

	// A slot before an item: one that waits in this process for its turn would be kept from workers that are free.
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}

		msg, err := q.next(ctx)
		if err != nil || msg == nil {
			<-slots
			if msg != nil {
				_ = msg.Nak() // it came as the work ended
			}

			if err != nil && ctx.Err() == nil { // whatever it is that a server in trouble says
				q.c.setLost(true, err)
				_ = pause(ctx, retryTime)
			}

			continue
		}

		wg.Go(func() {
			defer func() { <-slots }()
			q.perform(ctx, msg, handle)
		})
	}

	return ctx.Err()
}

// next waits a while for an item; nil if none came.
func (q *Queue) next(ctx context.Context) (msg jetstream.Msg, err error) {
	err = q.c.persist(ctx, func(ask context.Context) error {
		consumer, err := q.c.js.Consumer(ask, q.offer.stream("work"), "workers")
		if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
			return pause(ask, fetchTime) // withdrawn, or its coordinator has yet to restore it
		}
		if err != nil {
			return err
		}

		batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(fetchTime))
		if err != nil {
			return err
		}

		select {
		case m, ok := <-batch.Messages():
			if ok {
				msg = m
				return nil
			}
		case <-ctx.Done():
			go giveBack(batch.Messages())
			return ctx.Err()
		}

		if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) &&
			!errors.Is(err, jetstream.ErrConsumerDeleted) {
			return err
		}

		return nil
	})

	return msg, err
}

// giveBack leaves to others what still comes of a wait that was given up: the server does not know of that
// before the wait would have ended.
func giveBack(late <-chan jetstream.Msg) {
	for m := range late {
		_ = m.Nak()
	}
}

// perform does one item: the result is stored before the item is acknowledged, so that a death in between costs
// nothing but a second look.
func (q *Queue) perform(ctx context.Context, msg jetstream.Msg, handle Handler) {
	id := msg.Subject()[strings.LastIndexByte(msg.Subject(), '.')+1:]
	attempt := 1
	if md, err := msg.Metadata(); err == nil {
		attempt = int(md.NumDelivered)
	}

	var known []byte
	err := q.c.persist(ctx, func(ctx context.Context) (err error) { known, err = q.stored(ctx, id); return err })
	if err == nil && known == nil {
		err = q.make(ctx, msg, Result{ID: id, Worker: q.c.name, Attempt: attempt}, handle)
	}
	if err != nil {
		_ = msg.Nak() // if this is lost too, the item comes back when patience ends
		return
	}

	_ = msg.Ack()
}

// make calls the handler and stores what it gives. An error means that there is no result.
func (q *Queue) make(ctx context.Context, msg jetstream.Msg, r Result, handle Handler) error {
	// An item that kills who works on it leaves no failure behind: only the count of deliveries tells.
	if r.Attempt > q.offer.Attempts {
		r.Failure = fmt.Sprintf("given up: begun %d times without a result", q.offer.Attempts)
	} else {
		stop := q.alive(msg)
		start := time.Now()
		var data []byte
		err := mmapsafe.Do(func() (err error) { data, err = handle(ctx, Item{ID: r.ID, Data: msg.Data()}); return err })
		stop()
		if err != nil && ctx.Err() != nil { // interrupted, which says nothing of the item
			return err
		}

		r.Data, r.Seconds = data, time.Since(start).Seconds()
		if err != nil {
			r.Data, r.Failure = nil, err.Error()
		}
	}

	text, err := json.Marshal(r)
	if err != nil {
		return err
	}

	if limit := q.c.nc.MaxPayload(); int64(len(text)) > limit {
		r.Data, r.Failure = nil, fmt.Sprintf("the result has %d bytes; the server takes %d", len(text), limit)
		if text, err = json.Marshal(r); err != nil {
			return err
		}
	}

	return q.c.persist(ctx, func(ctx context.Context) error {
		_, err := q.c.js.Publish(ctx, q.offer.done()+"."+r.ID, text)
		if present(err) {
			return nil
		}
		return err
	})
}

// alive says that an item is being worked on, until stop is called.
func (q *Queue) alive(msg jetstream.Msg) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		// Often enough that a few may be lost.
		for pause(ctx, q.offer.Patience/4) == nil {
			_ = msg.InProgress() // a lost one is made up for by the next
		}
	})
	return func() { cancel(); wg.Wait() }
}

// sign is a message from a worker to the coordinator.
type sign struct {
	Kind   string `json:"kind"` // joined or refused
	Worker string `json:"worker"`
	Reason string `json:"reason,omitempty"`
}

// sign tells the coordinator, if it listens.
func (q *Queue) sign(kind, reason string) {
	if text, err := json.Marshal(sign{kind, q.c.name, reason}); err == nil {
		_ = q.c.nc.Publish(q.offer.signs(), text)
	}
}

// Watch calls the connection's events Joined and Refused until stop is called.
func (q *Queue) Watch() (stop func(), err error) {
	sub, err := q.c.nc.Subscribe(q.offer.signs(), func(m *nats.Msg) {
		s, err := readSign(m.Data)
		if err != nil || !q.c.said.first(s.Kind+" "+s.Worker+" "+s.Reason) {
			return
		}

		switch e := q.c.events; {
		case s.Kind == "joined" && e.Joined != nil:
			e.Joined(s.Worker)
		case s.Kind == "refused" && e.Refused != nil:
			e.Refused(s.Worker, s.Reason)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("offer %s: %w", q.offer.Name, err)
	}

	return func() { _ = sub.Unsubscribe() }, nil
}

// public is what others may hear of an error: all of it, unless it says itself what part.
func public(err error) string {
	var part interface{ Public() string }
	if errors.As(err, &part) {
		return part.Public()
	}
	return err.Error()
}

// Opener decides whether a worker serves an offer. It returns the handler of its items, and what to call when
// the offer is gone, which may be nil; or an error, which is told to the coordinator and should wrap
// [ErrRefused].
type Opener func(ctx context.Context, o Offer, spec []byte) (h Handler, free func(), err error)

// Join serves the offers that appear, all together up to slots items at a time, until ctx ends. When all offers are
// refused that there are at the beginning, Join ends with the reasons. One that is refused later is told to
// [Events.Skipped], as is at any time what is no offer: a worker that waits for work is not ended by whoever can make
// an offer.
func (c *Conn) Join(ctx context.Context, slots int, open Opener) error {
	j := &joining{
		c: c, open: open, slots: make(chan struct{}, slots), serving: map[string]context.CancelFunc{},
		refused: map[string]bool{},
	}
	defer j.wg.Wait()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	for {
		list, err := c.Offers(ctx)
		if err != nil {
			return err
		}

		if err := j.follow(ctx, list); err != nil {
			return err
		}
		if err := pause(ctx, fetchTime); err != nil {
			return err
		}
	}
}

// joining is one call of Join.
type joining struct {
	c       *Conn
	open    Opener
	slots   chan struct{}
	serving map[string]context.CancelFunc // by key
	refused map[string]bool
	begun   bool // the offers of the beginning were looked at
	wg      sync.WaitGroup
}

// follow begins to serve new offers and leaves those that are gone.
func (j *joining) follow(ctx context.Context, list []Offer) (err error) {
	listed := map[string]bool{}
	for _, o := range list {
		key := o.Name + " " + o.Contract + " " + o.Spec
		listed[key] = true
		if j.serving[key] != nil || j.refused[key] {
			continue
		}

		if e := j.begin(ctx, o, key); e != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}

			j.refuse(key)
			if errors.Is(e, ErrOffer) || j.begun {
				j.c.skip(o.Name, e)
			}
			if errors.Is(e, ErrOffer) {
				continue
			}

			(&Queue{c: j.c, offer: o}).sign("refused", Plain(public(e), maxReason))
			err = errors.Join(err, fmt.Errorf("offer %s: %w", o.Name, e))
		}
	}

	for key, cancel := range j.serving {
		if !listed[key] {
			cancel()
			delete(j.serving, key)
		}
	}

	if err != nil {
		_ = j.c.nc.FlushTimeout(askTime) // so that the coordinator hears of it
	}

	late := j.begun || len(j.serving) > 0
	j.begun = j.begun || len(list) > 0
	if late {
		return nil
	}

	return err
}

// refuse remembers an offer that is not served. There is a bound on how many; then all are looked at anew.
func (j *joining) refuse(key string) {
	if len(j.refused) >= maxOffers {
		clear(j.refused)
	}
	j.refused[key] = true
}

func (j *joining) begin(ctx context.Context, o Offer, key string) error {
	spec, err := j.c.fetchSpec(ctx, o)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil // withdrawn meanwhile
	}
	if err != nil {
		return err
	}

	handle, free, err := j.open(ctx, o, spec)
	if err != nil {
		return err
	}

	ctx, j.serving[key] = context.WithCancel(ctx)
	j.wg.Go(func() {
		// It ends with ctx alone: everything else is waited for.
		_ = (&Queue{c: j.c, offer: o, spec: spec, joined: true}).serve(ctx, j.slots, handle)
		if free != nil {
			free()
		}
	})

	return nil
}
