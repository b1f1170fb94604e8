package searchcmd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/fitness"
)

// Serve decides about an offer of [Kind]: the models must be the coordinator's. They are measured when the
// first task comes.
func Serve(ctx context.Context, w *workers.Worker, text []byte) (jobs.Handler, func(), error) {
	var spec Spec
	if err := jobs.Decode(text, &spec); err != nil {
		return nil, nil, fmt.Errorf("%w: specification: %w", jobs.ErrRefused, err)
	}

	dev, err := w.Device()
	if err != nil {
		return nil, nil, err
	}

	var list []fitness.Subject
	for _, s := range spec.Subjects {
		subject, err := find(ctx, w.Models, s, dev)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, subject)
	}

	spec.Options.Benches = w.Slots
	l := &lazyJudge{make: func() (*fitness.Judge, error) {
		judge, err := fitness.NewJudge(ctx, list, spec.Options)
		if err == nil && judge.ID() != spec.Judge {
			err = errors.Join(fmt.Errorf("%w: models or data differ from the coordinator's", jobs.ErrRefused),
				judge.Close())
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

	return handle, l.close, nil
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
func find(ctx context.Context, places []string, s SubjectSpec, dev kernels.Device) (out fitness.Subject, err error) {
	if len(places) == 0 {
		places = []string{s.Path}
	}

	var faults []error
	for _, path := range places {
		m, err := lm.Load(ctx, path, dev, lm.Options{Decode: true})
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

	refusal := fmt.Errorf("%w: no model with the hash %.12s (%q there)", jobs.ErrRefused, s.Fingerprint, s.Path)
	return out, workers.Withheld(refusal, errors.Join(faults...))
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
