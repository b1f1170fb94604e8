package evalcmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/kernels"
)

// BatchOptions are the flags of eval batch.
type BatchOptions struct {
	task.BatchOptions
	Out string
}

// CheckPlan finds what is wrong with a plan by itself.
func CheckPlan(file string, text []byte) error {
	_, err := task.ParsePlan(file, text)
	return err
}

// Inputs are what a plan names: files and folders, and tasks with the folders of their data. A plan with faults
// has none.
func Inputs(file string, text []byte) (paths, tasks, data []string) {
	p, err := task.ParsePlan(file, text)
	if err != nil {
		return nil, nil, nil
	}

	for _, m := range p.Models {
		paths = append(paths, m.Path)
		if m.Adapter != "" {
			paths = append(paths, m.Adapter)
		}
	}

	return append(paths, p.Data...), p.Tasks, p.Data
}

// Batch runs every model of a plan on every task, through a queue that survives interruptions, and compares the models.
func Batch(j *cli.Job, file string, o BatchOptions, who workers.Where) (_ any, err error) {
	if err := who.Validate(); err != nil {
		return nil, err
	}

	plan, err := task.ReadPlan(file)
	if err != nil {
		return nil, err
	}

	o.Seed = j.Seed
	o.Contract = compress.Version()
	o.Note = func(text string) { j.Note("%s", text) }
	b := &batch{j: j, file: file, plan: plan}
	if b.Batch, err = task.OpenBatch(plan, o.Out, o.BatchOptions); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()

	if b.Discarded {
		j.Note("%s: the unfinished runs of an interrupted batch are discarded; --resume would have continued it", o.Out)
	}

	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	slots := who.Slots(dev.Info().Threads)
	seats := max(slots, 1)
	if err := b.sit(seats, func() (kernels.Device, error) { return workers.Share(dev, seats) }); err != nil {
		return nil, err
	}
	defer b.leave()

	r, err := b.run(o.Cache, who, slots)
	if err != nil {
		return nil, err
	}

	return r, b.finish(r)
}

// batch is a batch whose runs go through a queue.
type batch struct {
	*task.Batch
	j     *cli.Job
	file  string // of the plan; "" for a worker
	plan  *task.Plan
	seats chan *seat // one for each run at a time

	mu sync.Mutex // guards the loading of models
}

// seat is where one run at a time is done, with the model that was used last.
type seat struct {
	dev   kernels.Device
	open  *task.BatchModel
	model int
}

// sit makes room for runs at the same time.
func (b *batch) sit(n int, device func() (kernels.Device, error)) error {
	b.seats = make(chan *seat, n)
	for range n {
		dev, err := device()
		if err != nil {
			return err
		}
		b.seats <- &seat{dev: dev}
	}
	return nil
}

// leave closes models when all runs have ended.
func (b *batch) leave() {
	for range cap(b.seats) {
		if s := <-b.seats; s.open != nil {
			s.open.Model.Close()
		}
	}
}

// model opens a model at a seat, and closes the one before.
func (b *batch) model(at *seat, i int) (*task.BatchModel, error) {
	if at.open != nil && at.model == i {
		return at.open, nil
	}

	if at.open != nil {
		at.open.Model.Close()
		at.open = nil
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	m := b.plan.Models[i]
	open, err := load(b.j, m.Path, at.dev, cli.Compute{}, openmodel.Options{Adapter: m.Adapter})
	if err != nil {
		return nil, fmt.Errorf("%s: model %s: %w", cmp.Or(b.file, "the plan"), m.Name, err)
	}

	at.open, at.model = open, i
	return open, nil
}

// contract opens every model once, and is a hash of what all results depend on.
func (b *batch) contract() (string, error) {
	at := <-b.seats
	defer func() { b.seats <- at }()

	var identities []string
	for i := range b.plan.Models {
		m, err := b.model(at, i)
		if err != nil {
			return "", err
		}
		identities = append(identities, m.Identity)
	}

	return b.Contract(identities)
}

// run queues all runs, waits for them, and reports what they gave.
func (b *batch) run(cache string, who workers.Where, slots int) (*task.BatchReport, error) {
	contract, err := b.contract()
	if err != nil {
		return nil, err
	}
	if err := b.Begin(contract); err != nil {
		return nil, err
	}

	spec, err := json.Marshal(work{Dir: b.Dir(), Contract: contract, Plan: b.plan, Cache: cache})
	if err != nil {
		return nil, err
	}
	if err := workers.Vouch(filepath.Join(b.Dir(), offerFile), spec); err != nil {
		return nil, err
	}

	team, err := workers.Assemble(b.j, workers.Options{
		Where: who, Dir: b.queue(), Slots: slots, Kind: Kind, Name: "eval-" + contract[:16], Spec: spec,
		Check: func(_ jobs.Item, data []byte) error { return jobs.Decode(data, &done{}) },
	}, b.handle)
	if errors.Is(err, jobs.ErrOffer) {
		return nil, fmt.Errorf("%w: %w", task.ErrOtherBatch, err)
	}
	if err != nil {
		return nil, err
	}

	r, err := b.collect(team)
	return r, errors.Join(err, team.Close())
}

// queue is where the queue of this process keeps what it holds.
func (b *batch) queue() string { return filepath.Join(b.Dir(), queueFolder) }

// collect hands the runs over, model by model, and reports what they gave.
func (b *batch) collect(team *workers.Crew) (*task.BatchReport, error) {
	var items []jobs.Item
	for _, u := range b.Units() {
		data, err := json.Marshal(u)
		if err != nil {
			return nil, err
		}
		items = append(items, jobs.Item{ID: itemID(u), Data: data})
	}

	results, err := team.Do(b.j.Ctx, "runs", items, nil)
	// what has failed is tried again by --resume; what was done is kept in its folder
	if errors.Is(err, workers.ErrWork) {
		return nil, errors.Join(err, team.Withdraw(b.j.Ctx))
	}
	if err != nil {
		return nil, err
	}

	reused := 0
	for i, u := range b.Units() {
		var said done
		if err := jobs.Decode(results[i].Data, &said); err != nil {
			return nil, err
		}
		if said.Reused {
			reused++
		}

		// The queue may have the result of a run whose files were damaged and have been removed.
		if !b.Done(u) {
			if _, err := b.handle(b.j.Ctx, items[i]); err != nil {
				return nil, err
			}
		}
	}

	r, err := b.Report(reused)
	return r, errors.Join(err, team.Withdraw(b.j.Ctx))
}

// done is the result of an item. The figures lie in the folder of the run: who did it only says that it is done, and
// whether an earlier one was there.
type done struct {
	Reused bool `json:"reused"`
}

// itemID names a run in the queue.
func itemID(u task.Unit) string { return fmt.Sprintf("%d-%d", u.Model, u.Task) }

// handle does a run, unless its folder is there already.
func (b *batch) handle(ctx context.Context, item jobs.Item) ([]byte, error) {
	var u task.Unit
	if err := jobs.Decode(item.Data, &u); err != nil || item.ID != itemID(u) || !slices.Contains(b.Units(), u) {
		return nil, fmt.Errorf("%w: item %s", task.ErrPlan, item.ID)
	}

	at := <-b.seats
	defer func() { b.seats <- at }()

	var m *task.BatchModel
	if !b.Done(u) {
		var err error
		if m, err = b.model(at, u.Model); err != nil {
			return nil, err
		}
	}

	reused, err := b.Run(ctx, u, m)
	if err != nil {
		return nil, err
	}

	return json.Marshal(done{reused})
}

// finish prints the comparison, writes it and gives the output its name.
func (b *batch) finish(r *task.BatchReport) error {
	table := differences(r)
	b.j.Table(table)
	var md bytes.Buffer
	if err := table.Markdown(&md); err != nil {
		return err
	}

	err := errors.Join(os.RemoveAll(b.queue()), os.RemoveAll(workers.KeysFile(b.queue())),
		os.Remove(filepath.Join(b.Dir(), offerFile)))
	if err != nil {
		return err
	}

	return b.Publish(r, map[string][]byte{"comparison.md": md.Bytes()})
}

// differences is a table with a row for each figure: the first model's, and how the others differ.
func differences(r *task.BatchReport) *report.Table {
	base := r.Models[0].Name
	t := &report.Table{Columns: report.Columns("model", "task", "filter", "metric", "value|%.4f", base+"|%.4f",
		"difference|%+.4f", "low|%+.4f", "high|%+.4f", "p|%.4g")}
	var rest []string
	for _, m := range r.Models[1:] {
		rest = append(rest, m.Name)
	}

	for _, name := range rest {
		for _, p := range r.Against[name] {
			t.Add(name, p.Task, p.Filter, p.Metric, p.B, p.A, p.Difference, p.Low, p.High, p.P)
		}
	}

	if len(rest) == 0 {
		for _, task := range sortedKeys(r.Results[base]) {
			for _, key := range sortedKeys(r.Results[base][task]) {
				metric, filter, ok := strings.Cut(key, ",")
				if v, isNumber := r.Results[base][task][key].(float64); ok && isNumber &&
					!strings.HasSuffix(metric, "_stderr") {
					t.Add(base, task, filter, metric, v, v, nil, nil, nil, nil)
				}
			}
		}
	}

	return t
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
