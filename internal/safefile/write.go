package safefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/system"
)

// newSuffix ends the hidden name under which a file is written.
const newSuffix = ".new"

// Unfinished is the name under which [WriteFile] writes the file at path. It is the same every time, so that
// what a process that was killed has left is taken up by the next one that writes the file, and not kept for
// ever.
func Unfinished(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+newSuffix)
}

// Finished is the name that a file of this name will have, if it is one that [WriteFile] is writing; otherwise
// the name itself.
func Finished(name string) string {
	if base, ok := strings.CutSuffix(name, newSuffix); ok && strings.HasPrefix(base, ".") {
		return base[1:]
	}
	return name
}

// WriteFile writes a file that appears under its name, or in place of the one that is there, only when all of
// it is on the disk. Of several processes that write one file at once each writes all of it, one after the
// other. On an error what stood there stays, and nothing is left beside it.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	unfinished := Unfinished(path)
	f, err := own(unfinished, perm)
	if err != nil {
		return err
	}

	_, err = f.Write(data)
	err = errors.Join(err, f.Sync())
	if err == nil {
		err = system.Rename(unfinished, path) // still locked: nobody else writes under this name
	}
	if err != nil {
		return errors.Join(err, os.Remove(unfinished), f.Close())
	}

	return errors.Join(f.Close(), SyncFolder(filepath.Dir(path)))
}

// own opens an empty file that no other process has open through own. Where the file system has no locks they
// are done without.
func own(path string, perm fs.FileMode) (*os.File, error) {
	for {
		f, err := system.OpenFile(path, os.O_CREATE|os.O_WRONLY|system.NoFollow, perm)
		if err != nil {
			return nil, err
		}

		err = lock(f)
		if err == nil {
			var same bool
			if same, err = is(f, path); err == nil && !same { // it got its final name while this waited for it
				_ = f.Close()
				continue
			}
		}
		if err == nil {
			err = f.Truncate(0)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}

		return f, nil
	}
}

func lock(f *os.File) error {
	if err := system.Lock(f); err != nil && !errors.Is(err, system.ErrNoLocks) {
		return fmt.Errorf("%s: lock: %w", f.Name(), err)
	}
	return nil
}

// is reports whether path leads to an open file.
func is(f *os.File, path string) (bool, error) {
	have, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(have, there), err
}

// SyncFolder makes the names in a folder durable.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil // names may be made in it, but not read
	}

	if err != nil {
		return err
	}

	return errors.Join(system.SyncFolder(d), d.Close())
}
