package editevalcmd

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/scratch"
)

// Rehearsal is the report of --dry-run.
type Rehearsal struct {
	Plan      editeval.Plan        `json:"plan"`
	Records   int                  `json:"records"`
	Counts    []int                `json:"counts"`
	Remarks   []string             `json:"record_remarks,omitempty"`
	Estimates []*editeval.Estimate `json:"estimates"`         // by model
	Seconds   float64              `json:"estimated_seconds"` // about, one sequence after another
}

// rehearse reads everything that a plan names, opens its models, and estimates what it will take.
func rehearse(j *cli.Job, plan editeval.Plan) (_ any, err error) {
	dir, release, err := scratch.Folder("compress-study-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()

	study, err := editeval.Open(plan, dir)
	if err != nil {
		return nil, err
	}

	r := &Rehearsal{Plan: study.Plan, Records: len(study.Records), Counts: study.Counts, Remarks: study.Remarks}
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	for _, m := range plan.Models {
		sub, err := open(j, &plan, m, dev)
		if err != nil {
			return nil, err
		}

		e, err := study.Estimate(j.Ctx, sub.Subject)
		if err = errors.Join(err, sub.close()); err != nil {
			return nil, err
		}

		r.Estimates, r.Seconds = append(r.Estimates, e), r.Seconds+e.Total
	}

	r.print(j)
	return r, nil
}

// seconds are a time for people.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}

// print shows the plan and the estimate.
func (r *Rehearsal) print(j *cli.Job) {
	j.Printf("%d records of edits; counts %s; seeds %s\n", r.Records, spaced(r.Counts), spaced(r.Plan.Seeds))
	for _, remark := range r.Remarks {
		j.Note("%s", remark)
	}

	t := &report.Table{
		Title:   "Sequences",
		Columns: report.Columns("model", "editor", "method", "batch", "seeds", "edits", "s/edit, about|%.3g"),
	}
	for _, e := range r.Estimates {
		for k, ed := range r.Plan.Editors {
			t.Add(e.Model, ed.Name, ed.Method, batch(ed.Batch), len(r.Plan.Seeds), r.Counts[len(r.Counts)-1], e.Edit[k])
		}
	}

	j.Table(t)

	if len(r.Estimates) > 0 && len(r.Estimates[0].Tasks) > 0 {
		t := &report.Table{Title: "Tasks, at every count", Columns: report.Columns("task", "documents")}
		for i, name := range r.Estimates[0].Tasks {
			t.Add(name, r.Estimates[0].Documents[i])
		}
		j.Table(t)
	}

	for _, e := range r.Estimates {
		j.Printf("%s: %d sequences, %d edits, %d measurements of %s each, about %s", e.Model, e.Sequences, e.Edits,
			e.Checks, seconds(e.Measure), seconds(e.Total))
		if e.StatTokens > 0 {
			j.Printf(" (%s for the covariance of keys of layers %s)", seconds(e.Statistics), spaced(e.Blocks))
		}

		j.Printf("\n")

		if e.CPU > 0 {
			j.Printf("%s: %s of processor time, of %d threads %.1f processors are free\n", e.Model, seconds(e.CPU),
				e.Threads, e.Processors)
		}

		if e.Busy() {
			j.Note("%s: the machine is busy: when it is quiet, this takes about %s", e.Model,
				seconds(e.CPU/float64(e.Threads)))
		}
	}

	j.Printf("in all about %s, one sequence after another; nothing was written\n", seconds(r.Seconds))
}

// batch is a size of batches for people.
func batch(n int) string {
	if n < 0 {
		return "all"
	}
	return fmt.Sprint(n)
}

func spaced[T any](list []T) string { return strings.Trim(fmt.Sprint(list), "[]") }
