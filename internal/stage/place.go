package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/internal/system"
)

// suffix ends the hidden name of every folder in the making. All verbs share it, so that the lock of one keeps all
// others from the same output.
const suffix = ".partial"

// Rule says what, if anything, speaks against replacing the folder dir.
type Rule func(dir string) error

// Place is where an output folder is made: a hidden sibling of its final name, which it gets when it is complete. It
// is locked, so that nobody else is at work on the same output.
type Place struct {
	Dir   string // where to write
	final string
	rule  Rule
	lock  *system.Folder
}

// Hidden is the name of the folder in which the output at final grows.
func Hidden(final string) string {
	final = filepath.Clean(final)
	return filepath.Join(filepath.Dir(final), "."+filepath.Base(final)+suffix)
}

// Claim locks the place of an output. What an interrupted run left there stays; see [Vacant] for what may be at the
// final name, which is not touched before [Place.Publish]. The error wraps [ErrBusy] while another process writes the
// same output.
func Claim(out string, rule Rule) (*Place, error) {
	final, err := filepath.Abs(out)
	if err != nil {
		return nil, err
	}

	final = safefile.Place(final)
	if err := Vacant(final, rule); err != nil {
		return nil, err
	}

	p := &Place{Dir: Hidden(final), final: final, rule: rule}
	if p.lock, err = Lock(p.Dir); err != nil {
		return nil, err
	}

	return p, nil
}

// Begin claims a place and empties it. What an interrupted run left goes; other things under that name are refused,
// see [scratch.Leftover] for how they are told apart: own are patterns of files that the caller writes besides weights
// and configurations.
func Begin(out string, rule Rule, own ...string) (*Place, error) {
	p, err := Claim(out, rule)
	if err != nil {
		return nil, err
	}

	if err := p.Ours(own...); err != nil {
		return nil, errors.Join(err, p.Release())
	}

	left, err := os.ReadDir(p.Dir)
	for _, e := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.Dir, e.Name())))
	}
	if err != nil {
		return nil, errors.Join(err, p.Release())
	}

	return p, nil
}

// Ours refuses a hidden folder that no run of this program has left, whatever the verb; own are patterns of files that
// the caller writes, as for [Begin].
func (p *Place) Ours(own ...string) error {
	return scratch.Leftover(p.Dir, append(own, journalName, "*.new", "tokenizer*.json")...)
}

// Write lets fill make the files of a new folder, which appears under its name when it is complete, or not at all.
func Write(out string, rule Rule, fill func(dir string) error) error {
	p, err := Begin(out, rule)
	if err != nil {
		return err
	}
	if err := fill(p.Dir); err != nil {
		return errors.Join(err, p.Abandon())
	}
	return p.Publish()
}

// Lock makes a folder, or takes the one that an interrupted run left, and locks it until the file is closed.
func Lock(dir string) (*system.Folder, error) {
	for {
		if err := os.Mkdir(dir, 0o777); errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return nil, err
			}
		} else if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}

		if st, err := os.Lstat(dir); err == nil && !st.IsDir() {
			return nil, fmt.Errorf("%s: not a folder of its own: %w (HINT: remove it)", dir, ErrTarget)
		}

		f, err := lockThere(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
}

// LockFile makes a file and the folders above it, or takes the file that is there, and locks it until it is closed. The
// error wraps [ErrBusy] while another process has it.
func LockFile(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}

	f, err := system.OpenFile(path, os.O_CREATE|os.O_RDWR|system.NoFollow, 0o666)
	if err != nil {
		return nil, err
	}
	if err := held(system.TryLock(f)); err != nil {
		return nil, errors.Join(err, f.Close())
	}

	return f, nil
}

// held is the error of a lock that somebody else has. On file systems without locks nobody is kept out: there, too,
// most have the place for themselves.
func held(err error) error {
	if errors.Is(err, system.ErrLocked) {
		return ErrBusy
	}
	return nil
}

// lockThere locks a folder. The error wraps fs.ErrNotExist where the folder vanished meanwhile, which the end of
// another run does.
func lockThere(dir string) (*system.Folder, error) {
	f, err := system.OpenFolder(dir)
	if err != nil {
		return nil, err
	}

	err = held(f.TryLock())
	mine, errMine := f.Stat()
	now, errNow := os.Lstat(dir)
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %s is locked", err, dir)
	case errMine != nil || errNow != nil || !os.SameFile(mine, now):
		err = fmt.Errorf("%s: %w", dir, fs.ErrNotExist)
	default:
		return &f, nil // also on file systems without locks
	}

	return nil, errors.Join(err, f.Close())
}

// Vacant returns nil if an output folder can be written at path: there is nothing, or an empty folder, or one against
// which the rule has nothing. Without a rule nothing is replaced. The errors wrap [ErrExists] or [ErrTarget].
func Vacant(path string, rule Rule) error {
	switch entries, err := os.ReadDir(path); {
	case errors.Is(err, fs.ErrNotExist) && isLink(path):
		return fmt.Errorf("%s: %w: there is a link to nothing", path, ErrTarget)
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case system.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s: %w: there is a file", path, ErrTarget)
	case err != nil:
		return err
	case rule == nil:
		return fmt.Errorf("%s: %w and is not empty", path, ErrExists)
	}

	if err := rule(path); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	return nil
}

func isLink(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode()&fs.ModeSymlink != 0
}

// Publish gives the folder its final name, if that is still free or may be replaced, and ends the claim.
func (p *Place) Publish() error {
	defer p.Release()

	return p.publish()
}

// publish is [Place.Publish] without its end, for those who may try again after an error.
func (p *Place) publish() error {
	// First the names in it: a folder that a crash leaves under its final name is whole.
	if err := errors.Join(safefile.SyncFolder(p.Dir), Vacant(p.final, p.rule)); err != nil {
		return err
	}

	// The old folder gets the hidden name for a moment, in which nobody may take it for an unfinished output.
	if old, err := lockThere(p.final); err == nil {
		defer old.Close()
	}
	if err := exchange(p.Dir, p.final); err != nil {
		return err
	}

	return errors.Join(safefile.SyncFolder(filepath.Dir(p.final)), os.RemoveAll(p.Dir))
}

// Release ends the claim and leaves what was written for a later run.
func (p *Place) Release() error {
	if p.lock == nil {
		return nil
	}

	err := p.lock.Close()
	p.lock = nil
	return err
}

// Abandon ends the claim and removes what was written. After a [Place.Release] it does nothing: the place may be
// another run's by then.
func (p *Place) Abandon() error {
	if p.lock == nil {
		return nil
	}
	return errors.Join(os.RemoveAll(p.Dir), p.Release())
}

// exchangeByTwo exchanges in two renames: a crash between them leaves the old folder under a hidden name.
func exchangeByTwo(dir, final string) error {
	old := dir + ".old"
	if err := system.Rename(final, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := system.Rename(dir, final); err != nil {
		return errors.Join(err, system.Rename(old, final))
	}
	if err := system.Rename(old, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	return nil
}

// Resumable reports whether it makes sense to keep what an error has cut short, since a later run with the same inputs
// may get further: it was interrupted, or the disk was full or failed.
func Resumable(ctx context.Context, err error) bool {
	return ctx.Err() != nil || system.Failing(err)
}
