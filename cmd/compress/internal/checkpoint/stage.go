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
)

// Staged is an output folder under construction: a hidden sibling of its final name, which it gets when it is complete.
type Staged struct {
	Dir   string // where to write
	final string
}

// Stage makes the folder for an output; see [Vacant] for what may be at its final name, which stays as it is until
// Commit.
func Stage(out string, replace func(dir string) bool) (*Staged, error) {
	final, err := filepath.Abs(out)
	if err != nil {
		return nil, err
	}
	if err := Vacant(final, replace); err != nil {
		return nil, err
	}
	s := &Staged{Dir: filepath.Join(filepath.Dir(final), "."+filepath.Base(final)+".partial"), final: final}
	if err := os.RemoveAll(s.Dir); err != nil {
		return nil, err
	}
	return s, os.MkdirAll(s.Dir, 0o777)
}

// Vacant tells whether an output folder can be written: there is nothing, or an empty folder, or one that replace, where it
// is not nil, agrees to. The errors wrap ErrExists or ErrTarget.
func Vacant(path string, replace func(dir string) bool) error {
	switch entries, err := os.ReadDir(path); {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("--out %s: %w (HINT: choose another --out)", path, ErrTarget)
	case err != nil:
		return fmt.Errorf("--out: %w", err)
	case replace == nil:
		return fmt.Errorf("--out %s: %w and is not empty", path, ErrExists)
	case !replace(path):
		return fmt.Errorf("--out %s: %w: it holds something else than is written here, and is not replaced (HINT: choose another --out)", path, ErrTarget)
	}
	return nil
}

// Holds tells whether a folder holds weights: what --overwrite may replace.
func Holds(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isWeights(e.Name()) })
}

// Commit gives the folder its final name.
func (s *Staged) Commit() error {
	if err := syncDir(s.Dir); err != nil {
		return err
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
func (s *Staged) Abandon() { os.RemoveAll(s.Dir) }

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// weightFiles are the endings of files that hold weights in some form; they are not copied beside converted ones.
var weightFiles = []string{".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot"}

// copySides copies the files of a model's folder that are no weights: tokenizer, generation settings, licence. Names in
// except are left to the caller; links and folders are not followed.
func copySides(dst, src string, except ...string) error {
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasPrefix(e.Name(), ".") || isWeights(e.Name()) || slices.Contains(except, e.Name()) {
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
