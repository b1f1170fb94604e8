package runcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/safefile"
)

// Kind is the kind of offers that the verb makes.
const Kind = "run"

// session is one run of the coordinator. It is what a worker elsewhere needs, who has to see the same folders.
type session struct {
	ID      string `json:"id"`
	Dir     string `json:"dir"`               // as it stands in the jobs' command lines
	From    string `json:"from"`              // working directory that it counts from
	Cluster string `json:"cluster,omitempty"` // without names and passwords
}

// offer is the name of the queue.
func (s session) offer() string { return "run-" + s.ID }

// read finds the present session of a folder.
func readSession(dir string) (s session, ok bool) {
	text, err := safefile.ReadFile(filepath.Join(dir, stateFolder, sessionFile), maxRecord)
	return s, err == nil && json.Unmarshal(text, &s) == nil && s.ID != ""
}

// work has all jobs done over a queue: in this process, or in a cluster.
func (r *run) work() (err error) {
	here, err := os.Getwd()
	if err != nil {
		return err
	}

	old, again := readSession(r.dir)
	s := session{Dir: r.dir, From: here, Cluster: jobs.Address(r.o.Cluster)}
	s.ID = cli.Fingerprint(here, r.dir, os.Getpid(), time.Now().UnixNano())[:16]

	if again && old.Cluster != "" && old.Cluster == s.Cluster {
		if err := r.withdraw(old); err != nil {
			return err
		}
	}

	spec, err := json.Marshal(s)
	if err != nil {
		return err
	}

	if err := workers.Vouch(filepath.Join(r.dir, stateFolder, sessionFile), spec); err != nil {
		return err
	}

	threads, err := r.Threads()
	if err != nil {
		return err
	}

	slots := r.o.Slots(threads)
	t := r.team(cmp.Or(threads, runtime.NumCPU()), slots)
	if r.o.straight {
		return r.without(t, slots)
	}

	queueDir := filepath.Join(r.dir, stateFolder, "queue")
	if err := os.RemoveAll(queueDir); err != nil { // what is done lies in the folder
		return err
	}

	c, err := workers.Assemble(r.Job, workers.Options{
		Where: r.o.Where, Dir: queueDir, Slots: slots, Kind: Kind, Name: s.offer(), Spec: spec,
		Check: r.check,
	}, t.handle)
	if err != nil {
		return err
	}

	r.say = c.Note
	t.began = func(job string) { c.Note("%s: running", job) }
	if r.limit = slots; r.o.Cluster != "" || r.o.Listen != "" {
		r.limit = len(r.jobs)
	}

	r.hand = func(k call) (*outcome, error) { return r.over(c, s, k) }
	err = r.schedule()
	for _, j := range r.jobs { // nothing is handed over any more
		err = errors.Join(err, os.RemoveAll(callFile(r.dir, j.name)))
	}

	if r.o.Cluster != "" { // also after an interrupt, so that nobody goes on with it
		err = errors.Join(err, r.takeBack(c))
	}

	return errors.Join(err, c.Close(), os.RemoveAll(queueDir), os.RemoveAll(workers.KeysFile(queueDir)))
}

// giveUp is how long a server may take to let go of a run's work.
const giveUp = 10 * time.Second

// takeBack takes the offer of this run back. A busy server may be too slow for that; what the run has done is done.
func (r *run) takeBack(c *workers.Crew) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Ctx), giveUp)
	defer cancel()
	err := c.Withdraw(ctx)
	if err == nil || ctx.Err() == nil {
		return err
	}
	return failure.Hinted(fmt.Errorf("--cluster %s: the server has not taken the work of this run back within %v",
		jobs.Address(r.o.Cluster), giveUp), "its workers may go on with it; --resume takes it back")
}

// withdraw takes the offer of an earlier run back, whose coordinator has died.
func (r *run) withdraw(old session) error {
	spec, err := json.Marshal(old)
	if err != nil {
		return err
	}
	c, err := workers.Assemble(r.Job, workers.Options{Where: r.o.Where, Kind: Kind, Name: old.offer(), Spec: spec}, nil)
	if err != nil {
		return err
	}
	return errors.Join(c.Withdraw(r.Ctx), c.Close())
}

// team are the workers of this process, which share its threads.
func (r *run) team(threads, slots int) *team {
	t := &team{
		dir: r.dir, run: r.o.program, hashes: r.hashes, threads: max(1, threads/max(1, slots)),
		session: func() bool { return true },
	}
	if t.run == nil {
		t.run = child("")
	}
	return t
}

// without has the jobs done without a queue.
func (r *run) without(t *team, slots int) error {
	r.limit = slots
	r.say = func(string, ...any) {}
	t.began = func(string) {}
	r.hand = func(c call) (*outcome, error) { return t.do(r.Ctx, c) }
	return r.schedule()
}

// order is an item of the queue: which job is to be done, and from what. How it is done the folder says.
type order struct {
	Job string `json:"job"`
	Key string `json:"key"`
}

// over hands a job over and waits for what became of it.
func (r *run) over(c *workers.Crew, s session, k call) (*outcome, error) {
	if err := k.write(r.dir); err != nil {
		return nil, err
	}

	data, err := json.Marshal(order{k.Job, k.Key})
	if err != nil {
		return nil, err
	}

	res, err := c.Hand(r.Ctx, jobs.Item{ID: cli.Fingerprint(s.ID, k.Job)[:32], Data: data})
	if err != nil {
		return nil, err
	}

	o := &outcome{State: stateFailed, Failure: res.Failure, Seconds: res.Seconds}
	if res.Failure == "" {
		o, err = readOutcome(res.Data)
	}
	if o != nil {
		o.Worker = res.Worker
	}

	return o, err
}

// readOutcome reads what somebody says of a job.
func readOutcome(data []byte) (*outcome, error) {
	o := &outcome{}
	if err := jobs.Decode(data, o); err != nil {
		return nil, err
	}

	o.Failure = jobs.Plain(o.Failure, maxFailure)
	switch {
	case o.Seconds < 0 || o.Seconds > maxSeconds || math.IsNaN(o.Seconds):
		return nil, fmt.Errorf("%w: %g seconds", jobs.ErrItem, o.Seconds)
	case o.State == stateFailed && o.Failure != "", (o.State == stateDone || o.State == stateKept) && o.Failure == "":
		return o, nil
	}

	return nil, fmt.Errorf("%w: state %.40q, failure %.40q", jobs.ErrItem, o.State, o.Failure)
}

// Bounds on what is believed of a job.
const (
	maxFailure = 8192
	maxSeconds = 10 * 365 * 24 * 3600
)

// check looks whether a job was done that is said to be: the folder has to say so too.
func (r *run) check(it jobs.Item, data []byte) error { return r.checked(r.Ctx, it, data) }

func (r *run) checked(ctx context.Context, it jobs.Item, data []byte) error {
	o, err := readOutcome(data)
	if err != nil || o.State == stateFailed {
		return err
	}

	var k order
	if err := jobs.Decode(it.Data, &k); err != nil {
		return err
	}
	if !readRecord(r.dir, k.Job).isDone(ctx, r.hashes, r.dir, k.Key) {
		return fmt.Errorf("%w: job %s is said to be done, and is not", jobs.ErrItem, k.Job)
	}

	return nil
}

// vouched reads an offer, whose folder has to say the same.
func vouched(w *workers.Worker, text []byte) (s session, err error) {
	if err := jobs.Decode(text, &s); err != nil {
		return s, fmt.Errorf("%w: specification: %w", jobs.ErrRefused, err)
	}

	folder := s.Dir
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(s.From, s.Dir)
	}
	if !filepath.IsAbs(folder) {
		return s, fmt.Errorf("%w: specification: %.200q is no whole path", jobs.ErrRefused, folder)
	}

	return s, w.Vouched(folder, filepath.Join(stateFolder, sessionFile), text)
}

// Serve lets a worker process do jobs of a run elsewhere. It has to see the coordinator's folders under the same names.
func Serve(ctx context.Context, w *workers.Worker, text []byte) (jobs.Handler, func(), error) {
	s, err := vouched(w, text)
	if err != nil {
		return nil, nil, err
	}

	threads, err := w.Job.Threads()
	if err != nil {
		return nil, nil, err
	}

	t := &team{
		dir: s.Dir, cwd: s.From, run: child(s.From),
		threads: max(1, cmp.Or(threads, runtime.NumCPU())/max(1, w.Slots)),
	}
	t.hashes = newHasher("", absolute(t.path()))
	t.began = func(job string) { w.Note("%s: running", job) }

	t.session = func() bool { now, ok := readSession(t.path()); return ok && now.ID == s.ID }
	if !t.session() {
		return nil, nil, fmt.Errorf("%w: the folder %s of the run is not here, or another run has taken it over",
			jobs.ErrRefused, t.path())
	}

	return t.handle, nil, ctx.Err()
}
