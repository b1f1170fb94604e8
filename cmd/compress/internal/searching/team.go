package searching

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/fitness"
)

// Kind is the kind of offers that searches make.
const Kind = "search"

// Spec is what the work of a search has in common: all that a worker elsewhere needs besides the models' files.
type Spec struct {
	Judge    string          `json:"judge"` // its ID
	Options  fitness.Options `json:"options"`
	Subjects []SubjectSpec   `json:"subjects"`
}

// SubjectSpec is a model with its data.
type SubjectSpec struct {
	Name        string     `json:"name"`
	Path        string     `json:"path"` // on the coordinator's machine
	Fingerprint string     `json:"fingerprint"`
	Data        [6][]int32 `json:"data"`    // of the sets of [sets], the windows one after the other
	Lengths     [6][]int32 `json:"lengths"` // of the windows
}

// sets are the data of a subject, in the order of a specification.
func sets(s *fitness.Subject) [6]*corpus.Windows {
	return [6]*corpus.Windows{&s.Calib, &s.SelectCalib, &s.TestCalib, &s.Search, &s.Select, &s.Test}
}

// team is the queue of a search with the workers in this process.
type team struct {
	server *jobs.Server
	conn   *jobs.Conn
	queue  *jobs.Queue
	stop   func()
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	say    func(format string, args ...any)
	rounds int     // of measurements, each on one rung
	done   int     // measurements that came in
	spent  float64 // seconds that they took where they were made
	bars   *shell.Bars
}

// identity is what results depend on besides models and data: this very program, and the device.
func identity(dev kernels.Device) (string, error) {
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

// assemble opens the queue and starts the workers of this process.
func assemble(j *shell.Job, o *Options, judge *fitness.Judge, spec Spec, slots int) (_ *team, err error) {
	t := &team{say: j.Note, bars: j.Bars()}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	co := jobs.Options{URL: o.Cluster, Name: "the coordinator's own worker", Events: jobs.Events{
		Lost:    func(err error) { t.note("the cluster does not answer (%v); waiting for it", err) },
		Back:    func() { t.note("the cluster is back; going on") },
		Joined:  func(worker string) { t.note("worker %s has joined", worker) },
		Refused: func(worker, reason string) { t.note("worker %s refuses the work: %s", worker, reason) },
	}}
	if o.Cluster == "" {
		if t.server, err = jobs.Serve(jobs.ServerOptions{Dir: filepath.Join(o.Out, stateDir, "queue"), Listen: o.Listen}); err != nil {
			return nil, err
		}
		co.Server = t.server
		if url := t.server.URL(); url != "" {
			t.note("workers can join with: compress worker --cluster %s", url)
		}
	}
	if t.conn, err = jobs.Connect(j.Ctx, co); err != nil {
		return nil, err
	}
	if err := t.open(j, spec); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(j.Ctx)
	t.cancel = cancel
	if slots > 0 {
		t.wg.Go(func() { _ = t.queue.Work(ctx, slots, handler(judge)) }) // ends with ctx alone
	}
	return t, nil
}

// open makes the offer.
func (t *team) open(j *shell.Job, spec Spec) error {
	dev, err := j.Device()
	if err != nil {
		return err
	}
	id, err := identity(dev)
	if err != nil {
		return err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	offer := jobs.Offer{Name: "search-" + shell.Fingerprint(id, spec.Judge)[:16], Kind: Kind, Contract: id, Patience: 20 * time.Second}
	if t.queue, err = t.conn.Offer(j.Ctx, offer, text); err != nil {
		return err
	}
	t.stop, err = t.queue.Watch()
	return err
}

// note says something, from any goroutine.
func (t *team) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.say(format, args...)
}

// ask has tasks done by whoever takes them.
func (t *team) ask(ctx context.Context, tasks []fitness.Task) ([]fitness.Measure, error) {
	// Two tasks of one call may be the same.
	var items []jobs.Item
	known := map[string]bool{}
	for _, task := range tasks {
		if id := task.ID(); !known[id] {
			text, err := json.Marshal(task)
			if err != nil {
				return nil, err
			}
			known[id] = true
			items = append(items, jobs.Item{ID: id, Data: text})
		}
	}
	n := 0
	t.rounds++
	name := fmt.Sprintf("round %d, rung %s", t.rounds, tasks[0].Rung)
	results, err := t.queue.Do(ctx, items, func(r jobs.Result) {
		t.mu.Lock()
		defer t.mu.Unlock()
		n++
		t.done++
		t.spent += r.Seconds
		t.bars.Show(name, int64(n), int64(len(items)))
	})
	if err != nil {
		return nil, err
	}
	answers := map[string]fitness.Measure{}
	for _, r := range results {
		if r.Failure != "" {
			return nil, fmt.Errorf("worker %s: %w: %s", r.Worker, errWorker, r.Failure)
		}
		var m fitness.Measure
		if err := json.Unmarshal(r.Data, &m); err != nil {
			return nil, fmt.Errorf("worker %s: %w: %w", r.Worker, errWorker, err)
		}
		answers[r.ID] = m
	}
	out := make([]fitness.Measure, len(tasks))
	for i, task := range tasks {
		out[i] = answers[task.ID()]
	}
	return out, nil
}

// errWorker: a measurement failed where it was made.
var errWorker = errors.New("a measurement failed")

// handler does tasks with a judge.
func handler(judge *fitness.Judge) jobs.Handler {
	return func(ctx context.Context, it jobs.Item) ([]byte, error) {
		var task fitness.Task
		d := json.NewDecoder(bytes.NewReader(it.Data))
		d.DisallowUnknownFields()
		if err := d.Decode(&task); err != nil {
			return nil, fmt.Errorf("%w: %w", fitness.ErrTask, err)
		}
		m, err := judge.Measure(ctx, task)
		if err != nil {
			return nil, err
		}
		return json.Marshal(m)
	}
}

// withdraw removes the queue: everything that it held is in the reports.
func (t *team) withdraw(ctx context.Context) error { return t.queue.Withdraw(ctx) }

// close ends the workers of this process and leaves what is queued.
func (t *team) close() error {
	t.bars.End()
	if t.cancel != nil {
		t.cancel()
	}
	t.wg.Wait()
	if t.stop != nil {
		t.stop()
	}
	if t.conn != nil {
		t.conn.Close()
	}
	if t.server != nil {
		return t.server.Close()
	}
	return nil
}
