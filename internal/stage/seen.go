package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Seen are the files beside the weights of a model that it needs, as they were when it was opened: hours of work may
// lie between that and the output that gets copies of them.
type Seen struct {
	dir   string
	files map[string]fs.FileInfo
}

// See notes what there is in a model's folder; of a model that is no folder, nothing. What cannot be read is left to
// those that need it.
func See(dir string) Seen {
	s := Seen{dir: dir, files: map[string]fs.FileInfo{}}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !matches(needed, e.Name()) {
			continue
		}
		if file, err := os.Stat(filepath.Join(dir, e.Name())); err == nil {
			s.files[e.Name()] = file
		}
	}
	return s
}

// SeeAll notes every file of some models, folders or single files.
func SeeAll(paths ...string) (Seen, error) {
	s := Seen{files: map[string]fs.FileInfo{}}
	for _, path := range paths {
		// A link to a folder is walked as that.
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path += string(filepath.Separator) + "."
		}
		err := filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			s.files[path], err = os.Stat(path)
			return err
		})
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// Unchanged compares the files with what they are now. The error wraps [ErrChanged].
func (s Seen) Unchanged() error {
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		path := filepath.Join(s.dir, name)
		now, err := os.Stat(path)
		if err != nil || !alike(now, s.files[name]) {
			return errors.Join(err, fmt.Errorf("%s: %w", path, ErrChanged))
		}
	}
	return nil
}

// alike compares files by size and time.
func alike(a, b fs.FileInfo) bool { return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) }
