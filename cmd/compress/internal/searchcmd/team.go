package searchcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
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

// team is the queue of a search.
type team struct {
	*workers.Crew
	judge  *fitness.Judge
	rounds int // of measurements, each on one rung
}

// assemble opens the queue and starts the workers of this process.
func assemble(j *cli.Job, o *Options, judge *fitness.Judge, spec Spec, slots int) (*team, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	id, err := workers.Identity(dev)
	if err != nil {
		return nil, err
	}

	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}

	c, err := workers.Assemble(j, workers.Options{
		Where: o.Where, Dir: filepath.Join(o.Out, stateDir, "queue"), Slots: slots,
		Kind: Kind, Name: "search-" + cli.Fingerprint(id, spec.Judge)[:16], Spec: text,
		Check: func(it jobs.Item, data []byte) error { _, err := answer(judge, it.Data, data); return err },
	}, handler(judge))
	if err != nil {
		return nil, err
	}

	return &team{Crew: c, judge: judge}, nil
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

	t.rounds++
	results, err := t.Do(ctx, fmt.Sprintf("round %d, rung %s", t.rounds, tasks[0].Rung), items, nil)
	if err != nil {
		return nil, err
	}

	answers := map[string]fitness.Measure{}
	for i, r := range results {
		m, err := answer(t.judge, items[i].Data, r.Data)
		if err != nil {
			return nil, fmt.Errorf("worker %s: %w: %w", r.Worker, workers.ErrWork, err)
		}
		answers[r.ID] = m
	}

	out := make([]fitness.Measure, len(tasks))
	for i, task := range tasks {
		out[i] = answers[task.ID()]
	}

	return out, nil
}

// answer reads what somebody says that a task gave: it has to be an answer to that task.
func answer(judge *fitness.Judge, item, data []byte) (m fitness.Measure, err error) {
	var task fitness.Task
	if err := jobs.Decode(item, &task); err != nil {
		return m, err
	}
	if err := jobs.Decode(data, &m); err != nil {
		return m, err
	}
	m.Rejected = jobs.Plain(m.Rejected, maxRejected)
	return m, judge.Answers(task, m)
}

// maxFormula bounds the text of a metric: no search makes a larger one.
const maxFormula = 64 << 10

// maxRejected bounds why a metric is said to be unusable.
const maxRejected = 500

// handler does tasks with a judge.
func handler(judge *fitness.Judge) jobs.Handler {
	return func(ctx context.Context, it jobs.Item) ([]byte, error) {
		var task fitness.Task
		d := json.NewDecoder(bytes.NewReader(it.Data))
		d.DisallowUnknownFields()
		if err := d.Decode(&task); err != nil {
			return nil, fmt.Errorf("%w: %w", fitness.ErrTask, err)
		}
		if task.ID() != it.ID {
			return nil, fmt.Errorf("%w: it is not the one of its name", fitness.ErrTask)
		}
		if strings.HasPrefix(task.Metric, prune.TreePrefix) || len(task.Metric) > maxFormula {
			return nil, fmt.Errorf("%w: the metric is neither a known one nor a formula", fitness.ErrTask)
		}

		m, err := judge.Measure(ctx, task)
		if err != nil {
			return nil, err
		}

		return json.Marshal(m)
	}
}
