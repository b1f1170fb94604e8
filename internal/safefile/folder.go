package safefile

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Folder is a folder from which files are read by name. No link leads out of it, except as the cache of the
// Hugging Face hub has them: from MODEL/snapshots/REVISION to a file in MODEL/blobs.
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
	return nil, err
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

	return nil, err
}

// named is a file's description under the name of a link to it.
type named struct {
	fs.FileInfo
	name string
}

func (n named) Name() string { return n.name }

// cached finds the file of the hub's cache that a name is a link to: a path in the folder of the model.
func (f *Folder) cached(name string) (model *os.Root, blob string, ok bool) {
	link, err := f.Readlink(name)
	if err != nil {
		return nil, "", false
	}

	revision, err := filepath.EvalSymlinks(f.Name())
	if err != nil || filepath.Base(filepath.Dir(revision)) != "snapshots" {
		return nil, "", false
	}

	if revision, err = filepath.Abs(revision); err != nil {
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
