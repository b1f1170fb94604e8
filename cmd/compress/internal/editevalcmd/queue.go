package editevalcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/internal/jobs"
)

// connect reaches the queue: in this process, or in a cluster.
func (r *run) connect() (*jobs.Conn, func() error, error) {
	dir := filepath.Join(r.o.Out, editeval.StateFolder, "queue")
	if r.o.Cluster == "" {
		// What the queue of a killed run held is on the disk already, or is measured again.
		if err := os.RemoveAll(dir); err != nil {
			return nil, nil, err
		}
	}

	note := func(format string, a ...any) { r.say(fmt.Sprintf(format, a...)) }
	conn, server, err := workers.Connect(r.Job, workers.Options{Where: r.o.Where, Dir: dir}, note)
	if err != nil {
		return nil, nil, err
	}

	workers.Announce(r.o.Where, server, "workers that see the same folders", note)
	return conn, func() error {
		conn.Close()
		if server != nil {
			return errors.Join(server.Close(), os.RemoveAll(dir))
		}
		return nil
	}, nil
}

// say writes a remark while the work goes on.
func (r *run) say(text string) {
	r.team.mu.Lock()
	defer r.team.mu.Unlock()
	r.Note("%s", text)
}

// offerFile is where the folder says what its offer says.
var offerFile = filepath.Join(editeval.StateFolder, "offer")

// spec is what a worker elsewhere needs: the folders are the coordinator's, which it has to see too.
type spec struct {
	Dir      string        `json:"dir"`
	Plan     editeval.Plan `json:"plan"` // with whole paths
	Contract string        `json:"contract"`
	Data     string        `json:"data"` // hash of the records
}

// offer makes the offer anew: what is done lies in the folder.
func (r *run) offer(conn *jobs.Conn) (*jobs.Queue, error) {
	abs, err := filepath.Abs(r.dir)
	if err != nil {
		return nil, err
	}

	plan, err := absolute(r.plan)
	if err != nil {
		return nil, err
	}

	text, err := json.Marshal(spec{Dir: abs, Plan: plan, Contract: r.study.Contract, Data: r.study.Data})
	if err != nil {
		return nil, err
	}

	if err := workers.Vouch(filepath.Join(r.dir, offerFile), text); err != nil {
		return nil, err
	}

	dev, err := r.Device()
	if err != nil {
		return nil, err
	}

	id, err := workers.Identity(dev)
	if err != nil {
		return nil, err
	}

	offer := jobs.Offer{
		Name: "editeval-" + cli.Fingerprint(abs, string(text), id)[:16], Kind: Kind, Contract: id,
		Patience: 20 * time.Second,
	}
	queue, err := conn.Offer(r.Ctx, offer, text)
	if err != nil || r.o.Cluster == "" {
		return queue, err
	}

	if err := queue.Withdraw(r.Ctx); err != nil {
		return nil, err
	}

	return conn.Offer(r.Ctx, offer, text)
}

// absolute gives a plan whose paths are whole ones, for workers that run elsewhere.
func absolute(p editeval.Plan) (editeval.Plan, error) {
	var errs error
	full := func(path string) string {
		if path == "" {
			return ""
		}
		abs, err := filepath.Abs(p.Path(path))
		errs = errors.Join(errs, err)
		return abs
	}

	all := func(list []string) []string {
		var out []string
		for _, path := range list {
			out = append(out, full(path))
		}
		return out
	}

	q := p
	q.File = ""
	q.Models = nil
	q.Tasks = nil
	q.Texts = nil

	for _, m := range p.Models {
		m.Path, m.Adapter = full(m.Path), full(m.Adapter)
		q.Models = append(q.Models, m)
	}

	for _, t := range p.Tasks {
		if _, err := os.Stat(p.Path(t.Entry)); err == nil { // else it is the name of a task
			t.Entry = full(t.Entry)
		}
		q.Tasks = append(q.Tasks, t)
	}

	for _, t := range p.Texts {
		t.File = full(t.File)
		q.Texts = append(q.Texts, t)
	}

	q.Edits, q.Data, q.Stats.File = all(p.Edits), all(append(p.Data[:len(p.Data):len(p.Data)], filepath.Dir(p.File))),
		full(p.Stats.File)
	if p.Safety != nil {
		s := *p.Safety
		s.File, q.Safety = full(s.File), &s
	}

	return q, errs
}

// Serve lets a worker process do sequences of a run elsewhere. It has to see the coordinator's folders under
// the same names.
func Serve(ctx context.Context, w *workers.Worker, text []byte) (jobs.Handler, func(), error) {
	var sp spec
	if err := jobs.Decode(text, &sp); err != nil {
		return nil, nil, fmt.Errorf("%w: specification: %w", jobs.ErrRefused, err)
	}
	if err := w.Vouched(sp.Dir, offerFile, text); err != nil {
		return nil, nil, err
	}

	study, err := editeval.Open(sp.Plan, sp.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", jobs.ErrRefused, err)
	}

	if study.Data != sp.Data {
		return nil, nil, fmt.Errorf("%w: the records of edits differ from the coordinator's", jobs.ErrRefused)
	}

	study.Contract = sp.Contract
	dev, err := w.Job.Device()
	if err != nil {
		return nil, nil, err
	}

	t := &team{
		j: w.Job, plan: &sp.Plan, study: study, dir: sp.Dir, dev: dev, slots: w.Slots,
		step: func(string, int) {},
	}
	return t.handle, func() {
		if err := t.close(); err != nil {
			w.Note("%v", err)
		}
	}, ctx.Err()
}
