// Package folder writes folders that appear under their name only once they are complete, and single files likewise.
package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/scratch"
)

// ErrExists: there is something at the place of the output.
var ErrExists = failure.Misuse("output exists already", "")

// Stage is the hidden folder beside dir in which an output grows.
func Stage(dir string) string {
	clean := filepath.Clean(dir)
	return filepath.Join(filepath.Dir(clean), "."+filepath.Base(clean)+".partial")
}

// Vacant returns nil if nothing, or an empty folder, is at dir; otherwise an error that wraps ErrExists.
func Vacant(dir string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(list) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", dir, ErrExists)
}

// Write lets fill make the files of a new folder dir, or of the one that a link of that name leads to. With
// overwrite a folder of that name is replaced when the new one is complete.
func Write(dir string, overwrite bool, fill func(stage string) error) error {
	dir = safefile.Place(dir)
	if !overwrite {
		if err := Vacant(dir); err != nil {
			return err
		}
	}

	stage := Stage(dir)
	if err := errors.Join(scratch.Leftover(dir), scratch.Leftover(stage)); err != nil {
		return err
	}
	if err := os.RemoveAll(stage); err != nil {
		return err
	}
	if err := os.MkdirAll(stage, 0o777); err != nil {
		return err
	}

	err := fill(stage)
	if err == nil {
		err = Publish(stage, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(stage))
	}

	return nil
}

// Publish gives a complete folder its name, in the place of what had it.
func Publish(stage, dir string) error {
	if err := Sync(stage); err != nil {
		return err
	}

	old := stage + ".old"
	err := os.Rename(dir, old)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}

	if err := os.Rename(stage, dir); err != nil {
		return err
	}

	return errors.Join(Sync(filepath.Dir(filepath.Clean(dir))), os.RemoveAll(old))
}

// File writes a small file that is there completely or not at all, and survives a crash once this returns.
func File(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}

	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}

	return Sync(filepath.Dir(path))
}

// Sync makes the names in a folder durable.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
