// Package scratch makes folders for temporary files, and removes those that processes have left which were
// killed. A name proves nothing in a folder that all programs share: only what carries this program's mark is
// removed.
package scratch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/system"
)

// MarkName is the file by which this program knows a folder of temporary files as its own.
const MarkName = ".compress-scratch"

// mark is the content of that file. It names the folder, so that a copy under another name is somebody's work
// and not ours.
func mark(folder string) []byte {
	return []byte(
		"temporary files of compress; the folder " + folder + " is removed when no process uses it any more\n")
}

// Folder makes a folder for temporary files in [os.TempDir], whose name begins with prefix, and removes it on
// release. Such folders of processes that were killed are removed first: those that carry the mark, belong to
// this user and are not locked, which a folder is for as long as its process lives. Where the file system has
// no locks, they stay.
func Folder(prefix string) (dir string, release func() error, err error) {
	sweep(prefix)

	if dir, err = os.MkdirTemp("", prefix); err != nil {
		return "", nil, err
	}

	f, err := system.OpenFolder(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(dir))
	}

	// The mark comes after the lock, so that nobody ever finds a marked folder unlocked whose process lives.
	if err := lock(f); err != nil {
		return "", nil, errors.Join(err, f.Close(), os.Remove(dir))
	}
	if err := Mark(dir); err != nil {
		return "", nil, errors.Join(err, f.Close(), os.RemoveAll(dir))
	}

	return dir, func() error { return errors.Join(remove(f, dir), f.Close()) }, nil
}

// Mark marks a folder as one of this program's temporary ones.
func Mark(dir string) error {
	f, err := system.OpenFile(filepath.Join(dir, MarkName),
		os.O_WRONLY|os.O_CREATE|os.O_EXCL|system.NoFollow, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(mark(filepath.Base(dir)))
	return errors.Join(err, f.Close())
}

// sweep removes the folders that killed processes have left. What cannot be removed does no harm.
func sweep(prefix string) {
	temp := os.TempDir()
	entries, _ := os.ReadDir(temp)
	for _, e := range entries {
		if !e.IsDir() || !named(e.Name(), prefix) {
			continue
		}

		path := filepath.Join(temp, e.Name())
		if f, ok := abandoned(path); ok {
			_ = remove(f, path)
			_ = f.Close()
		}
	}
}

// named reports whether a name is one that [os.MkdirTemp] gives.
func named(name, prefix string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return false
	}
	_, err := strconv.ParseUint(digits, 10, 64)
	return err == nil && digits[0] != '+'
}

// abandoned opens and locks a marked folder of this user that no living process has locked; otherwise it returns false.
func abandoned(path string) (system.Folder, bool) {
	f, err := system.OpenFolder(path)
	if err != nil {
		return f, false
	}
	st, err := f.Stat()
	if err != nil || !system.Mine(st) || !marked(f.File, filepath.Base(path)) || f.TryLock() != nil {
		_ = f.Close()
		return f, false
	}
	return f, true
}

// marked reports whether a folder holds the whole mark and nothing else under its name. NonBlock: a pipe in
// its place would hold the program up.
func marked(folder *os.File, name string) bool {
	f, err := system.OpenIn(folder, MarkName, os.O_RDONLY|system.NoFollow|system.NonBlock)
	if err != nil {
		return false
	}
	defer f.Close()

	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || !system.Mine(st) {
		return false
	}

	want := mark(name)
	have, err := io.ReadAll(io.LimitReader(f, int64(len(want))+1))
	return err == nil && bytes.Equal(have, want)
}

// remove removes a folder with all that is in it, if its name still leads to the one that is open. Links are
// removed, not followed. The mark goes last, so that a removal that is cut short is finished by the next one.
func remove(f system.Folder, dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	ours, err := empty(f, root)

	// Closed first: not every system removes what is open.
	if err := errors.Join(err, root.Close()); err != nil || !ours {
		return err
	}

	return os.Remove(dir)
}

// empty removes all that is in a folder that is open, and reports whether a name still led to it.
func empty(f system.Folder, root *os.Root) (bool, error) {
	have, err := f.Stat()
	if err != nil {
		return false, err
	}

	there, err := root.Stat(".")
	if err != nil {
		return false, err
	}

	if !os.SameFile(have, there) {
		return false, nil // the name is another folder's by now
	}

	entries, err := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		if e.Name() != MarkName {
			err = errors.Join(err, root.RemoveAll(e.Name()))
		}
	}
	if err != nil {
		return false, err
	}

	return true, root.RemoveAll(MarkName)
}

// lock keeps others from removing a folder. File systems without locks give no protection, and need none: what
// cannot be locked is not swept either.
func lock(f system.Folder) error {
	if err := f.TryLock(); err != nil && !errors.Is(err, system.ErrNoLocks) {
		return fmt.Errorf("%s: lock: %w", f.Name(), err)
	}
	return nil
}
