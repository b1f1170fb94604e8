package evalcmd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/safefile"
)

// Kind is that of the work that a batch offers.
const Kind = "eval"

// contractFile in the folder of a batch names the contract, by which a worker knows that it reaches the same folder.
const contractFile = "contract"

// Further names in the folder of a batch: what its offer says, and its queue. No model has the first.
const (
	offerFile   = ".offer"
	queueFolder = "queue"
)

// work is what the runs of a batch have in common.
type work struct {
	Dir      string `json:"dir"` // that the runs are written to; workers have to reach it
	Contract string `json:"contract"`
	Plan     *Plan  `json:"plan"`
	Cache    string `json:"cache"`
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

	text, err := safefile.ReadFile(filepath.Join(s.Dir, contractFile), maxResults)
	if err != nil || string(text) != s.Contract {
		return nil, nil, fmt.Errorf("%w: the folder of the batch, %s, is not reached from here (HINT: share it, "+
			"under the same path)", jobs.ErrRefused, s.Dir)
	}

	o := Options{LogSamples: true, FewshotSeed: 1234}
	o.Task.Cache = s.Cache
	b := &batch{j: w.Job, plan: s.Plan, dir: s.Dir, options: o}
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
