package workers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// WorkerOptions are the flags of the verb worker.
type WorkerOptions struct {
	Cluster string
	Access  jobs.Access
	Models  []string // folders to look for the models in; empty: where the coordinator has them
	Folders []string // folders of runs that may be worked in; empty: those of this user
	Workers int      // items at the same time; 0: one for each processor
}

// Opener decides about an offer of one kind, by its specification: it returns what works on its items, and what
// to call when the offer is gone; or an error that wraps [jobs.ErrRefused].
type Opener func(ctx context.Context, w *Worker, spec []byte) (jobs.Handler, func(), error)

// Work serves the offers of a cluster, by their kinds, until it is interrupted, or until it has to refuse the
// only one there is.
func Work(j *cli.Job, o WorkerOptions, kinds map[string]Opener) (any, error) {
	if o.Workers < 0 {
		return nil, cli.Usagef("--workers %d: want 0 (one for each processor) or more", o.Workers)
	}
	if err := (Where{Cluster: o.Cluster, Access: o.Access}).Validate(); err != nil {
		return nil, err
	}

	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	w := &Worker{Job: j, Models: o.Models, Folders: o.Folders, dev: dev, served: map[string]*Served{}}
	if w.Slots = o.Workers; w.Slots == 0 {
		w.Slots = max(1, dev.Info().Threads)
	}

	id, err := Identity(dev)
	if err != nil {
		return nil, err
	}

	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}

	name := fmt.Sprintf("%s-%d", host, os.Getpid())
	conn, err := jobs.Connect(j.Ctx, jobs.Options{URL: o.Cluster, Access: o.Access, Name: name, Events: jobs.Events{
		Lost:    func(err error) { w.Note("the cluster does not answer (%s); waiting for it", told(err)) },
		Back:    func() { w.Note("the cluster is back; going on") },
		Skipped: func(name, reason string) { w.Note("offer %s is left out: %s", name, reason) },
	}})
	if err != nil {
		return nil, err
	}
	defer conn.Close()

	w.Note("worker %s waits for work, %d measurements at a time", name, w.Slots)
	err = conn.Join(j.Ctx, w.Slots, func(ctx context.Context, o jobs.Offer, spec []byte) (jobs.Handler, func(), error) {
		return w.open(ctx, id, o, spec, kinds)
	})
	return nil, errors.Join(err, j.Finish(w.report(name)))
}

// WorkerReport is what a worker process did before it was interrupted.
type WorkerReport struct {
	Name    string   `json:"name"`    // of the process, as results name it
	Workers int      `json:"workers"` // items at the same time
	Served  []Served `json:"served"`  // by name
}

// Served is what a worker did for one coordinator.
type Served struct {
	Name   string  `json:"name"`   // of the offer
	Kind   string  `json:"kind"`   // of the work
	Items  int     `json:"items"`  // brought to an end
	Failed int     `json:"failed"` // ended with an error, or were interrupted
	Busy   float64 `json:"busy_seconds"`
}

// report is what was done until now.
func (w *Worker) report(name string) *WorkerReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &WorkerReport{Name: name, Workers: w.Slots, Served: []Served{}}
	for _, n := range slices.Sorted(maps.Keys(w.served)) {
		r.Served = append(r.Served, *w.served[n])
	}
	return r
}

// counted counts what a handler does for an offer.
func (w *Worker) counted(o jobs.Offer, handle jobs.Handler) jobs.Handler {
	w.mu.Lock()
	defer w.mu.Unlock()

	s := w.served[o.Name]
	if s == nil {
		s = &Served{Name: o.Name, Kind: o.Kind}
		w.served[o.Name] = s
	}

	return func(ctx context.Context, item jobs.Item) ([]byte, error) {
		begin := time.Now()
		data, err := handle(ctx, item)
		w.mu.Lock()
		defer w.mu.Unlock()

		s.Busy += time.Since(begin).Seconds()
		if err != nil {
			s.Failed++
		} else {
			s.Items++
		}

		return data, err
	}
}

// Worker is a process that works for others.
type Worker struct {
	Job     *cli.Job
	Models  []string // folders of models; empty: where the coordinator has them
	Folders []string // folders of runs that may be worked in; empty: those of this user
	Slots   int      // items at the same time

	dev    kernels.Device
	mu     sync.Mutex
	served map[string]*Served // by the offer's name
}

// Note says something, from any goroutine.
func (w *Worker) Note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Job.Note(format, args...)
}

// Device opens a device like the job's with the threads that fall to one slot.
func (w *Worker) Device() (kernels.Device, error) { return Share(w.dev, w.Slots) }

// Share opens a device like another one with the threads that fall to one of some slots. A device that is no
// host device is shared as it is.
func Share(dev kernels.Device, slots int) (kernels.Device, error) {
	info := dev.Info()
	if !info.Host {
		return dev, nil
	}
	return device.Open(info.Name, device.Options{Threads: max(1, info.Threads/max(1, slots))})
}

// open decides about an offer: this program must do such work, and be the coordinator's.
func (w *Worker) open(ctx context.Context, id string, o jobs.Offer, spec []byte,
	kinds map[string]Opener,
) (jobs.Handler, func(), error) {
	opener, ok := kinds[o.Kind]
	if !ok {
		return nil, nil, fmt.Errorf("%w: work of kind %q; this program does %s", jobs.ErrRefused, o.Kind,
			strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}

	if o.Contract != id {
		return nil, nil, fmt.Errorf("%w: the coordinator is another build or runs on another device: %s, here %s",
			jobs.ErrRefused, o.Contract, id)
	}

	handle, free, err := opener(ctx, w, spec)
	if err != nil {
		return nil, nil, err
	}

	w.Note("serving %s", o.Name)
	return w.counted(o, handle), func() {
		if free != nil {
			free()
		}
		w.Note("%s is done", o.Name)
	}, nil
}
