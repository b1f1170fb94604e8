package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/modelcompress/compress/internal/failure"
)

// The ways in which a queue fails. Test with errors.Is.
var (
	ErrConnect = errors.New("no connection to the cluster")
	ErrRefused = errors.New("work refused") // by a worker that can't do it as the coordinator would
	ErrOffer   = errors.New("unusable offer")
	ErrItem    = errors.New("unusable item")
)

// Waiting times. They decide how soon something is noticed, never what comes out.
const (
	connectTime = 10 * time.Second       // for the first connection
	askTime     = 2 * time.Second        // for one answer of the server
	retryTime   = 250 * time.Millisecond // between two tries while the server does not answer
	sweepTime   = 3 * time.Second        // between two looks for results that no message announced
	fetchTime   = 1 * time.Second        // that a worker waits for an item before it looks at other queues
)

// silences is how many questions in a row a server inside this process may leave without an answer: more than a
// minute's.
const silences = 30

// offersBucket is the key-value store that lists the offers.
const offersBucket = "compress_offers"

// Events tells what happens to a connection; nil functions are off. They may be called from several goroutines at once.
type Events struct {
	Lost    func(err error)             // the server does not answer; whoever needs it waits
	Back    func()                      // and is back
	Joined  func(worker string)         // a worker has begun to serve an offer of this connection
	Refused func(worker, reason string) // a worker won't serve it

	// Rejected: a result was thrown away, since it is none or none of its item, and the item is handed out again.
	Rejected func(worker, item, reason string)
	// Skipped: something on the list of offers is no offer, or one that this worker cannot serve.
	Skipped func(name, reason string)
}

// sayings are what was told once and need not be told again. There is a bound, so that nobody can have us say things
// for ever.
type sayings struct {
	mu   sync.Mutex
	done map[string]bool
}

// maxSayings is how much others can have us say.
const maxSayings = 1000

// first reports whether a text is new, and there is room to say it.
func (s *sayings) first(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.done[text] || len(s.done) >= maxSayings {
		return false
	}
	if s.done == nil {
		s.done = map[string]bool{}
	}

	s.done[text] = true
	return true
}

// Options of a connection.
type Options struct {
	URL    string  // nats://host:port of a cluster, several separated by commas; or
	Server *Server // the server inside this process
	Name   string  // who this is, in results and events
	Access Access  // to a cluster
	Events Events
}

// Conn is a connection to a server or cluster. It is restored by itself, for as long as it takes.
type Conn struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	name   string
	events Events
	store  *storage // of the server inside this process; nil for others
	alone  bool     // nobody outside this process reaches the server

	served atomic.Bool // something was asked for and done
	said   sayings

	mu   sync.Mutex
	lost bool
}

// Connect makes the first connection, which has to succeed within some seconds. The error wraps [ErrConnect].
func Connect(ctx context.Context, o Options) (*Conn, error) {
	c := &Conn{name: o.Name, events: o.Events}
	opts := []nats.Option{
		nats.Name(o.Name), nats.MaxReconnects(-1), nats.ReconnectWait(retryTime), nats.ReconnectBufSize(-1),
		nats.Timeout(connectTime), nats.PingInterval(askTime),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.setLost(true, err) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.setLost(false, nil) }),
	}

	where := Address(o.URL)
	if o.Server != nil {
		where, c.store = "the server inside the program", o.Server.storage
		c.alone = o.Server.Address() == ""
		// Answers come to an inbox of its own, which workers cannot listen to.
		opts = append(opts, nats.InProcessServer(o.Server.nats), nats.UserInfo(ownUser, o.Server.own),
			nats.CustomInboxPrefix("_COORDINATOR"))
	}

	access, err := o.Access.options()
	if err != nil {
		return nil, err
	}

	opts = append(opts, access...)
	if c.nc, err = nats.Connect(o.URL, opts...); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", where, ErrConnect, err)
	}
	if c.js, err = jetstream.New(c.nc, jetstream.WithDefaultTimeout(askTime)); err == nil {
		err = c.answer(ctx)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w: JetStream does not answer: %w", where, ErrConnect, err)
	}

	return c, nil
}

// answer waits for the first answer of JetStream, which a machine with much to do may delay.
func (c *Conn) answer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()

	for {
		ask, done := context.WithTimeout(ctx, askTime)
		_, err := c.js.AccountInfo(ask)
		done()
		late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
		if !late || pause(ctx, retryTime) != nil {
			return err
		}
	}
}

// Close ends the connection.
func (c *Conn) Close() {
	c.nc.SetDisconnectErrHandler(nil)
	c.nc.Close()
}

// setLost tells about a connection that is lost or back, once.
func (c *Conn) setLost(lost bool, err error) {
	c.mu.Lock()
	was := c.lost
	c.lost = lost
	c.mu.Unlock()

	switch {
	case lost && !was && c.events.Lost != nil:
		c.events.Lost(err)
	case !lost && was && c.events.Back != nil:
		c.events.Back()
	}
}

// trouble is why the server inside this process cannot do its part; nil if it can, or err is not of the kind
// that tells of that.
func (c *Conn) trouble(err error) error {
	var api jetstream.JetStreamError
	if c.store == nil || err == nil ||
		!silent(err) && (!errors.As(err, &api) || api.APIError() == nil || api.APIError().Code < 500) {
		return nil
	}

	// a stream of which the server has found out that it cannot read a file
	damaged := api != nil && api.APIError() != nil && strings.Contains(api.APIError().Description, "offline")
	bad := error(nil)
	if !damaged {
		bad = c.store.trouble()
	}
	if bad == nil && (damaged || api != nil && unreadable(api.APIError())) {
		bad = fmt.Errorf("%w: %s: %s: %w", ErrStorage, c.store.dir, api.APIError().Description, errDamaged)
	}

	return bad
}

// unreadable reports whether a server failed to make a stream or a consumer. As it is asked for the same ones every
// time, and the folder can be written, the reason is what it found there of an earlier run.
func unreadable(e *jetstream.APIError) bool {
	const consumer, stream = 10012, 10049 // JSConsumerCreateErrF and JSStreamCreateErrF of the server
	return e != nil && (e.ErrorCode == consumer || e.ErrorCode == stream)
}

// errDamaged: files of a server are not what it has written.
var errDamaged = failure.New("its files are damaged", "delete this folder and --resume: nothing else is lost")

// persist calls f until the server answers. f's own failures, as opposed to the server's silence, end it, and
// so does a server inside this process that cannot store anything, or that has stopped to answer: [ErrStorage].
func (c *Conn) persist(ctx context.Context, f func(ctx context.Context) error) error {
	begun := time.Now()
	for asked := 1; ; asked++ {
		ask, cancel := context.WithTimeout(ctx, askTime)
		err := f(ask)
		cancel()
		if bad := c.trouble(err); bad != nil && ctx.Err() == nil {
			return bad
		}

		if err == nil || ctx.Err() != nil || !silent(err) {
			if err == nil {
				c.served.Store(true)
				c.setLost(false, nil)
			}
			return errors.Join(err, ctx.Err())
		}

		if c.store != nil && asked == silences {
			c.store.fail(fmt.Errorf("its server does not answer: %w", err))
			return c.store.err
		}

		if !c.served.Load() && unable(err) && time.Since(begun) > connectTime { // it answers, and never could
			return fmt.Errorf("%w: %w", ErrConnect, err)
		}

		// before that the machine may only be busy; a connection that breaks is told at once
		if time.Since(begun) > connectTime {
			c.setLost(true, err)
		}
		if err := pause(ctx, retryTime); err != nil {
			return err
		}
	}
}

// silent reports whether an error means that the server could not be asked, or could not do its part at the moment.
func silent(err error) bool {
	for _, e := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected,
		nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded,
		nats.ErrNoServers, nats.ErrStaleConnection, jetstream.ErrNoStreamResponse, jetstream.ErrJetStreamNotEnabled,
	} {
		if errors.Is(err, e) {
			return true
		}
	}

	return unable(err)
}

// unable tells an answer of a server that cannot do its part at the moment.
func unable(err error) bool {
	var api jetstream.JetStreamError
	return errors.As(err, &api) && api.APIError() != nil && api.APIError().Code == 503
}

// Address is the address of a cluster without the names and passwords in it.
func Address(text string) string {
	list := strings.Split(text, ",")
	for i, one := range list {
		if scheme, rest, ok := strings.Cut(one, "://"); ok {
			list[i] = scheme + "://" + rest[strings.LastIndexByte(rest, '@')+1:]
		} else {
			list[i] = one[strings.LastIndexByte(one, '@')+1:]
		}
	}
	return strings.Join(list, ",")
}

// storeFailed is closed when the storage of the server inside this process has failed; nil if there is none.
func (c *Conn) storeFailed() <-chan struct{} {
	if c.store == nil {
		return nil
	}
	return c.store.failed
}

// pause waits, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// offers opens the list of offers, making it if it isn't there.
func (c *Conn) offers(ctx context.Context) (jetstream.KeyValue, error) {
	kv, err := c.js.KeyValue(ctx, offersBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = c.js.CreateOrUpdateKeyValue(ctx,
			jetstream.KeyValueConfig{Bucket: offersBucket, Description: "work that workers of compress can join"})
	}
	return kv, err
}
