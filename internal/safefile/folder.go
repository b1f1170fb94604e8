package safefile

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Folder is a folder from which files are read by name. A link that is an entry of the folder itself is followed
// wherever it leads: whoever put it there has named that file, as if it had been given by its path. Names of more than
// one part lead nowhere outside, through whatever links. In a snapshot of the cache of the Hugging Face hub,
// MODEL/snapshots/REVISION, where nobody puts links but the programs that download, those to files in MODEL/blobs alone
// are followed.
type Folder struct{ *os.Root }

// OpenFolder opens a folder. Links to it are followed. The error is one of the operating system.
func OpenFolder(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{root}, nil
}

// Open opens a file for reading.
func (f *Folder) Open(name string) (*os.File, error) { return f.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile is [os.Root.OpenFile].
func (f *Folder) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	file, err := f.Root.OpenFile(name, flag, perm)
	if err == nil || flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE) != 0 {
		return file, err
	}
	if model, blob, ok := f.cached(name); ok {
		defer model.Close()
		return model.OpenFile(blob, flag, perm)
	}
	if path, ok := f.linked(name); ok {
		return os.OpenFile(path, flag, perm)
	}
	return nil, err
}

// Inside reports whether a file is read without following a link out of the folder, or in a snapshot to a blob.
func (f *Folder) Inside(name string) bool {
	if _, err := f.Root.Stat(name); err == nil {
		return true
	}
	model, blob, ok := f.cached(name)
	if !ok {
		return false
	}
	defer model.Close()
	_, err := model.Stat(blob)
	return err == nil
}

// Stat is [os.Root.Stat]; the name is that of the link.
func (f *Folder) Stat(name string) (fs.FileInfo, error) {
	stat, err := f.Root.Stat(name)
	if err == nil {
		return stat, nil
	}

	if model, blob, ok := f.cached(name); ok {
		defer model.Close()
		if stat, err = model.Stat(blob); err == nil {
			return named{stat, filepath.Base(name)}, nil
		}
	}

	if path, ok := f.linked(name); ok {
		return os.Stat(path)
	}

	return nil, err
}

// named is a file's description under the name of a link to it.
type named struct {
	fs.FileInfo
	name string
}

func (n named) Name() string { return n.name }

// linked is the path of an entry that is a link out of the folder, by which it is followed.
func (f *Folder) linked(name string) (path string, ok bool) {
	if name != filepath.Base(name) || !filepath.IsLocal(name) {
		return "", false
	}
	if _, err := f.Readlink(name); err != nil {
		return "", false
	}
	if _, in := f.snapshot(); in {
		return "", false
	}
	return filepath.Join(f.Name(), name), true
}

// snapshot returns the folder without links in its path, and reports whether it is a snapshot of the hub's cache.
func (f *Folder) snapshot() (dir string, ok bool) {
	dir, err := filepath.EvalSymlinks(f.Name())
	if err != nil {
		return "", false
	}
	dir, err = filepath.Abs(dir)
	return dir, err == nil && filepath.Base(filepath.Dir(dir)) == "snapshots"
}

// cached finds the file of the hub's cache that a name is a link to: a path in the folder of the model.
func (f *Folder) cached(name string) (model *os.Root, blob string, ok bool) {
	link, err := f.Readlink(name)
	if err != nil {
		return nil, "", false
	}

	revision, ok := f.snapshot()
	if !ok {
		return nil, "", false
	}
	if !filepath.IsAbs(link) {
		link = filepath.Join(revision, filepath.Dir(name), link)
	}

	top := filepath.Dir(filepath.Dir(revision))
	if filepath.Dir(link) != filepath.Join(top, "blobs") {
		return nil, "", false
	}
	if model, err = os.OpenRoot(top); err != nil {
		return nil, "", false
	}

	return model, filepath.Join("blobs", filepath.Base(link)), true
}
