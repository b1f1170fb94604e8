package editeval

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/stage"
)

// measure measures the model as it is after a number of edits.
func (q *sequence) measure(ctx context.Context, count int) (*Checkpoint, error) {
	j, err := q.e.Judge(ctx, q.x, q.records[:count])
	if err != nil {
		return nil, err
	}

	c := &Checkpoint{Edits: count, Metrics: j.Stats, Score: j.Score, NonFinite: j.NonFinite, Records: j.Records}
	if c.Drift, err = q.e.Drift(ctx, q.base); err != nil {
		return nil, err
	}

	c.Drift.KL = min(c.Drift.KL, math.MaxFloat32) // a distribution that is no longer one
	if c.Norms, err = q.e.Norms(); err != nil {
		return nil, err
	}
	if c.Fluency, err = q.fluency(ctx); err != nil {
		return nil, err
	}

	c.Audits, c.Signs, err = q.s.evaluate(ctx, q.sub, filepath.Join(q.dir, fmt.Sprintf("edits-%d", count)))
	return c, err
}

// fluency is the mean n-gram entropy of what the model makes of some records' prompts; nil if the plan wants none.
func (q *sequence) fluency(ctx context.Context) (*float64, error) {
	var sum float64
	n := 0
	for i := range min(q.s.Plan.Fluency, q.state.Probes) {
		texts, err := q.e.Texts(ctx, q.x, &q.records[i], q.u.Seed)
		if err != nil {
			return nil, err
		}

		for _, t := range texts {
			sum += edit.Fluency(t)
			n++
		}
	}

	if n == 0 {
		return nil, nil
	}

	sum /= float64(n)
	return &sum, nil
}

// evaluate runs all tasks on the model as it is, each into a folder of its own.
func (s *Study) evaluate(ctx context.Context, sub *Subject,
	dir string,
) (map[string]*task.Audit, map[string][]string, error) {
	audits, signs := map[string]*task.Audit{}, map[string][]string{}
	for _, t := range s.tasks {
		r, err := s.runTask(ctx, sub, t, filepath.Join(dir, t.name))
		if err != nil {
			return nil, nil, err
		}

		for name, a := range r.Audits {
			audits[name] = a
			if list := a.Signs(); len(list) > 0 {
				signs[name] = list
			}
		}
	}

	return audits, signs, nil
}

// runTask writes results and samples, without what differs from run to run.
func (s *Study) runTask(ctx context.Context, sub *Subject, t entry, dir string) (*task.Results, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}

	out := &sampleFiles{dir: dir}
	o := s.options(t.Task)
	o.Router = sub.Router
	o.Sample = out.sample
	o.Identity = sub.Identity
	r, err := task.Run(ctx, sub.Model, sub.Tokenizer, t.suite, o)
	if err = errors.Join(err, out.end()); err != nil {
		return nil, fmt.Errorf("task %s: %w", t.name, err)
	}

	r.Date = 0
	r.Start = 0
	r.End = 0
	r.Seconds = "0"
	r.Config.Model = sub.Name
	r.ModelName = sub.Name
	r.ModelNameClean = sub.Name // its folder may have another name elsewhere

	for _, rows := range []map[string]map[string]any{r.Results, r.Groups} {
		for _, row := range rows {
			for k, v := range row {
				if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
					row[k] = fmt.Sprint(f)
				}
			}
		}
	}

	return r, writeJSON(filepath.Join(dir, ResultsFile), r)
}

// sampleFiles takes the samples of tasks, one task after another. A file is there once its task is done.
type sampleFiles struct {
	dir  string
	task string // whose lines are in text; "" for none
	text bytes.Buffer
}

func (o *sampleFiles) sample(name string, line []byte) error {
	if name != o.task {
		if err := o.end(); err != nil {
			return err
		}
		o.task = name
	}
	_, err := o.text.Write(line)
	return err
}

func (o *sampleFiles) end() error {
	if o.task == "" {
		return nil
	}
	err := writeFile(filepath.Join(o.dir, "samples_"+o.task+".jsonl"), o.text.Bytes())
	o.task = ""
	o.text.Reset()
	return err
}

// Base is what was measured on an unedited model.
type Base struct {
	Job     string                     `json:"job"`
	Common  string                     `json:"tasks_job"` // the same without the records: what the tasks depend on
	Records map[int]map[string]float64 `json:"records"`   // by record
	Audits  map[string]*task.Audit     `json:"audits,omitempty"`
	Signs   map[string][]string        `json:"signs,omitempty"`
}

// Base measures the unedited model, unless that is done.
func (s *Study) Base(ctx context.Context, sub *Subject) error {
	folder := filepath.Join(baseFolder, sub.Name)
	dir := filepath.Join(s.dir, folder)
	common, err := s.common(sub)
	if err != nil {
		return err
	}

	// Two identities: records that are added need a new judgement, but not the benchmarks again.
	used := s.used()
	job, err := stage.Fingerprint(common, used)
	if err != nil {
		return err
	}

	var last Base
	finished := s.finished(folder, editsFile, &last)
	if finished && last.Job == job {
		return nil
	}

	b := &Base{Job: job, Common: common, Records: map[int]map[string]float64{}}

	// Whatever was measured under other settings must not stand beside new figures.
	if !finished || last.Common != common {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		last = Base{}
	}

	e, _, err := s.editing(sub, 0, 0)
	if err != nil {
		return err
	}
	defer e.Close()

	records := make([]edit.Record, len(used))
	for i, k := range used {
		records[i] = s.Records[k]
	}

	j, err := e.Judge(ctx, &edit.Encoder{
		Tokenizer: sub.Tokenizer, Templates: sub.hp[0].Templates,
		Positions: sub.Model.Config().MaxPositions,
	}, records)
	if err != nil {
		return err
	}

	for i, k := range used {
		b.Records[k] = j.Records[i]
	}

	b.Audits, b.Signs = last.Audits, last.Signs
	if last.Common != common {
		if b.Audits, b.Signs, err = s.evaluate(ctx, sub, dir); err != nil {
			return err
		}
	}

	return s.seal(folder, editsFile, b)
}

// used are the records that any sequence edits.
func (s *Study) used() []int {
	var list []int
	for _, seed := range s.Plan.Seeds {
		list = append(list, order(len(s.Records), seed)[:s.Counts[len(s.Counts)-1]]...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
