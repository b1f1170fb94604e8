// Package democmd tells the program's whole story on the models that come with it: it runs verbs, each as its
// command line says, and puts their reports on one page.
package democmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// Options are the flags of demo.
type Options struct {
	Out                      string
	Model, Data              string // a model of the user's, and its text; "": the models and texts that are shipped
	Quick, Resume, Overwrite bool
	// Verb runs a command line of the program and returns its exit code.
	Verb func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// command names the verb in reports and journals.
const command = "compress demo"

// demo is one run.
type demo struct {
	job     *cli.Job
	o       Options
	journal *cli.Journal[done]
	about   string // what identifies the user's model and texts
	began   time.Time
	spent   float64 // weight of the steps that this run has done
	left    float64 // weight of the steps that are not done
}

// done is a finished step in the journal.
type done struct {
	Command string  `json:"command"`
	Seconds float64 `json:"seconds"`
}

// Run writes the demo to a folder: what every verb writes, report.json and report.html.
func Run(j *cli.Job, o Options) (any, error) {
	if o.Data != "" && o.Model == "" {
		return nil, cli.Usagef("--data is the text for a model of yours (HINT: pass --model DIR too)")
	}

	stages := story(o.Out, j.Common(), o.Quick)
	if o.Model != "" {
		stages = ownStory(o, j.Common())
	}
	d := &demo{job: j, o: o, began: time.Now()}
	if o.Model != "" {
		if err := d.usable(); err != nil { // before a folder is made, or an earlier demo goes
			return nil, err
		}
	}
	if err := d.take(stages); err != nil {
		return nil, err
	}
	defer d.journal.Close()

	for _, s := range stages {
		d.left += s.weight(d.isDone)
	}

	if o.Model != "" {
		d.foresee()
	}

	times := make([]Stage, len(stages))
	for i, s := range stages {
		if err := d.stage(i, s, len(stages), &times[i]); err != nil {
			return nil, err
		}
	}

	r, err := d.result(times)
	if err != nil {
		return nil, err
	}
	if err := d.write(r, stages); err != nil {
		return nil, err
	}

	j.Printf("%s", r.summary())
	j.Printf("\nEverything is in %s; the page to open is %s. Try next:\n", o.Out, filepath.Join(o.Out, pageFile))
	for _, next := range r.next(o.Out) {
		j.Printf("  %s\n", cli.AsRun(next))
	}

	return r, nil
}

// outcome is what a demo ends with.
type outcome interface {
	page(stages []stage, seed uint64) *report.Page
	summary() string
	next(out string) []string
}

// result reads what the steps wrote.
func (d *demo) result(times []Stage) (outcome, error) {
	if d.o.Model == "" {
		r, err := read(d.o.Out, d.o.Quick)
		if err == nil {
			r.Stages = times
		}
		return r, err
	}

	r, err := readOwn(d.o)
	if err == nil {
		r.Stages = times
	}
	return r, err
}

// The costs of the steps of a model's demo are seconds for one of so many bytes of 4-byte weights on two cores.
const usualBytes = 540e6

// foresee says about how long a demo of the user's model takes, before anything was measured: by the size of its files.
func (d *demo) foresee() {
	entries, err := os.ReadDir(d.o.Model)
	if err != nil {
		return // a name of the hub, or what the first step refuses in better words
	}

	var bytes int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".safetensors") {
			bytes += info.Size()
		}
	}
	if bytes > 0 && d.left > 0 {
		left := time.Duration(d.left * float64(bytes) / usualBytes * float64(time.Second))
		d.job.Note("%s of weights: about %s on two cores", mega(bytes), max(left, time.Minute).Round(time.Minute))
	}
}

// stage runs the steps of a stage that are not done yet.
func (d *demo) stage(i int, s stage, n int, t *Stage) error {
	t.Name = s.name
	if s.weight(d.isDone) > 0 {
		d.job.Note("%d of %d: %s%s", i+1, n, s.title, d.eta())
	}

	for _, p := range s.steps {
		if d.isDone(p) {
			t.Seconds += d.journal.Done[p.key()].Seconds
			continue
		}

		d.job.Note("  $ %s", p.line())
		start := time.Now()
		if err := d.run(p); err != nil {
			return err
		}

		seconds := time.Since(start).Seconds()
		if err := d.journal.Add(p.key(), done{p.line(), seconds}); err != nil {
			return err
		}

		t.Seconds += seconds
		d.spent, d.left = d.spent+p.cost, d.left-p.cost
	}

	return nil
}

// eta says how long the rest takes, once something has been measured.
func (d *demo) eta() string {
	if d.spent == 0 {
		return ""
	}
	left := time.Duration(d.left / d.spent * float64(time.Since(d.began)))
	return fmt.Sprintf(" (about %s left)", max(left, time.Second).Round(time.Second))
}

// errStep is a verb that failed, in its own words.
var errStep = errors.New("a step of the demo failed")

// run runs a step. What an interrupted run has left of it is removed first.
func (d *demo) run(p step) error {
	for _, out := range p.out {
		if err := os.RemoveAll(out); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(out), 0o777); err != nil {
			return err
		}
	}

	var said, wrong bytes.Buffer
	code := d.o.Verb(d.job.Ctx, p.args, &said, &wrong)
	if err := d.job.Ctx.Err(); err != nil {
		return err
	}
	if code == 0 {
		return nil
	}

	lines := strings.Split(strings.TrimSpace(wrong.String()), "\n")
	return fmt.Errorf("%w: %s: %s (HINT: --resume goes on from here)", errStep, p.line(), lines[len(lines)-1])
}

// isDone reports whether an earlier run has done a step and its outputs are there.
func (d *demo) isDone(p step) bool {
	if _, ok := d.journal.Done[p.key()]; !ok {
		return false
	}
	return !slices.ContainsFunc(p.out, func(out string) bool {
		_, err := os.Lstat(out)
		return err != nil
	})
}

// fingerprint is of what all steps share; what differs between them is in their keys.
func (d *demo) fingerprint() string {
	if d.o.Model != "" {
		return cli.Fingerprint(compress.Version(), d.job.Seed, d.o.Quick, d.about)
	}
	return cli.Fingerprint(compress.Version(), d.job.Seed, d.o.Quick)
}
