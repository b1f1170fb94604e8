package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
)

// Folder says what lies in a folder into which a verb writes while it works, and by which it goes on: nothing else may
// be there.
type Folder struct {
	From  string   // in messages, what it is from: "a search"
	Holds string   // what is there without --resume or --overwrite: "a search", "results"
	Names []string // of files and folders; unfinished ones of these names may be there too
	Marks []string // of these, any by which the folder is known
	State string   // hidden folder of the lock, and of what an interrupted run goes on with
	Begun bool     // State alone is worth going on with
}

// Take makes the folder, or takes an earlier one as the flags allow, and keeps other processes out of it until the lock
// is closed. resume goes on with what is there; overwrite alone removes it.
func (f Folder) Take(dir string, resume, overwrite bool) (lock *os.File, err error) {
	if err := f.check(dir, resume || overwrite); err != nil {
		return nil, fmt.Errorf("--out %s: %w", dir, err)
	}

	lock, err = Lock(filepath.Join(dir, f.State, "lock"))
	if err != nil {
		return nil, fmt.Errorf("--out %s: %w", dir, err)
	}
	if resume || !overwrite {
		return lock, nil
	}
	if err := f.empty(dir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// check refuses a folder with anything of somebody else's in it, and one that is in use already unless it may be.
func (f Folder) check(dir string, used bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	known := len(entries) == 0
	for _, e := range entries {
		name := e.Name()
		known = known || name == f.State || slices.Contains(f.Marks, name)

		own := func(of string) bool { return name == of || name == safefile.Unfinished(of) }
		switch {
		case name == f.State && !f.Begun: // of a run that was killed before it had measured anything
		case name != f.State && !slices.ContainsFunc(f.Names, own):
			return fmt.Errorf("%w: %s is not from %s; choose another folder", stage.ErrTarget, name, f.From)
		case !used:
			return fmt.Errorf("%w: it holds %s, or what an interrupted run has left (HINT: --resume continues it, "+
				"--overwrite starts over)", stage.ErrExists, f.Holds)
		}
	}

	if !known {
		return fmt.Errorf("%w: it has no %s, by which what is from %s is known; choose another folder",
			stage.ErrTarget, strings.Join(f.Marks, " or "), f.From)
	}
	return nil
}

// empty removes everything but the lock, which marks the folder, so that after a crash the rest can still be removed.
func (f Folder) empty(dir string) error {
	state, err := os.ReadDir(filepath.Join(dir, f.State))
	for _, e := range state {
		if e.Name() != "lock" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.State, e.Name())))
		}
	}

	for _, name := range f.Names {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, safefile.Unfinished(name))),
			os.RemoveAll(filepath.Join(dir, name)))
	}
	return err
}
