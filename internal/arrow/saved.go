package arrow

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
)

// ErrSplits is a folder of several data sets, of which one has to be named.
var ErrSplits = failure.New("a data set with splits, each in a folder of its own", "name one of these folders")

// maxState bounds the description of a data set.
const maxState = 16 << 20

// Saved lists the files of a folder that the datasets library wrote by save_to_disk, in the order of their records;
// nil: the folder is none. Which columns set_format shows is no matter: all are read. The error wraps [ErrSplits],
// [ErrFormat] or [ErrUnsupported], or is one of the operating system.
func Saved(dir string) ([]string, error) {
	var splits struct{ Splits []string }
	if ok, err := describe(filepath.Join(dir, "dataset_dict.json"), &splits); ok || err != nil {
		return nil, errors.Join(err, severalSplits(dir, splits.Splits))
	}

	// The rows of a data set that select, filter or shuffle made of another were those of its files in the order of
	// further files. Since datasets 1.2, save_to_disk writes the rows themselves.
	var state struct {
		Files   []savedFile `json:"_data_files"`
		Indices []savedFile `json:"_indices_files"`
		Older   []savedFile `json:"_indices_data_files"`
	}
	path := filepath.Join(dir, "state.json")
	if ok, err := describe(path, &state); !ok || err != nil {
		return nil, err
	}
	if len(state.Indices)+len(state.Older) > 0 {
		return nil, failure.Hinted(fmt.Errorf("%s: rows in the order of further files: %w", path, ErrUnsupported),
			fmt.Sprintf("in Python, with the version of datasets that wrote it: "+
				"load_from_disk(%q).flatten_indices().save_to_disk(DIR)", dir))
	}

	files := []string{} // a data set may have none
	for _, f := range state.Files {
		if !filepath.IsLocal(f.Filename) {
			return nil, fmt.Errorf("%s: %w: %q is not in this folder", path, ErrFormat, f.Filename)
		}
		files = append(files, filepath.Join(dir, filepath.FromSlash(f.Filename)))
	}
	if state.Files != nil {
		return files, nil
	}
	return named(dir)
}

type savedFile struct{ Filename string }

// describe reads a description, if it is there.
func describe(path string, into any) (ok bool, err error) {
	f, err := safefile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()

	text, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return false, err
	}
	if len(text) > maxState {
		return false, fmt.Errorf("%s: %w: more than %d bytes", path, ErrFormat, maxState)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return false, fmt.Errorf("%s: %w: %w", path, ErrFormat, err)
	}
	return true, nil
}

// severalSplits names the splits of a folder.
func severalSplits(dir string, splits []string) error {
	if len(splits) == 0 {
		return fmt.Errorf("%s: %w", dir, ErrSplits)
	}
	one := splits[0]
	if slices.Contains(splits, "train") {
		one = "train"
	}
	return failure.Hinted(fmt.Errorf("%s: %w: %s", dir, ErrSplits, strings.Join(splits, ", ")),
		"name one of them, such as "+filepath.Join(dir, one))
}

// named lists the Arrow files of a folder by their names.
func named(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".arrow" && !e.IsDir() {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}
