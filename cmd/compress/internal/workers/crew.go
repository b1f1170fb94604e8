// Package workers runs the queue of a search: the coordinator's side with the workers of its own process, and
// the side of the worker processes that join it.
package workers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels"
)

// Options of [Assemble].
type Options struct {
	Where Where  // the cluster, or how others reach the server in this process
	Dir   string // where that server keeps items and results
	Slots int    // items that are worked on at the same time in this process; 0: none
	Kind  string // of the work
	Name  string // of the offer
	Spec  []byte // what all items have in common

	// Check looks at a result before it counts: what it refuses is thrown away, and the item handed out again. nil:
	// every result counts.
	Check func(item jobs.Item, data []byte) error
}

// Crew is a queue with the workers in this process. Done and Spent are only valid between two calls of Do.
type Crew struct {
	Done  int     // results that came in
	Spent float64 // seconds that they took where they were made

	server *jobs.Server
	conn   *jobs.Conn
	queue  *jobs.Queue
	stop   func()
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	say  func(format string, args ...any)
	bars *cli.Bars
}

// ErrWork: an item failed where it was worked on.
var ErrWork = errors.New("a measurement failed")

// Identity is what results depend on besides models and data: this very program, and the device.
func Identity(dev kernels.Device) (string, error) {
	program, err := programHash()
	if err != nil {
		return "", err
	}

	name, _, _ := strings.Cut(dev.Info().Name, ":")
	return fmt.Sprintf("program %s device %s %s", program, name, strings.Join(dev.Info().Features, "+")), nil
}

// programHash names this program by what its file holds, which takes a tenth of a second and is done once.
var programHash = sync.OnceValues(func() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}

	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()

	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
})

// Assemble opens the queue and starts the workers of this process.
func Assemble(j *cli.Job, o Options, handle jobs.Handler) (_ *Crew, err error) {
	c := &Crew{say: j.Note, bars: j.Bars()}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()

	if c.conn, c.server, err = Connect(j, o, c.Note); err != nil {
		return nil, err
	}

	Announce(o.Where, c.server, "workers", c.Note)
	if err := c.offer(j, o); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(j.Ctx)
	c.cancel = cancel
	if o.Slots > 0 {
		c.wg.Go(func() { _ = c.queue.Work(ctx, o.Slots, handle) }) // ends with ctx alone
	}

	return c, nil
}

// Connect reaches the queue of a cluster or, where none is named, of a server in this process, which is nil
// otherwise. say, which is called from any goroutine, tells what becomes of the cluster and who joins.
func Connect(j *cli.Job, o Options, say func(format string, args ...any)) (_ *jobs.Conn, server *jobs.Server,
	err error,
) {
	const own = "of the coordinator" // as in: worker of the coordinator: a measurement failed
	co := jobs.Options{URL: o.Where.Cluster, Access: o.Where.Access, Name: own, Events: jobs.Events{
		Lost: func(err error) { say("the cluster does not answer (%s); waiting for it", told(err)) },
		Back: func() { say("the cluster is back; going on") },
		Joined: func(worker string) {
			if worker != own {
				say("worker %s has joined", worker)
			}
		},
		Refused: func(worker, reason string) { say("worker %s refuses the work: %s", worker, reason) },
		Rejected: func(worker, item, reason string) {
			say("worker %s: its result of %s does not count: %s", worker, item, reason)
		},
	}}

	if o.Where.Cluster == "" {
		so := jobs.ServerOptions{
			Dir: o.Dir, Listen: o.Where.Listen, TokenFile: o.Where.Token, Open: o.Where.Anyone, Cert: o.Where.Cert,
			Key: o.Where.Key,
		}

		if o.Where.Listen != "" {
			so.Keep = KeysFile(o.Dir)
		}
		if server, err = jobs.Serve(so); err != nil {
			return nil, nil, err
		}

		co.Server = server
	}

	conn, err := jobs.Connect(j.Ctx, co)
	if err != nil && server != nil {
		err = errors.Join(err, server.Close())
	}
	if err != nil {
		return nil, nil, err
	}

	return conn, server, nil
}

// KeysFile is where the server of a folder keeps what its workers know it by: beside the folder, which may be made
// anew.
func KeysFile(dir string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".keys")
}

// Announce says how workers join a server of this process, if they can. who are these workers.
func Announce(w Where, s *jobs.Server, who string, say func(format string, args ...any)) {
	if s == nil || s.URL() == "" {
		return
	}
	if w.Anyone {
		say("whoever reaches %s can take work and give results: there is no token and no encryption", s.Address())
	}
	say("%s can join with: %s", who, w.join(s))
}

// told is an error that may have a server's words in it.
func told(err error) string {
	if err == nil {
		return "no reason given"
	}
	return jobs.Plain(err.Error(), 500)
}

// Patience is how long a worker that has taken a piece of work may be silent until another one gets it. Tests that kill
// workers shorten it.
var Patience = 20 * time.Second

// offer makes the offer.
func (c *Crew) offer(j *cli.Job, o Options) error {
	dev, err := j.Device()
	if err != nil {
		return err
	}

	id, err := Identity(dev)
	if err != nil {
		return err
	}

	offer := jobs.Offer{Name: o.Name, Kind: o.Kind, Contract: id, Patience: Patience}
	if c.queue, err = c.conn.Offer(j.Ctx, offer, o.Spec); err != nil {
		return err
	}
	if o.Check != nil {
		c.queue.Accept(o.Check)
	}

	c.stop, err = c.queue.Watch()
	return err
}

// Note says something, from any goroutine.
func (c *Crew) Note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.say(format, args...)
}

// Do has items worked on by whoever takes them, and returns the results in the order of the items. done, which
// may be nil, is called for each as it comes in, one call at a time; its error ends the call. name is shown as
// the progress.
func (c *Crew) Do(ctx context.Context, name string, items []jobs.Item,
	done func(jobs.Result) error,
) ([]jobs.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	n := 0
	results, err := c.queue.Do(ctx, items, func(r jobs.Result) {
		c.mu.Lock()
		defer c.mu.Unlock()

		n++
		c.Done++
		c.Spent += r.Seconds
		c.bars.Show(name, int64(n), int64(len(items)))
		if done == nil {
			return
		}

		err := failure(r)
		if err == nil {
			err = done(r)
		}
		if err != nil {
			cancel(err)
		}
	})

	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, err
	}

	for _, r := range results {
		if err := failure(r); err != nil {
			return nil, err
		}
	}

	return results, nil
}

// failure is the error of an item, nil if it has a result.
func failure(r jobs.Result) error {
	if r.Failure == "" {
		return nil
	}
	return fmt.Errorf("worker %s: %w: %s", r.Worker, ErrWork, r.Failure)
}

// Withdraw removes the queue: everything that it held is elsewhere.
func (c *Crew) Withdraw(ctx context.Context) error { return c.queue.Withdraw(ctx) }

// Close ends the workers of this process and leaves what is queued.
func (c *Crew) Close() error {
	c.bars.End()
	if c.cancel != nil {
		c.cancel()
	}

	c.wg.Wait()
	if c.stop != nil {
		c.stop()
	}
	if c.conn != nil {
		c.conn.Close()
	}
	if c.server != nil {
		return c.server.Close()
	}

	return nil
}

// Hand has one item worked on and returns its result, of which a failure is a part. It may be called from
// several goroutines at once, and shows no progress.
func (c *Crew) Hand(ctx context.Context, item jobs.Item) (jobs.Result, error) {
	results, err := c.queue.Do(ctx, []jobs.Item{item}, nil)
	if err != nil {
		return jobs.Result{}, err
	}
	return results[0], nil
}
