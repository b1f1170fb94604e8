package runcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/safefile"
)

// Names in the folder of a run.
const (
	stateFolder = ".run"
	planFile    = "plan.yaml"
	reportFile  = "report.json"
	hashesFile  = "hashes.json"
	sessionFile = "session.json"
)

// reserved are names that no job may write.
var reserved = []string{planFile, reportFile}

func logName(job string) string    { return job + ".log" }
func reportName(job string) string { return job + ".report.json" }
func recipeName(job string) string { return job + ".recipe.yaml" }

// record is what is known of a job. It is written before its program starts and when that is done.
type record struct {
	Job     string            `json:"job"`
	Key     string            `json:"key"`
	Done    bool              `json:"done"`
	Seconds float64           `json:"seconds"` // of the last run that was done
	Files   []string          `json:"files"`   // names in the folder that are the job's
	Outputs map[string]string `json:"outputs"` // content of the outputs, by name
}

const maxRecord = 1 << 20

func recordFile(dir, job string) string { return filepath.Join(dir, stateFolder, job+".json") }

// readRecord reads what is known of a job; nil if nothing is. A damaged record counts as none that is done.
func readRecord(dir, job string) *record {
	text, err := safefile.ReadFile(recordFile(dir, job), maxRecord)
	if err != nil {
		return nil
	}
	r := &record{}
	if json.Unmarshal(text, r) != nil || r.Job != job {
		return nil
	}
	return r
}

func (r *record) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return cli.WriteFile(recordFile(dir, r.Job), append(text, '\n'))
}

// place is the folder of a run, locked.
type place struct {
	dir  string
	lock *os.File
}

// take makes the folder, or takes that of an earlier run. Anything else in its place is refused.
func take(dir string, overwrite bool) (*place, error) {
	state := filepath.Join(dir, stateFolder)
	if !isRun(state) {
		if err := checkpoint.Vacant(dir, nil); err != nil {
			return nil, fmt.Errorf("%w; it is not from run", err)
		}
	}

	if err := os.MkdirAll(state, 0o777); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}

	lock, err := cli.Lock(filepath.Join(state, "lock"))
	if err != nil {
		return nil, fmt.Errorf("--out %s: %w", dir, err)
	}

	p := &place{dir: dir, lock: lock}
	if overwrite {
		if err := p.empty(); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
	}

	return p, nil
}

// isRun reports whether a state folder is that of a run, which makes its lock first, and may have been killed before.
func isRun(state string) bool {
	entries, err := os.ReadDir(state)
	return err == nil &&
		(len(entries) == 0 || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "lock" }))
}

// lockEvery is how often a lock is asked for that another process still has.
const lockEvery = 50 * time.Millisecond

// hold waits for a job's lock. Its program inherits it, so that a job whose runner was killed is not begun
// again while its program still ends.
func hold(ctx context.Context, dir, job string) (*os.File, error) {
	path := filepath.Join(dir, stateFolder, job+".lock")
	f, err := cli.Lock(path)
	for errors.Is(err, cli.ErrBusy) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockEvery):
			f, err = cli.Lock(path)
		}
	}

	return f, err
}

// release lets others take the folder. One in which no job was begun is removed, unless there is more in it,
// which a later run has to know as its own.
func (p *place) release() error {
	defer p.lock.Close()

	if len(p.records()) > 0 {
		return nil
	}
	if err := remove(p.dir, planFile); err != nil {
		return err
	}
	if entries, err := os.ReadDir(p.dir); err != nil || len(entries) > 1 {
		return err
	}
	if err := os.RemoveAll(filepath.Join(p.dir, stateFolder)); err != nil {
		return err
	}

	return os.Remove(p.dir)
}

// records lists what is known of all jobs, of earlier plans too.
func (p *place) records() (list []*record) {
	entries, _ := os.ReadDir(filepath.Join(p.dir, stateFolder))
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && e.Name() != hashesFile && e.Name() != sessionFile {
			if r := readRecord(p.dir, name); r != nil {
				list = append(list, r)
			}
		}
	}
	return list
}

// empty removes everything that earlier runs wrote.
func (p *place) empty() error {
	var errs error
	for _, r := range p.records() {
		errs = errors.Join(errs, sweep(p.dir, r.Files), remove(p.dir, logName(r.Job), recipeName(r.Job)))
		errs = errors.Join(errs, os.Remove(recordFile(p.dir, r.Job)))
	}
	return errors.Join(errs, remove(p.dir, reserved...))
}

// remove removes names in a folder; no link out of it is followed.
func remove(dir string, names ...string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()

	var errs error
	for _, n := range names {
		if n != "" {
			errs = errors.Join(errs, root.RemoveAll(n))
		}
	}

	return errs
}

// leftover is the form of the names that unfinished work has beside NAME: .NAME.ENDING, NAME.partial, and those
// of files that were about to be renamed.
var leftover = regexp.MustCompile(`^\.{1,2}(.+?)(?:(?:\.(?:` + strings.Join(hidden, "|") + `))+|[0-9]+)$`)

// leftovers lists what unfinished work has left of outputs.
func leftovers(dir string, names []string) (list []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		m := leftover.FindStringSubmatch(e.Name())
		if m != nil && slices.Contains(names, m[1]) ||
			slices.ContainsFunc(names, func(n string) bool { return e.Name() == n+".partial" }) {
			list = append(list, e.Name())
		}
	}
	return list
}

// sweep removes outputs and what is left of them.
func sweep(dir string, names []string) error {
	return remove(dir, append(slices.Clone(names), leftovers(dir, names)...)...)
}

// contents are the identities of a job's outputs.
func contents(ctx context.Context, h *hasher, dir string, names []string) (map[string]string, error) {
	out := map[string]string{}
	for _, n := range names {
		id, err := h.identity(ctx, filepath.Join(dir, n), true)
		if err != nil {
			return nil, err
		}
		out[n] = id
	}
	return out, nil
}
