package prunecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/stage"
)

// Work is one way of pruning that is to be run.
type Work struct {
	Method, Target string // as shown
	Key            string // fingerprint of model, calibration ids and options
	// Do prunes into a folder, measures, and fills in what the run gave.
	Do func(folder string, r *Run) error
}

// Contest is a comparison that is to be run.
type Contest struct {
	Dir   string // of the reports and the journal
	Job   string // fingerprint of what all runs share
	Keep  bool   // the models
	Fresh bool   // an earlier comparison there is removed
	Dense func() (Measure, error)
	Work  []Work
	Note  func(format string, args ...any) // says what is being done
	Next  func(i int)                      // is told before a piece of work begins; nil: nobody
}

// CheckContest tells whether a folder can take the comparison of a model at source: there is nothing, or with resume
// or overwrite an earlier comparison and nothing else.
func CheckContest(dir, source string, resume, overwrite bool) error {
	if err := stage.Apart(source, dir); err != nil {
		return err
	}

	var allow func(dir string) error
	if resume || overwrite {
		allow = func(dir string) error {
			if isContest(dir) {
				return nil
			}
			return fmt.Errorf("%w: it is not that of a comparison alone (HINT: choose another --out)",
				checkpoint.ErrTarget)
		}
	}

	return stage.Vacant(dir, allow)
}

// isContest tells whether a folder is that of a comparison: nothing is there that none writes.
func isContest(dir string) bool {
	entries, err := os.ReadDir(dir)
	found := false
	for _, e := range entries {
		switch e.Name() {
		case journalName:
			found = true
		case "report.json", "report.html", modelsFolder, scratchFolder:
		default:
			return false
		}
	}

	return err == nil && found
}

// remove removes what a comparison has written, but not the folder.
func remove(dir string) error {
	var err error
	// the journal, which marks the folder, last
	for _, name := range []string{"report.json", "report.html", modelsFolder, scratchFolder, journalName} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	return err
}

// ErrOtherJob: the folder holds a comparison on other data or of another model.
var ErrOtherJob = cli.Usagef("the journal is that of another comparison")

// What is in the folder of a comparison, beside its reports.
const (
	modelsFolder  = "models"
	scratchFolder = "scratch"
	journalName   = "journal.jsonl"
)

// Run does what the journal does not have yet, one run after the other, and completes the report with the tests.
func (c *Contest) Run(ctx context.Context, r *ContestReport) error {
	if c.Fresh {
		if err := remove(c.Dir); err != nil {
			return err
		}
	}

	if err := os.MkdirAll(c.Dir, 0o777); err != nil {
		return err
	}

	path := filepath.Join(c.Dir, journalName)
	j, err := cli.OpenJournal[Run](path, Command, c.Job)
	if errors.Is(err, cli.ErrOtherJob) {
		return fmt.Errorf("%s: %w", path, ErrOtherJob)
	}

	if err != nil {
		return err
	}
	defer j.Close()

	if err := errors.Join(os.MkdirAll(filepath.Join(c.Dir, modelsFolder), 0o777),
		os.MkdirAll(filepath.Join(c.Dir, scratchFolder), 0o777)); err != nil {
		return err
	}

	dense, found := j.Done[denseKey]
	if !found {
		if dense.Measure, err = c.Dense(); err != nil {
			return err
		}

		dense.Method, dense.Key = "dense", denseKey
		if err := j.Add(denseKey, dense); err != nil {
			return err
		}
	}

	r.Dense = dense.Measure

	for i := range c.Work {
		if err := c.step(ctx, i, j, r); err != nil {
			return fmt.Errorf("%s, %s: %w", c.Work[i].Target, c.Work[i].Method, err)
		}
	}

	if !c.Keep {
		os.Remove(filepath.Join(c.Dir, modelsFolder)) // it stays if an earlier comparison kept some
	}

	r.judge()
	return os.RemoveAll(filepath.Join(c.Dir, scratchFolder))
}

// Scratch is the path of a file that the runs of a comparison in a folder share. It is there from the first run
// that writes it until the comparison is complete.
func Scratch(dir, name string) string { return filepath.Join(dir, scratchFolder, name) }

// denseKey is the place of the dense model in the journal.
const denseKey = "dense"

// errChanged: a kept model is not what the run wrote.
var errChanged = errors.New("it is not as the run wrote it")

// intact compares a kept model with the checksums of its files. Runs of earlier versions have none.
func intact(ctx context.Context, folder string, done *Run) error {
	if _, err := os.Stat(folder); err != nil || done.Files == nil {
		return err
	}

	now, err := checksums(ctx, folder)
	if err != nil {
		return err
	}

	for _, name := range slices.Sorted(maps.Keys(done.Files)) {
		if now[name] != done.Files[name] {
			return fmt.Errorf("%s: %w", filepath.Join(folder, name), errChanged)
		}
	}

	return nil
}

// checksums are those of the files in a folder, by their paths in it.
func checksums(ctx context.Context, folder string) (map[string]string, error) {
	sums := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err == nil {
			sums[name], err = cli.FileHash(ctx, path)
		}
		return err
	})

	return sums, err
}

// step takes a run from the journal, or runs it.
func (c *Contest) step(ctx context.Context, i int, j *cli.Journal[Run], r *ContestReport) error {
	w := c.Work[i]
	folder := filepath.Join(c.Dir, modelsFolder, folderName(w))
	if done, ok := j.Done[w.Key]; ok {
		var err error
		if c.Keep {
			err = intact(ctx, folder, &done)
		}

		switch {
		case err == nil:
			done.Method, done.Target = w.Method, w.Target
			r.Runs = append(r.Runs, done)
			r.Resumed++
			return nil
		case errors.Is(err, errChanged):
			c.Note("%v: it is made again", err)
			if err := os.RemoveAll(folder); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}

	if c.Next != nil {
		c.Next(i)
	}

	c.Note("run %d of %d begins: %s, %s", i+1, len(c.Work), w.Target, w.Method)
	done := Run{Method: w.Method, Target: w.Target, Key: w.Key}
	if err := w.Do(folder, &done); err != nil {
		return err
	}

	if c.Keep {
		done.Model = folder
		var err error
		if done.Files, err = checksums(ctx, folder); err != nil {
			return err
		}
	} else if err := os.RemoveAll(folder); err != nil {
		return err
	}

	r.Runs = append(r.Runs, done)
	return j.Add(w.Key, done)
}
