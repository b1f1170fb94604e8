// Package crew runs the queue of a search: the coordinator's side with the workers of its own process, and the side of the
// worker processes that join it.
package crew

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels"
)

// Options of [Assemble].
type Options struct {
	Cluster string // address of a cluster; empty: a server in this process
	Listen  string // host:port at which others reach that server; empty: no port
	Dir     string // where that server keeps items and results
	Slots   int    // items that are worked on at the same time in this process; 0: none
	Kind    string // of the work
	Name    string // of the offer
	Spec    []byte // what all items have in common
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
	bars *shell.Bars
}

// ErrWork: an item failed where it was worked on.
var ErrWork = errors.New("a measurement failed")

// Identity is what results depend on besides models and data: this very program, and the device.
func Identity(dev kernels.Device) (string, error) {
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
	name, _, _ := strings.Cut(dev.Info().Name, ":")
	return fmt.Sprintf("program %s device %s %s", hex.EncodeToString(h.Sum(nil))[:16], name, strings.Join(dev.Info().Features, "+")), nil
}

// Assemble opens the queue and starts the workers of this process.
func Assemble(j *shell.Job, o Options, handle jobs.Handler) (_ *Crew, err error) {
	c := &Crew{say: j.Note, bars: j.Bars()}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.conn, c.server, err = Connect(j, o, c.Note); err != nil {
		return nil, err
	}
	if c.server != nil && c.server.URL() != "" {
		c.Note("workers can join with: compress worker --cluster %s", c.server.URL())
	}
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

// Connect reaches the queue of a cluster or, where none is named, of a server in this process, which is nil otherwise. say, which is called
// from any goroutine, tells what becomes of the cluster and who joins.
func Connect(j *shell.Job, o Options, say func(format string, args ...any)) (_ *jobs.Conn, server *jobs.Server, err error) {
	const own = "the coordinator's own worker"
	co := jobs.Options{URL: o.Cluster, Name: own, Events: jobs.Events{
		Lost: func(err error) { say("the cluster does not answer (%v); waiting for it", err) },
		Back: func() { say("the cluster is back; going on") },
		Joined: func(worker string) {
			if worker != own {
				say("worker %s has joined", worker)
			}
		},
		Refused: func(worker, reason string) { say("worker %s refuses the work: %s", worker, reason) },
	}}
	if o.Cluster == "" {
		if server, err = jobs.Serve(jobs.ServerOptions{Dir: o.Dir, Listen: o.Listen}); err != nil {
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

// offer makes the offer.
func (c *Crew) offer(j *shell.Job, o Options) error {
	dev, err := j.Device()
	if err != nil {
		return err
	}
	id, err := Identity(dev)
	if err != nil {
		return err
	}
	offer := jobs.Offer{Name: o.Name, Kind: o.Kind, Contract: id, Patience: 20 * time.Second}
	if c.queue, err = c.conn.Offer(j.Ctx, offer, o.Spec); err != nil {
		return err
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

// Do has items worked on by whoever takes them, and returns the results in the order of the items. done, which may be nil, is
// called for each as it comes in, one call at a time; its error ends the call. name is shown as the progress.
func (c *Crew) Do(ctx context.Context, name string, items []jobs.Item, done func(jobs.Result) error) ([]jobs.Result, error) {
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

// Hand has one item worked on and returns its result, of which a failure is a part. It may be called from several goroutines at
// once, and shows no progress.
func (c *Crew) Hand(ctx context.Context, item jobs.Item) (jobs.Result, error) {
	results, err := c.queue.Do(ctx, []jobs.Item{item}, nil)
	if err != nil {
		return jobs.Result{}, err
	}
	return results[0], nil
}
