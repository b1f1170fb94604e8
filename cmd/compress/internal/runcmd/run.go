// Package runcmd runs the verb run: a plan of jobs, each a verb of this program, that need each other's
// outputs. It settles the plan, checks every command line before any work, has the jobs done by child processes
// over a queue, and keeps what a later run needs to leave out what has not changed and to continue what was
// interrupted.
package runcmd

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
)

// Options are the flags of the verb.
type Options struct {
	Out  string
	Jobs []string // to run, with what they need; empty: all
	Vars []string // NAME=TEXT, in the place of the plan's
	workers.Where
	DryRun    bool
	KeepGoing bool
	Resume    bool // which is what happens anyway
	Overwrite bool
	Verbs     func(a *cli.App) *cobra.Command // the command table

	program  program // in the place of child processes, for tests
	straight bool    // without a queue, for tests
}

// ErrFailed: a job failed.
var ErrFailed = errors.New("failed")

func (o *Options) validate() error {
	switch {
	case o.Resume && o.Overwrite:
		return cli.Usagef("--resume and --overwrite exclude each other")
	case o.Out == "" && !o.DryRun:
		return cli.Usagef("give --out DIR, or --dry-run")
	}
	return o.Where.Validate()
}

// given are the variables of the command line.
func (o *Options) given() (map[string]string, error) {
	vars := map[string]string{}
	for _, v := range o.Vars {
		name, text, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, cli.Usagef("--var %q: want NAME=TEXT", v)
		}
		vars[name] = text
	}
	return vars, nil
}

// Run carries out a plan.
func Run(j *cli.Job, file string, o Options) (_ any, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}

	text, err := readPlan(file)
	if err != nil {
		return nil, err
	}

	r := &run{Job: j, o: &o, file: file, dir: filepath.Clean(o.Out), version: compress.Version()}
	if o.Out == "" {
		r.dir = "DIR"
	}
	if err := r.settle(text); err != nil {
		return nil, err
	}
	if o.DryRun {
		return r.rehearse()
	}

	p, err := take(r.dir, o.Overwrite)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.release()) }()

	r.hashes = newHasher(filepath.Join(r.dir, stateFolder, hashesFile), absolute(r.dir))
	defer func() { err = errors.Join(err, r.keepHashes()) }()

	if err := r.begin(p, text); err != nil {
		return nil, err
	}
	if err := r.work(); err != nil {
		return nil, err
	}

	return r.finish(p)
}

// run is one run of the verb.
type run struct {
	*cli.Job
	o       *Options
	file    string // of the plan
	dir     string
	version string
	jobs    []*job // in order
	hashes  *hasher
	say     func(format string, args ...any)
	hand    func(c call) (*outcome, error) // has a job done, from any goroutine
	limit   int                            // jobs that are handed over at the same time
	rows    map[*job]*Row
	known   map[string]float64 // seconds that jobs took when they were last done
}

// settle reads the plan and checks it.
func (r *run) settle(text []byte) error {
	vars, err := r.o.given()
	if err != nil {
		return err
	}

	b, err := build(r.file, text, r.o.Verbs, vars)
	if err != nil {
		return err
	}

	if r.jobs, err = pick(b.jobs, r.o.Jobs); err != nil {
		return err
	}
	for _, j := range r.jobs {
		j.lend(r.Common(), b.root)
	}

	return b.inspect(r.jobs, r.dir)
}

// lend gives a job the run's own --device and --seed, where it does not set them. flags are pairs of a flag and
// its value.
func (j *job) lend(flags []string, root *cobra.Command) {
	c, _, err := root.Find(strings.Fields(j.verb))
	if err != nil {
		return
	}

	words := len(strings.Fields(j.verb))
	for i := 0; i+1 < len(flags); i += 2 {
		name := strings.TrimPrefix(flags[i], "--")
		if name != "threads" && c.Flags().Lookup(name) != nil && !j.flags[name] {
			j.call = slices.Insert(j.call, words, flags[i]+"="+flags[i+1])
			j.flags[name] = true
		}
	}
}

// begin writes what the jobs read, and notes what earlier runs say.
func (r *run) begin(p *place, text []byte) error {
	r.rows, r.known = map[*job]*Row{}, map[string]float64{}
	present := map[string]bool{}
	for _, j := range r.jobs {
		present[j.name] = true
		r.rows[j] = r.row(j)
	}

	var old []string
	for _, rec := range p.records() {
		if r.known[rec.Job] = rec.Seconds; !present[rec.Job] && len(r.o.Jobs) == 0 {
			old = append(old, rec.Job)
		}
	}

	if len(old) > 0 {
		r.Remark("%s still holds jobs that the plan no longer has: %s", r.dir, strings.Join(old, ", "))
	}

	return cli.WriteFile(filepath.Join(r.dir, planFile), text)
}

func (r *run) keepHashes() error {
	if missing(filepath.Join(r.dir, stateFolder)) {
		return nil
	}
	return r.hashes.save(filepath.Join(r.dir, stateFolder, hashesFile))
}

// finish writes the report and says what failed.
func (r *run) finish(p *place) (any, error) {
	report := r.report()
	text, err := r.Record(report)
	if err != nil {
		return nil, err
	}

	err = cli.WriteFile(filepath.Join(r.dir, reportFile), text)
	r.show(report)

	var failed []string
	for _, row := range report.Jobs {
		if row.State == stateFailed {
			failed = append(failed, row.Name+": "+row.Error)
		}
	}
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%d of %d jobs %w: %s (HINT: %s has what it printed; the same command goes on from here)",
			len(failed), len(report.Jobs), ErrFailed, strings.Join(failed, "; "), filepath.Join(r.dir, "JOB.log"))
	}

	return report, err
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	return abs
}
