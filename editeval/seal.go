package editeval

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/stage"
)

// sums is where the hashes of a folder of results are kept.
func (s *Study) sums(folder string) string {
	return filepath.Join(s.dir, StateFolder, "sums", folder+".json")
}

// seal finishes a folder of results with its last file: the hashes of all files come first, so that a folder
// which has the last file has them too.
func (s *Study) seal(folder, last string, v any) error {
	dir := filepath.Join(s.dir, folder)
	sums, err := stage.Sums(dir)
	if err != nil {
		return err
	}

	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}

	text = append(text, '\n')
	sums[last] = stage.Sum(text)
	if err := errors.Join(stage.WriteSealed(s.sums(folder), sums), os.MkdirAll(dir, 0o777)); err != nil {
		return err
	}

	return writeFile(filepath.Join(dir, last), text)
}

// finished reads the last file of a folder of results that is finished, and reports whether all of the folder is
// what it was then. Of one without hashes, whose state was removed, nothing more is known.
func (s *Study) finished(folder, last string, v any) bool {
	err := readJSON(filepath.Join(s.dir, folder, last), v)
	if missing(err) {
		return false
	}
	var want map[string]string
	if err == nil {
		err = stage.ReadSealed(s.sums(folder), &want)
	}
	return missing(err) || s.whole(folder, want, err)
}

// Written reports whether the results of an unedited model, or of a sequence if u is one, lie in the folder.
func (s *Study) Written(model string, u *Unit) bool {
	file := filepath.Join(s.dir, baseFolder, model, editsFile)
	if u != nil {
		file = filepath.Join(s.dir, s.folder(*u), sequenceFile)
	}
	_, err := os.Stat(file)
	return err == nil
}

// whole reports whether a folder of results is what it was when it had some hashes, unless these could not be read.
func (s *Study) whole(folder string, want map[string]string, err error) bool {
	if err == nil {
		err = stage.CheckSums(filepath.Join(s.dir, folder), want)
	}
	if err != nil && s.Note != nil {
		s.Note(fmt.Sprintf("%v: %s is made anew", err, folder))
	}
	return err == nil
}
