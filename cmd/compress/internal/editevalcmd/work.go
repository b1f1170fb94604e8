package editevalcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels"
)

// Kind is the kind of offers that the verb makes.
const Kind = "editeval"

// item is a piece of work: an unedited model, or a sequence.
type item struct {
	Base string         `json:"base,omitempty"` // name of the model
	Unit *editeval.Unit `json:"unit,omitempty"`
}

// id names a piece of work in the queue.
func (it *item) id() string {
	if it.Unit == nil {
		return "base-" + cli.Fingerprint(it.Base)[:16]
	}
	return sequencePrefix + cli.Fingerprint(it.Unit)[:16]
}

// sequencePrefix begins the names of sequences in the queue.
const sequencePrefix = "sequence-"

func (it *item) model() string {
	if it.Unit == nil {
		return it.Base
	}
	return it.Unit.Model
}

// items are all pieces of work, the unedited models first.
func (r *run) items() []item {
	return itemsOf(&r.plan, r.study)
}

// itemsOf are the pieces of work of a plan.
func itemsOf(plan *editeval.Plan, study *editeval.Study) []item {
	var list []item
	var names []string
	for _, m := range plan.Models {
		list, names = append(list, item{Base: m.Name}), append(names, m.Name)
	}
	for _, u := range study.Units(names) {
		list = append(list, item{Unit: &u})
	}
	return list
}

// find is the piece of work of a name. What it is the plan says: over the queue come names alone.
func (c *team) find(in jobs.Item) (item, error) {
	for _, it := range itemsOf(c.plan, c.study) {
		if it.id() == in.ID {
			return it, nil
		}
	}
	return item{}, fmt.Errorf("%w: item %s", jobs.ErrItem, in.ID)
}

// team does pieces of work, several at the same time, each on a model of its own.
type team struct {
	j     *cli.Job
	plan  *editeval.Plan
	study *editeval.Study
	dir   string
	dev   kernels.Device
	slots int

	mu   sync.Mutex // guards what follows, and j
	idle []*subject
	step func(id string, share int)
}

// borrow gives an open model: one that nobody uses at the moment, or a new one.
func (c *team) borrow(ctx context.Context, name string) (*subject, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if i := slices.IndexFunc(c.idle, func(s *subject) bool { return s.Name == name }); i >= 0 {
		s := c.idle[i]
		c.idle = slices.Delete(c.idle, i, i+1)
		return s, nil
	}

	var errs error
	for _, s := range c.idle { // of other models, which have had their turn
		errs = errors.Join(errs, s.close())
	}

	c.idle = nil
	i := slices.IndexFunc(c.plan.Models, func(m editeval.Model) bool { return m.Name == name })
	if errs != nil || i < 0 {
		return nil, errors.Join(errs, ctx.Err())
	}

	dev, err := workers.Share(c.dev, c.slots)
	if err != nil {
		return nil, err
	}

	s, err := open(c.j, c.plan, c.plan.Models[i], dev)
	if err != nil {
		return nil, err
	}

	if err := c.study.Prepare(ctx, s.Subject, nil); err != nil {
		return nil, errors.Join(err, s.close())
	}

	return s, nil
}

// giveBack takes a model back.
func (c *team) giveBack(s *subject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, s)
}

func (c *team) close() error {
	var errs error
	for _, s := range c.idle {
		errs = errors.Join(errs, s.close())
	}
	c.idle = nil
	return errs
}

// lockEvery is how often a unit is asked for that another process still holds.
const lockEvery = 200 * time.Millisecond

// handle does a piece of work. The result lies in the folder; the queue only hears that it is done.
func (c *team) handle(ctx context.Context, in jobs.Item) ([]byte, error) {
	it, err := c.find(in)
	if err != nil {
		return nil, err
	}

	lock, err := hold(c.dir, it.id())
	for errors.Is(err, cli.ErrBusy) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockEvery):
			lock, err = hold(c.dir, it.id())
		}
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()

	s, err := c.borrow(ctx, it.model())
	if err != nil {
		return nil, err
	}

	if it.Unit == nil {
		err = c.study.Base(ctx, s.Subject)
	} else {
		err = c.study.Sequence(ctx, s.Subject, *it.Unit, func(edits, checkpoints int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.step(in.ID, editeval.Share(edits, checkpoints))
		})
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}

	c.giveBack(s)
	return []byte("{}"), nil
}

// work has all pieces of work done.
func (r *run) work() (err error) {
	dev, err := r.Device()
	if err != nil {
		return err
	}

	slots := r.o.Slots(dev.Info().Threads)
	r.team = &team{j: r.Job, plan: &r.plan, study: r.study, dir: r.dir, dev: dev, slots: max(1, slots)}
	list := r.items()
	track := r.track(list)
	defer track.end()

	conn, closeQueue, err := r.connect()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeQueue()) }()

	queue, err := r.offer(conn)
	if err != nil {
		return err
	}

	stop, err := queue.Watch()
	if err != nil {
		return err
	}
	defer stop()

	ctx, cancel := context.WithCancel(r.Ctx)
	var wg sync.WaitGroup
	if slots > 0 {
		wg.Go(func() { _ = queue.Work(ctx, slots, r.team.handle) }) // ends with ctx alone
	}
	defer func() {
		cancel()
		wg.Wait()
		err = errors.Join(err, r.team.close())
	}()

	return r.collect(queue, list, track)
}

// collect hands the work over and waits for it.
func (r *run) collect(queue *jobs.Queue, list []item, t *track) error {
	var items []jobs.Item
	for _, it := range list {
		items = append(items, jobs.Item{ID: it.id()})
	}

	queue.Accept(r.check)
	results, err := queue.Do(r.Ctx, items, func(res jobs.Result) {
		r.team.mu.Lock()
		defer r.team.mu.Unlock()
		t.finished(res.ID)
	})
	if err != nil {
		return err
	}

	var failures []string
	for _, res := range results {
		if res.Failure != "" && !slices.Contains(failures, res.Failure) {
			failures = append(failures, res.Failure)
		}
	}

	if err := queue.Withdraw(r.Ctx); err != nil {
		return err
	}
	if len(failures) > 0 {
		return fmt.Errorf("%w: %s (HINT: --resume tries again what has failed)", errWork, strings.Join(failures, "; "))
	}

	return nil
}

// check looks whether a piece of work was done that is said to be: its results have to lie in the folder.
func (r *run) check(in jobs.Item, data []byte) error {
	if err := jobs.Decode(data, &struct{}{}); err != nil {
		return err
	}
	it, err := r.team.find(in)
	if err == nil && !r.study.Written(it.model(), it.Unit) {
		err = fmt.Errorf("%w: %s is said to be done, and is not", jobs.ErrItem, in.ID)
	}
	return err
}

// errWork: a piece of work failed.
var errWork = errors.New("a sequence failed")

// track is the display of progress over all pieces of work, wherever they are done.
type track struct {
	bar   *cli.Progress
	each  map[string]int64 // what a piece counts for
	done  map[string]int64
	names map[string]string
	old   int64 // what earlier runs had done
}

func (r *run) track(list []item) *track {
	t := &track{each: map[string]int64{}, done: map[string]int64{}, names: map[string]string{}}
	total := int64(0)
	for _, it := range list {
		n := int64(editeval.Share(0, 1))
		name := it.model()
		if it.Unit != nil {
			n = int64(r.study.Work())
			name += " " + r.plan.Editors[it.Unit.Editor].Name
		}

		t.each[it.id()], t.names[it.id()] = n, name
		total += n
	}

	t.bar = r.Progress("editeval", total)
	r.team.step = func(id string, share int) {
		t.done[id] = min(t.done[id]+int64(share), t.each[id])
		t.show(id)
	}
	return t
}

// finished notes a piece that is done. A sequence that nothing was heard of was done by an earlier run, and
// says nothing about the pace of this one.
func (t *track) finished(id string) {
	if sequence := strings.HasPrefix(id, sequencePrefix); sequence && t.done[id] == 0 {
		t.old += t.each[id]
		t.bar.Skip(t.old)
	}
	t.done[id] = t.each[id]
	t.show(id)
}

func (t *track) show(id string) {
	sum := int64(0)
	for _, n := range t.done {
		sum += n
	}
	t.bar.Say(t.names[id])
	t.bar.Set(sum)
}

func (t *track) end() { t.bar.End() }
