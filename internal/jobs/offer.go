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
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Offer is a queue of work that has something in common.
type Offer struct {
	Name     string `json:"name"`     // letters, digits, - and _; at most 64
	Kind     string `json:"kind"`     // which program part the work is for
	Contract string `json:"contract"` // what the results depend on besides the items: builds, models, data
	Spec     string `json:"spec"`     // SHA-256 of the specification, filled in by [Conn.Offer]
	Bytes    int    `json:"bytes"`    // of the specification, filled in by [Conn.Offer]

	// after a worker's last sign of life until its item goes to another; default 1 minute
	Patience time.Duration `json:"patience"`
	Attempts int           `json:"attempts"` // that an item may be begun; default 5
}

var (
	names  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	hashes = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

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

	switch {
	case o.Patience < leastPatience || o.Patience > mostPatience || o.Attempts < 1 || o.Attempts > mostAttempts:
		return fmt.Errorf("%w: %s: patience %v, %d attempts", ErrOffer, o.Name, o.Patience, o.Attempts)
	case o.Kind != "" && !names.MatchString(o.Kind):
		return fmt.Errorf("%w: %s: kind %.100q; want letters, digits, - and _", ErrOffer, o.Name, o.Kind)
	case len(o.Contract) > maxContract || Plain(o.Contract, maxContract) != o.Contract:
		return fmt.Errorf("%w: %s: a contract that cannot be shown", ErrOffer, o.Name)
	case o.Spec != "" && !hashes.MatchString(o.Spec):
		return fmt.Errorf("%w: %s: the hash of its specification is none", ErrOffer, o.Name)
	case o.Bytes < 0 || o.Bytes > maxSpec:
		return fmt.Errorf("%w: %s: a specification of %d bytes; at most %d", ErrOffer, o.Name, o.Bytes, maxSpec)
	}

	return nil
}

// Bounds on what an offer says. A patience of nothing would have workers say without a pause that they are alive.
const (
	leastPatience = 10 * time.Millisecond
	mostPatience  = 24 * time.Hour
	mostAttempts  = 1000
	maxContract   = 1000
	maxSpec       = 256 << 20
	maxOffers     = 1000
)

// Subjects and streams of an offer.
func (o *Offer) work() string            { return "compress.work." + o.Name }
func (o *Offer) done() string            { return "compress.done." + o.Name }
func (o *Offer) signs() string           { return "compress.signs." + o.Name }
func (o *Offer) stream(of string) string { return "compress_" + of + "_" + o.Name }
func (o *Offer) spec(part int) string    { return fmt.Sprintf("compress.spec.%s.%d", o.Name, part) }

// Queue is an offer, seen by its coordinator or by a worker.
type Queue struct {
	c     *Conn
	offer Offer
	spec  []byte

	joined bool                               // a worker's: it makes nothing of what is missing
	check  func(item Item, data []byte) error // of results, see [Queue.Accept]; nil: none
}

// Accept has every result looked at before it counts: one that check refuses is thrown away, said to [Events.Rejected],
// and the item is handed out again. Without it every result counts that is one by its form.
func (q *Queue) Accept(check func(item Item, data []byte) error) { q.check = check }

// Offer makes an offer, or finds the one that an earlier run of the same coordinator left, with its results. An
// offer of that name with another contract or specification is refused with [ErrOffer].
func (c *Conn) Offer(ctx context.Context, o Offer, spec []byte) (*Queue, error) {
	if err := o.withDefaults(); err != nil {
		return nil, err
	}
	if len(spec) > maxSpec {
		return nil, fmt.Errorf("%w: %s: a specification of %d bytes; at most %d", ErrOffer, o.Name, len(spec), maxSpec)
	}

	sum := sha256.Sum256(spec)
	o.Spec, o.Bytes = hex.EncodeToString(sum[:]), len(spec)
	q := &Queue{c: c, offer: o, spec: bytes.Clone(spec)}
	if c.alone {
		if err := c.persist(ctx, q.release); err != nil {
			return nil, fmt.Errorf("offer %s: %w", o.Name, err)
		}
	}
	if err := c.persist(ctx, q.ensure); err != nil {
		return nil, fmt.Errorf("offer %s: %w", o.Name, err)
	}

	return q, nil
}

// release makes free what an earlier run of this coordinator had taken when it was killed. Where nobody else can reach
// the server, nobody works on it any more, and to wait until patience ends would be to wait for nothing.
func (q *Queue) release(ctx context.Context) error {
	err := q.c.js.DeleteConsumer(ctx, q.offer.stream("work"), "workers")
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
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
		found, err := readOffer(entry.Value(), q.offer.Name)
		if err != nil || found.Contract != q.offer.Contract || found.Spec != q.offer.Spec ||
			found.Kind != q.offer.Kind {
			return fmt.Errorf("%w: %s is the name of other work", ErrOffer, q.offer.Name)
		}
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return err
	}

	if err := q.ensureStreams(ctx); err != nil {
		return err
	}
	if err := q.ensureSpec(ctx); err != nil {
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
		Name: q.offer.stream("done"), Subjects: []string{q.offer.done() + ".*"}, Storage: jetstream.FileStorage,
		MaxMsgsPerSubject: 1, AllowDirect: true,
		Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgs: maxItems,
	}); err != nil {
		return err
	}
	if _, err := q.c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: q.offer.stream("work"), Subjects: []string{q.offer.work() + ".*"}, Storage: jetstream.FileStorage,
		Retention:         jetstream.WorkQueuePolicy,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgs: maxItems,
	}); err != nil {
		return err
	}

	_, err := q.c.js.CreateOrUpdateConsumer(ctx, q.offer.stream("work"), jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: q.offer.Patience, MaxAckPending: -1,
		MaxDeliver: -1,
	})
	return err
}

// maxItems bounds what a queue holds, whoever puts it there: the server keeps some hundred bytes of memory for each.
const maxItems = 1 << 20

// partSize is that of the messages that a specification comes in; servers take 1 MiB unless they are told otherwise.
const partSize = 256 << 10

// ensureSpec stores the specification, in parts that a worker can get one by one, without making anything on the
// server.
func (q *Queue) ensureSpec(ctx context.Context) error {
	stream, err := q.c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: q.offer.stream("spec"), Subjects: []string{"compress.spec." + q.offer.Name + ".*"},
		Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1,
		AllowDirect: true, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	})
	if err != nil {
		return err
	}

	// One that an earlier run began to store is completed: what is there is not stored again.
	parts := slices.Collect(slices.Chunk(q.spec, partSize))
	if stream.CachedInfo().State.Msgs == uint64(len(parts)) {
		return nil
	}

	for i, part := range parts {
		if _, err := q.c.js.Publish(ctx, q.offer.spec(i), part); err != nil && !present(err) {
			return err
		}
	}

	return nil
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
			gone(q.c.js.DeleteStream(ctx, q.offer.stream("spec"))),
		)
	})
}

// Offers lists what is on offer, by name. What is listed and is no offer is left out, and told to [Events.Skipped]
// once.
func (c *Conn) Offers(ctx context.Context) ([]Offer, error) {
	var list []Offer
	err := c.persist(ctx, func(ctx context.Context) error {
		list = nil
		kv, err := c.js.KeyValue(ctx, offersBucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return nil
		}
		if err != nil {
			return err
		}

		keys, err := c.offerNames(ctx)
		if err != nil {
			return err
		}

		for _, key := range keys {
			entry, err := kv.Get(ctx, key)
			if errors.Is(err, jetstream.ErrKeyNotFound) { // withdrawn since it was listed
				continue
			}

			if err != nil && !errors.Is(err, jetstream.ErrInvalidKey) {
				return err
			}

			var o Offer
			if err == nil {
				o, err = readOffer(entry.Value(), key)
			}
			if err != nil {
				c.skip(key, err)
				continue
			}

			list = append(list, o)
		}

		return nil
	})

	return list, err
}

// offerNames lists the keys of the list of offers. It only asks: a watcher, as the list's own methods make it, needs
// the right to make consumers, by which a worker could send anything anywhere.
func (c *Conn) offerNames(ctx context.Context) ([]string, error) {
	const prefix = "$KV." + offersBucket + "."
	stream, err := c.js.Stream(ctx, "KV_"+offersBucket)
	if err != nil {
		return nil, err
	}

	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return nil, err
	}

	var keys []string
	for subject := range info.State.Subjects {
		keys = append(keys, strings.TrimPrefix(subject, prefix))
	}

	slices.Sort(keys)

	if len(keys) > maxOffers {
		c.skip("the list of offers",
			fmt.Errorf("%w: %d are listed, the first %d are looked at", ErrOffer, len(keys), maxOffers))
		keys = keys[:maxOffers]
	}

	return keys, nil
}

// skip tells once that something is no offer.
func (c *Conn) skip(name string, reason error) {
	if c.events.Skipped == nil {
		return
	}
	name, text := Plain(name, maxName), Plain(reason.Error(), maxReason)
	if c.said.first("skipped " + name + " " + text) {
		c.events.Skipped(name, text)
	}
}

// fetchSpec gives the specification of an offer.
func (c *Conn) fetchSpec(ctx context.Context, o Offer) ([]byte, error) {
	spec := make([]byte, 0, min(o.Bytes, partSize))
	for len(spec) < o.Bytes {
		var part []byte
		err := c.persist(ctx, func(ctx context.Context) error {
			stream, err := c.js.Stream(ctx, o.stream("spec"))
			if err != nil {
				return err
			}
			m, err := stream.GetLastMsgForSubject(ctx, o.spec(len(spec)/partSize))
			if err == nil {
				part = m.Data
			}
			return err
		})
		if err != nil {
			return nil, err
		}

		if len(part) != min(partSize, o.Bytes-len(spec)) {
			break
		}

		spec = append(spec, part...)
	}

	sum := sha256.Sum256(spec)
	if hex.EncodeToString(sum[:]) != o.Spec {
		return nil, fmt.Errorf("%w: %s: the specification is damaged", ErrOffer, o.Name)
	}

	return spec, nil
}
