package jobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Offer is a queue of work that has something in common.
type Offer struct {
	Name     string `json:"name"`     // letters, digits, - and _; at most 64
	Kind     string `json:"kind"`     // which program part the work is for
	Contract string `json:"contract"` // what the results depend on besides the items: builds, models, data
	Spec     string `json:"spec"`     // SHA-256 of the specification, filled in by [Conn.Offer]

	Patience time.Duration `json:"patience"` // after a worker's last sign of life until its item goes to another; default 1 minute
	Attempts int           `json:"attempts"` // that an item may be begun; default 5
}

var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (o *Offer) withDefaults() error {
	if !names.MatchString(o.Name) {
		return fmt.Errorf("%w: name %q; want letters, digits, - and _", ErrOffer, o.Name)
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Attempts == 0 {
		o.Attempts = 5
	}
	if o.Patience < 0 || o.Attempts < 0 {
		return fmt.Errorf("%w: %s: patience %v, %d attempts", ErrOffer, o.Name, o.Patience, o.Attempts)
	}
	return nil
}

// Subjects and streams of an offer.
func (o *Offer) work() string            { return "compress.work." + o.Name }
func (o *Offer) done() string            { return "compress.done." + o.Name }
func (o *Offer) signs() string           { return "compress.signs." + o.Name }
func (o *Offer) stream(of string) string { return "compress_" + of + "_" + o.Name }
func (o *Offer) specBucket() string      { return "compress_spec_" + o.Name }

// Queue is an offer, seen by its coordinator or by a worker.
type Queue struct {
	c     *Conn
	offer Offer
	spec  []byte
}

// Offer makes an offer, or finds the one that an earlier run of the same coordinator left, with its results. An offer of that
// name with another contract or specification is refused with [ErrOffer].
func (c *Conn) Offer(ctx context.Context, o Offer, spec []byte) (*Queue, error) {
	if err := o.withDefaults(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(spec)
	o.Spec = hex.EncodeToString(sum[:])
	q := &Queue{c: c, offer: o, spec: bytes.Clone(spec)}
	if err := c.persist(ctx, q.ensure); err != nil {
		return nil, fmt.Errorf("offer %s: %w", o.Name, err)
	}
	return q, nil
}

// ensure makes whatever of the queue is not there, and lists it last.
func (q *Queue) ensure(ctx context.Context) error {
	kv, err := q.c.offers(ctx)
	if err != nil {
		return err
	}
	entry, err := kv.Get(ctx, q.offer.Name)
	switch {
	case err == nil:
		var found Offer
		if err := json.Unmarshal(entry.Value(), &found); err != nil || found.Contract != q.offer.Contract || found.Spec != q.offer.Spec || found.Kind != q.offer.Kind {
			return fmt.Errorf("%w: %s is the name of other work", ErrOffer, q.offer.Name)
		}
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return err
	}
	if err := q.ensureStreams(ctx); err != nil {
		return err
	}
	store, err := q.c.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: q.offer.specBucket()})
	if err == nil {
		if _, err = store.GetInfo(ctx, "spec"); errors.Is(err, jetstream.ErrObjectNotFound) {
			_, err = store.PutBytes(ctx, "spec", q.spec)
		}
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(q.offer)
	if err == nil {
		_, err = kv.Put(ctx, q.offer.Name, text)
	}
	return err
}

// ensureStreams makes the stream of items, which holds each once until it is acknowledged, and that of results.
func (q *Queue) ensureStreams(ctx context.Context) error {
	if _, err := q.c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: q.offer.stream("done"), Subjects: []string{q.offer.done() + ".*"}, Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1, AllowDirect: true,
		Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	}); err != nil {
		return err
	}
	if _, err := q.c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: q.offer.stream("work"), Subjects: []string{q.offer.work() + ".*"}, Storage: jetstream.FileStorage, Retention: jetstream.WorkQueuePolicy,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	}); err != nil {
		return err
	}
	_, err := q.c.js.CreateOrUpdateConsumer(ctx, q.offer.stream("work"), jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: q.offer.Patience, MaxAckPending: -1, MaxDeliver: -1,
	})
	return err
}

// Withdraw takes the offer back and removes its items and results.
func (q *Queue) Withdraw(ctx context.Context) error {
	return q.c.persist(ctx, func(ctx context.Context) error {
		kv, err := q.c.offers(ctx)
		if err != nil {
			return err
		}
		gone := func(err error) error {
			if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) {
				return nil
			}
			return err
		}
		return errors.Join(
			kv.Delete(ctx, q.offer.Name),
			gone(q.c.js.DeleteStream(ctx, q.offer.stream("work"))),
			gone(q.c.js.DeleteStream(ctx, q.offer.stream("done"))),
			gone(q.c.js.DeleteObjectStore(ctx, q.offer.specBucket())),
		)
	})
}

// Offers lists what is on offer, by name.
func (c *Conn) Offers(ctx context.Context) ([]Offer, error) {
	var list []Offer
	err := c.persist(ctx, func(ctx context.Context) error {
		list = nil
		kv, err := c.offers(ctx)
		if err != nil {
			return err
		}
		keys, err := kv.Keys(ctx)
		if errors.Is(err, jetstream.ErrNoKeysFound) {
			return nil
		}
		slices.Sort(keys)
		for _, key := range keys {
			entry, err := kv.Get(ctx, key)
			if errors.Is(err, jetstream.ErrKeyNotFound) {
				continue
			}
			var o Offer
			if err == nil {
				err = json.Unmarshal(entry.Value(), &o)
			}
			if err == nil {
				err = o.withDefaults()
			}
			if err != nil {
				return fmt.Errorf("%w: %s: %w", ErrOffer, key, err)
			}
			list = append(list, o)
		}
		return err
	})
	return list, err
}

// maxSpec is the size of the largest specification that a worker takes, in bytes.
const maxSpec = 1 << 30

// fetchSpec gives the specification of an offer.
func (c *Conn) fetchSpec(ctx context.Context, o Offer) (spec []byte, err error) {
	err = c.persist(ctx, func(ctx context.Context) error {
		store, err := c.js.ObjectStore(ctx, o.specBucket())
		if err != nil {
			return err
		}
		info, err := store.GetInfo(ctx, "spec")
		if err != nil {
			return err
		}
		if info.Size > maxSpec {
			return fmt.Errorf("%w: %s: a specification of %d bytes", ErrOffer, o.Name, info.Size)
		}
		spec, err = store.GetBytes(ctx, "spec")
		return err
	})
	sum := sha256.Sum256(spec)
	if err == nil && hex.EncodeToString(sum[:]) != o.Spec {
		err = fmt.Errorf("%w: %s: the specification is damaged", ErrOffer, o.Name)
	}
	return spec, err
}
