package regular

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// TempFolder makes a folder for temporary files, whose name begins with prefix, and removes it on release. Such folders of processes that were killed are
// removed first: a folder is locked for as long as its process lives. Where the file system has no locks, they stay.
func TempFolder(prefix string) (dir string, release func() error, err error) {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, path := range old {
		if f := abandoned(path); f != nil {
			_ = os.RemoveAll(path) // what cannot be removed does no harm
			_ = f.Close()
		}
	}
	for {
		if dir, err = os.MkdirTemp("", prefix); err != nil {
			return "", nil, err
		}
		f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process has taken it for an abandoned one before it was locked
		}
		if err != nil {
			return "", nil, errors.Join(err, os.Remove(dir))
		}
		if err := lock(f); err != nil {
			return "", nil, errors.Join(err, f.Close(), os.Remove(dir))
		}
		same, err := is(f, dir)
		if err != nil || !same {
			if err := errors.Join(err, f.Close()); err != nil {
				return "", nil, err
			}
			continue
		}
		return dir, func() error { return errors.Join(os.RemoveAll(dir), f.Close()) }, nil
	}
}

// abandoned opens and locks a folder of this user that no living process has locked; otherwise it gives nil.
func abandoned(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || int(st.Uid) != os.Geteuid() || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		_ = f.Close()
		return nil
	}
	return f
}
