package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/scratch"
)

// Staged is an output folder under construction: a hidden sibling of its final name, which it gets when it is
// complete. It is locked: nobody else can be at work on the same output.
type Staged struct {
	Dir   string // where to write
	final string
	allow func(dir string) error
	lock  *os.File
}

// staged are files, besides weights and configurations, that killed runs leave in folders under construction.
var staged = []string{"results.json", "answers.jsonl", "samples_*.jsonl", "report.*", "*.new", "tokenizer*.json"}

// Stage makes the folder for an output; see [Vacant] for what may be at its final name, which stays as it is until
// Commit. The error wraps ErrBusy while another process writes the same output.
func Stage(out string, allow func(dir string) error) (*Staged, error) {
	final, err := filepath.Abs(out)
	if err != nil {
		return nil, err
	}

	final = safefile.Place(final)
	if err := Vacant(final, allow); err != nil {
		return nil, err
	}

	s := &Staged{
		Dir: filepath.Join(filepath.Dir(final), "."+filepath.Base(final)+".partial"), final: final,
		allow: allow,
	}
	if s.lock, err = claim(s.Dir); err != nil {
		return nil, fmt.Errorf("--out %s: %w", out, err)
	}
	if err := scratch.Leftover(s.Dir, staged...); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}

	left, err := os.ReadDir(s.Dir)
	for _, e := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.Dir, e.Name())))
	}
	if err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}

	return s, nil
}

// claim makes a folder, or takes the one that an interrupted run left, and locks it.
func claim(dir string) (*os.File, error) {
	for {
		if err := os.Mkdir(dir, 0o777); errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return nil, err
			}
		} else if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}

		if st, err := os.Lstat(dir); err == nil && !st.IsDir() {
			return nil, fmt.Errorf("%w: %s is in the way and is no folder", ErrTarget, dir)
		}

		f, err := lockDir(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
}

// lockDir locks a folder. The error wraps fs.ErrNotExist where the folder vanished meanwhile, which the end of another
// run does.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}

	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	mine, errMine := f.Stat()
	now, errNow := os.Lstat(dir)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("%w: %s is locked", ErrBusy, dir)
	case errMine != nil || errNow != nil || !os.SameFile(mine, now):
		err = fmt.Errorf("%s: %w", dir, fs.ErrNotExist)
	default:
		return f, nil // also on file systems without locks
	}

	return nil, errors.Join(err, f.Close())
}

// Vacant tells whether an output folder can be written: there is nothing, or an empty folder, or one that
// allow, where it is not nil, has nothing against. The errors wrap ErrExists or ErrTarget.
func Vacant(path string, allow func(dir string) error) error {
	switch entries, err := os.ReadDir(path); {
	case errors.Is(err, fs.ErrNotExist) && isLink(path):
		return fmt.Errorf("--out %s: %w: there is a link to nothing (HINT: choose another --out)", path, ErrTarget)
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("--out %s: %w: there is a file (HINT: choose another --out)", path, ErrTarget)
	case err != nil:
		return fmt.Errorf("--out: %w", err)
	case allow == nil:
		return fmt.Errorf("--out %s: %w and is not empty", path, ErrExists)
	}

	if err := allow(path); err != nil {
		return fmt.Errorf("--out %s: %w", path, err)
	}

	return nil
}

func isLink(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode()&fs.ModeSymlink != 0
}

// Commit gives the folder its final name, if that is still free or may be replaced.
func (s *Staged) Commit() error {
	defer s.lock.Close()

	if err := errors.Join(syncDir(s.Dir), Vacant(s.final, s.allow)); err != nil {
		return err
	}
	if old, err := lockDir(s.final); err == nil {
		defer old.Close() // it gets the hidden name for a moment, and nobody may take it for an unfinished output
	}
	if err := swap(s.Dir, s.final); err != nil {
		return err
	}

	return errors.Join(syncDir(filepath.Dir(s.final)), os.RemoveAll(s.Dir))
}

// swapByTwo swaps in two renames: a crash between them leaves the old folder under its hidden name.
func swapByTwo(dir, final string) error {
	old := dir + ".old"
	if err := os.Rename(final, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(dir, final); err != nil {
		return errors.Join(err, os.Rename(old, final))
	}
	if err := os.Rename(old, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	return nil
}

// Abandon removes what an unfinished run has written.
func (s *Staged) Abandon() {
	os.RemoveAll(s.Dir)
	s.lock.Close()
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// weightFiles are the endings of files that hold weights in some form; they are not copied beside converted ones.
var weightFiles = []string{
	".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf",
	".h5", ".msgpack", ".onnx", ".ot",
}

// copySides copies the files of a model's folder that are no weights: tokenizer, generation settings, licence. Names in
// except are left to the caller; links and folders are not followed.
func copySides(dst, src string, except ...string) error {
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}

	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasPrefix(e.Name(), ".") || isWeights(e.Name()) ||
			slices.Contains(except, e.Name()) {
			continue
		}
		if err := copyFile(filepath.Join(dst, e.Name()), filepath.Join(src, e.Name())); err != nil {
			return err
		}
	}

	return nil
}

func isWeights(name string) bool {
	for _, end := range weightFiles {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()

	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}

	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// NotCopied lists the files of a model's folder that are neither weights nor in the output, quoted.
func NotCopied(src, dst string) (names []string) {
	entries, err := os.ReadDir(src)
	if err != nil {
		return nil
	}

	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") || isWeights(e.Name()) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dst, e.Name())); errors.Is(err, fs.ErrNotExist) {
			names = append(names, fmt.Sprintf("%.60q", e.Name()))
		}
	}

	return names
}
