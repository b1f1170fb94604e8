package searching

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/fitness"
)

// WorkerOptions are the flags of worker.
type WorkerOptions struct {
	Cluster string
	Models  []string // folders to look for the models in; empty: where the coordinator has them
	Workers int      // measurements at the same time; 0: one for each processor
}

// Work serves the searches of a cluster until it is interrupted, or until it has to refuse the only one there is.
func Work(j *shell.Job, o WorkerOptions) (any, error) {
	if o.Workers < 0 {
		return nil, fmt.Errorf("%w: --workers %d", ErrFlags, o.Workers)
	}
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}
	w := &worker{job: j, o: o, dev: dev}
	if w.slots = o.Workers; w.slots == 0 {
		w.slots = max(1, dev.Info().Threads)
	}
	if w.id, err = identity(dev); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s-%d", host, os.Getpid())
	conn, err := jobs.Connect(j.Ctx, jobs.Options{URL: o.Cluster, Name: name, Events: jobs.Events{
		Lost: func(err error) { w.note("the cluster does not answer (%v); waiting for it", err) },
		Back: func() { w.note("the cluster is back; going on") },
	}})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	w.note("worker %s waits for work, %d measurements at a time", name, w.slots)
	return nil, conn.Join(j.Ctx, w.slots, w.open)
}

type worker struct {
	job   *shell.Job
	o     WorkerOptions
	dev   kernels.Device
	id    string
	slots int
	mu    sync.Mutex
}

func (w *worker) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.job.Note(format, args...)
}

// open decides about an offer: the program must be the same, and the models. They are measured when the first task comes.
func (w *worker) open(ctx context.Context, o jobs.Offer, text []byte) (jobs.Handler, func(), error) {
	if o.Kind != Kind {
		return nil, nil, fmt.Errorf("%w: work of kind %q; this program does %s", jobs.ErrRefused, o.Kind, Kind)
	}
	if o.Contract != w.id {
		return nil, nil, fmt.Errorf("%w: the coordinator is another build or runs on another device: %s, here %s", jobs.ErrRefused, o.Contract, w.id)
	}
	var spec Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, nil, fmt.Errorf("%w: specification: %w", jobs.ErrRefused, err)
	}
	dev := w.dev
	if dev.Info().Host {
		var err error
		if dev, err = device.Open(dev.Info().Name, device.Options{Threads: max(1, dev.Info().Threads/w.slots)}); err != nil {
			return nil, nil, err
		}
	}
	var list []fitness.Subject
	for _, s := range spec.Subjects {
		subject, err := w.find(ctx, s, dev)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, subject)
	}
	w.note("serving %s", o.Name)
	spec.Options.Benches = w.slots
	l := &lazyJudge{make: func() (*fitness.Judge, error) {
		judge, err := fitness.NewJudge(ctx, list, spec.Options)
		if err == nil && judge.ID() != spec.Judge {
			err = errors.Join(fmt.Errorf("%w: models or data differ from the coordinator's", jobs.ErrRefused), judge.Close())
			judge = nil
		}
		return judge, err
	}}
	handle := func(ctx context.Context, it jobs.Item) ([]byte, error) {
		judge, err := l.get()
		if err != nil {
			return nil, err
		}
		return handler(judge)(ctx, it)
	}
	return handle, func() {
		l.close()
		w.note("%s is done", o.Name)
	}, nil
}

// lazyJudge is a judge that is made when it is first needed.
type lazyJudge struct {
	make  func() (*fitness.Judge, error)
	once  sync.Once
	judge *fitness.Judge
	err   error
}

func (l *lazyJudge) get() (*fitness.Judge, error) {
	l.once.Do(func() { l.judge, l.err = l.make() })
	return l.judge, l.err
}

// close ends it, made or not.
func (l *lazyJudge) close() {
	l.once.Do(func() { l.err = context.Canceled })
	if l.judge != nil {
		_ = l.judge.Close() // nothing of it is needed any more
	}
}

// find looks for a model's files and checks that they are the coordinator's.
func (w *worker) find(ctx context.Context, s SubjectSpec, dev kernels.Device) (out fitness.Subject, err error) {
	places := w.o.Models
	if len(places) == 0 {
		places = []string{s.Path}
	}
	var faults []error
	for _, path := range places {
		m, err := lm.Load(ctx, path, dev, lm.Options{})
		if err != nil {
			faults = append(faults, err)
			continue
		}
		print, err := m.Fingerprint(ctx)
		if err = errors.Join(err, m.Close()); err != nil {
			return out, err
		}
		if print != s.Fingerprint {
			faults = append(faults, fmt.Errorf("%s has the hash %.12s", path, print))
			continue
		}
		out = fitness.Subject{Name: s.Name, Open: onDevice(path, dev)}
		for k, to := range sets(&out) {
			ids, err := windows(s.Data[k], s.Lengths[k])
			if err != nil {
				return out, err
			}
			*to = corpus.New(ids, "the coordinator")
		}
		return out, nil
	}
	return out, fmt.Errorf("%w: no model with the hash %.12s (%s there): %w", jobs.ErrRefused, s.Fingerprint, s.Path, errors.Join(faults...))
}

// flat lays windows one after the other.
func flat(w corpus.Windows) (ids, lengths []int32) {
	for _, row := range w.IDs {
		ids = append(ids, row...)
		lengths = append(lengths, int32(len(row)))
	}
	return ids, lengths
}

// windows takes them apart again.
func windows(ids, lengths []int32) (out [][]int32, err error) {
	for _, n := range lengths {
		if n < 0 || int(n) > len(ids) {
			return nil, fmt.Errorf("%w: specification: windows longer than their data", jobs.ErrRefused)
		}
		out = append(out, ids[:n:n])
		ids = ids[n:]
	}
	return out, nil
}
