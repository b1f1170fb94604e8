package tensorfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/modelcompress/compress/internal/disk"
	"github.com/modelcompress/compress/internal/system"
)

// diskFault turns a full disk or quota into ErrNoSpace, and a limit on the size of a file into ErrFileSize.
func diskFault(err error, f *os.File, need int64) error {
	var cause syscall.Errno
	errors.As(err, &cause)

	switch {
	case system.Is(err, syscall.EFBIG):
		return fault(fmt.Errorf("%w: %w", ErrFileSize, cause), -1, "it needs %d bytes", need)
	case system.Full(err):
		free, _ := system.Space(f)
		if short := (*disk.ShortError)(nil); errors.As(err, &short) {
			free = short.Free // from before the attempt
		}
		if free < 0 {
			return fault(fmt.Errorf("%w: %w", ErrNoSpace, cause), -1, "%d bytes are needed", need)
		}

		return fault(fmt.Errorf("%w: %w", ErrNoSpace, cause), -1, "%d bytes are needed, %d are free", need, free)
	}

	return err
}

// CheckSpace refuses files that do not fit onto the disk together, before the first of them takes any of it: one by
// one, the last may be found too large when the others have filled the disk already.
func CheckSpace(dir string, writers []*Writer) error {
	var need, own int64
	for _, w := range writers {
		need += w.layout.Size
		if st, err := os.Lstat(w.path + PartialSuffix); err == nil && st.Mode().IsRegular() {
			own += system.Allocated(st) // of an earlier run, which is begun anew
		}
	}

	err := disk.Check(dir, need, own)
	var short *disk.ShortError
	if !errors.As(err, &short) {
		return err
	}
	return fault(fmt.Errorf("%w: %w", ErrNoSpace, short.Err), -1, "the output needs %s, %s are free there",
		amount(short.Need), amount(short.Free))
}

// amount is a size for people, and to the byte.
func amount(n int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"GB", 1e9}, {"MB", 1e6}} {
		if n >= u.size {
			return fmt.Sprintf("%.1f %s (%d bytes)", float64(n)/float64(u.size), u.name, n)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// syncDir makes the names in the folder of path durable.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(system.SyncFolder(d), d.Close())
}

// lock takes f for this writer alone; ErrBusy if another one has it. File systems without locks (some network ones)
// give no protection.
func lock(f *os.File) error {
	switch err := system.TryLock(f); {
	case errors.Is(err, system.ErrLocked):
		return ErrBusy
	case errors.Is(err, system.ErrNoLocks):
		return nil
	default:
		return err
	}
}

// openPartial opens an unfinished output and locks it. flag may hold os.O_CREATE. Since the writer that had it may
// rename or remove it between opening and locking, the name is looked at again.
func openPartial(path string, flag int) (*os.File, error) {
	for {
		f, err := system.OpenFile(path, os.O_RDWR|system.NoFollow|system.NonBlock|flag, 0o666)
		if err != nil {
			return nil, err
		}

		same, err := lockSame(f, path)
		if err == nil && same {
			return f, nil
		}

		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// lockSame locks f and reports whether path still leads to it.
func lockSame(f *os.File, path string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}

	if !mine.Mode().IsRegular() {
		return false, ErrNotRegular
	}
	if err := lock(f); err != nil {
		return false, err
	}

	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}

	return err == nil && os.SameFile(mine, now), err
}
