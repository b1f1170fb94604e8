package editevalcmd

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/internal/safefile"
)

// The files that the verb writes beside those of package editeval.
const (
	planFile = "plan.yaml"
	pageFile = "report.html"
)

// folder is what lies in a folder of results.
var folder = cli.Folder{
	From: "editeval", Holds: "results", State: editeval.StateFolder, Begun: true,
	Names: []string{editeval.ResultsFile, editeval.TimingsFile, planFile, pageFile, "base", "sequences"},
	Marks: []string{editeval.ResultsFile},
}

// place is a folder of results, locked.
type place struct {
	dir  string
	lock *os.File
}

// take makes the folder, or takes an earlier one, as the flags allow.
func take(o *Options) (*place, error) {
	lock, err := folder.Take(o.Out, o.Resume, o.Overwrite)
	if err != nil {
		return nil, err
	}
	return &place{dir: o.Out, lock: lock}, nil
}

// release lets others take it. A run that has measured nothing leaves nothing.
func (p *place) release() error {
	for _, name := range folder.Names {
		for _, path := range []string{name, safefile.Unfinished(name)} {
			if _, err := os.Stat(filepath.Join(p.dir, path)); err == nil {
				return p.lock.Close()
			}
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
