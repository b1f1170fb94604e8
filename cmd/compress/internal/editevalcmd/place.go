package editevalcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/internal/safefile"
)

// The files that the verb writes beside those of package editeval.
const (
	planFile = "plan.yaml"
	pageFile = "report.html"
)

// own are the names that a folder of results may hold.
var own = []string{
	editeval.ResultsFile, editeval.TimingsFile, editeval.StateFolder, planFile, pageFile, "base", "sequences",
	safefile.Unfinished(editeval.ResultsFile),
	safefile.Unfinished(editeval.TimingsFile), safefile.Unfinished(planFile), safefile.Unfinished(pageFile),
}

// place is a folder of results, locked.
type place struct {
	dir  string
	lock *os.File
}

// take makes the folder, or takes an earlier one, as the flags allow.
func take(o *Options) (*place, error) {
	entries, err := os.ReadDir(o.Out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--out: %w", err)
	}

	for _, e := range entries {
		switch {
		case !slices.Contains(own, e.Name()):
			return nil, fmt.Errorf("--out %s: %w: %s is not from editeval; choose another folder", o.Out,
				checkpoint.ErrTarget, e.Name())
		case !o.Resume && !o.Overwrite:
			return nil, fmt.Errorf("--out %s: %w: it holds results, or what an interrupted run has left (HINT: "+
				"--resume continues, --overwrite starts over)", o.Out, checkpoint.ErrExists)
		}
	}

	known := func(e fs.DirEntry) bool { return e.Name() == editeval.StateFolder || e.Name() == editeval.ResultsFile }
	if len(entries) > 0 && !slices.ContainsFunc(entries, known) {
		return nil, fmt.Errorf("--out %s: %w: it has neither %s nor %s, by which results of editeval are known; "+
			"choose another folder",
			o.Out, checkpoint.ErrTarget, editeval.StateFolder, editeval.ResultsFile)
	}

	p := &place{dir: o.Out}
	state := filepath.Join(o.Out, editeval.StateFolder)
	if p.lock, err = cli.Lock(filepath.Join(state, "lock")); err != nil {
		return nil, fmt.Errorf("--out %s: %w", o.Out, err)
	}

	if o.Overwrite && !o.Resume {
		entries, err := os.ReadDir(state)
		for _, e := range entries {
			if e.Name() != "lock" {
				err = errors.Join(err, os.RemoveAll(filepath.Join(state, e.Name())))
			}
		}

		for _, name := range own {
			if name != editeval.StateFolder {
				err = errors.Join(err, os.RemoveAll(filepath.Join(o.Out, name)))
			}
		}
		if err != nil {
			return nil, errors.Join(err, p.lock.Close())
		}
	}

	return p, nil
}

// release lets others take it. A run that has measured nothing leaves nothing.
func (p *place) release() error {
	for _, name := range own {
		if _, err := os.Stat(filepath.Join(p.dir, name)); name != editeval.StateFolder && err == nil {
			return p.lock.Close()
		}
	}

	if _, err := os.Stat(filepath.Join(p.dir, editeval.StateFolder, "sequences")); err == nil {
		return p.lock.Close()
	}
	if err := errors.Join(p.clear(), p.lock.Close()); err != nil {
		return err
	}

	_ = os.Remove(p.dir) // it stays if something else is in it
	return nil
}

// clear removes what only an interrupted run needs.
func (p *place) clear() error { return os.RemoveAll(filepath.Join(p.dir, editeval.StateFolder)) }

// hold keeps other processes away from a unit until the file is closed.
func hold(dir, id string) (*os.File, error) {
	return cli.Lock(filepath.Join(dir, editeval.StateFolder, "locks", id))
}
