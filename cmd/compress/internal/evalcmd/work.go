package evalcmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/jobs"
)

// Kind is that of the work that a batch offers.
const Kind = "eval"

// Names in the folder of a batch: what its offer says, and its queue. No model has one of them.
const (
	offerFile   = ".offer"
	queueFolder = "queue"
)

// work is what the runs of a batch have in common.
type work struct {
	Dir      string     `json:"dir"` // that the runs are written to; workers have to reach it
	Contract string     `json:"contract"`
	Plan     *task.Plan `json:"plan"`
	Cache    string     `json:"cache"`
}

// Serve does runs of a batch for its coordinator: this process must reach the folder of the batch, and have the
// same models and data.
func Serve(_ context.Context, w *workers.Worker, spec []byte) (jobs.Handler, func(), error) {
	var s work
	if err := jobs.Decode(spec, &s); err != nil {
		return nil, nil, fmt.Errorf("%w: the specification is damaged: %w", jobs.ErrRefused, err)
	}
	if s.Plan == nil {
		return nil, nil, fmt.Errorf("%w: the specification has no plan", jobs.ErrRefused)
	}
	if err := w.Vouched(s.Dir, offerFile, spec); err != nil {
		return nil, nil, err
	}

	joined, err := task.JoinBatch(s.Plan, s.Dir, task.BatchOptions{Cache: s.Cache, Contract: compress.Version()})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", jobs.ErrRefused, err)
	}
	if !joined.SameFolder(s.Contract) {
		return nil, nil, fmt.Errorf("%w: the folder of the batch, %s, is not reached from here (HINT: share it, "+
			"under the same path)", jobs.ErrRefused, s.Dir)
	}

	b := &batch{Batch: joined, j: w.Job, plan: s.Plan}
	if err := b.sit(w.Slots, w.Device); err != nil {
		return nil, nil, err
	}

	contract, err := b.contract()
	if err == nil && contract != s.Contract {
		err = errors.New("models, tasks or data differ from those of the coordinator")
	}
	if err != nil {
		b.leave()
		return nil, nil, fmt.Errorf("%w: %w", jobs.ErrRefused, err)
	}

	return b.handle, b.leave, nil
}
