package stage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/safetensors"
)

// Replaceable makes the rule for a folder that may be replaced by a new version of the model in source: it
// holds weights, and beside them nothing but files that belong to a checkpoint, equal copies of files of the
// source (empty: there is none), a card that nobody has changed, and reports. own are names of further files that the
// caller writes there, and of folders with a slash behind.
func Replaceable(source string, own ...string) Rule {
	return func(dir string) error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}

		weights, models := weightsOf(dir), 0
		var foreign []string
		for _, e := range entries {
			switch name := e.Name(); {
			case e.IsDir() && slices.Contains(own, name+"/"):
			case e.IsDir():
				foreign = append(foreign, name)
			case weights(name):
				models++
			case slices.Contains(own, name):
			case name == card.Name:
				if !CardMayGo(dir, source) {
					foreign = append(foreign, name)
				}
			case belongs(safefile.Finished(name)), IsReport(filepath.Join(dir, name)):
			case source != "" && sameContent(filepath.Join(dir, name), filepath.Join(source, name)):
			default:
				foreign = append(foreign, name)
			}
		}

		if len(foreign) > 0 {
			return Foreign(foreign)
		}
		if models == 0 {
			return fmt.Errorf("%w: it holds no model, so it is not replaced", ErrTarget)
		}

		return nil
	}
}

// Foreign is the error about files that are not to be removed, of which there is at least one.
func Foreign(names []string) error {
	const most = 5
	list := fmt.Sprintf("%.100q", names[:min(len(names), most)])
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
	}
	err := fmt.Errorf("%w: it holds something else than is written here, so it is not replaced: %s%s", ErrTarget,
		strings.Trim(list, "[]"), more)
	return failure.Hinted(err, "move that away, or choose another --out")
}

var shardName = regexp.MustCompile(`^model-[0-9]{5}-of-[0-9]{5}\.safetensors$`)

// weightsOf tells which files of a folder are the weights of its model: those with the usual names, and those that the
// index names.
func weightsOf(dir string) func(name string) bool {
	var listed []string
	if src, err := safetensors.OpenDir(dir); err == nil {
		listed = src.Shards()
		src.Close()
	}
	return func(name string) bool {
		return name == safetensors.SingleName || name == safetensors.IndexName || shardName.MatchString(name) ||
			slices.Contains(listed, name)
	}
}

// belongs reports whether a file is part of a checkpoint by its name.
func belongs(name string) bool {
	return matches(needed, name) || matches(usual, name) || matches(replaced, name)
}

// maxCard bounds what is read to recognize a card, which holds that of a base.
const maxCard = 2 * card.MaxBase

// ownCard reports whether a README.md is a card as this program wrote it.
func ownCard(path string) bool {
	text, err := safefile.ReadFile(path, maxCard)
	return err == nil && card.Own(text)
}

// CardMayGo reports whether the README.md in the folder of an output may be replaced by a new card: it is [OwnCard], or
// the copy of that in source (empty: there is none). Anything else is a user's own text.
func CardMayGo(dir, source string) bool {
	return OwnCard(dir) || source != "" && sameContent(filepath.Join(dir, card.Name), filepath.Join(source, card.Name))
}

// OwnCard is the rule for the README.md in a folder that is to be replaced: there is none, or one that this program
// wrote and nobody has changed since. Anything else is a user's own text.
func OwnCard(dir string) bool {
	path := filepath.Join(dir, card.Name)
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) || ownCard(path)
}

// maxReport bounds what is read to recognize a report.
const maxReport = 256 << 20

// IsReport reports whether a file is a report that this program wrote.
func IsReport(path string) bool {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() || st.Size() > maxReport {
		return false
	}
	data, err := safefile.ReadFile(path, maxReport)
	var r struct {
		Command string `json:"command"`
		Version string `json:"version"`
	}
	return err == nil && json.Unmarshal(data, &r) == nil && strings.HasPrefix(r.Command, "compress ") && r.Version != ""
}

// maxCompared bounds the files that are compared; a copy of a larger one counts as something else.
const maxCompared = 16 << 20

// sameContent reports whether two regular files hold the same.
func sameContent(a, b string) bool {
	var data [2][]byte
	for i, path := range []string{a, b} {
		st, err := os.Lstat(path)
		if err != nil || !st.Mode().IsRegular() || st.Size() > maxCompared {
			return false
		}

		if data[i], err = os.ReadFile(path); err != nil {
			return false
		}
	}

	return bytes.Equal(data[0], data[1])
}

// within reports whether out is somewhere below the folder of a model.
func within(source, out string) bool {
	model, err := os.Stat(source)
	at, absErr := filepath.Abs(out)
	if err != nil || absErr != nil || !model.IsDir() {
		return false
	}

	for at != filepath.Dir(at) {
		at = filepath.Dir(at)
		if st, err := os.Stat(at); err == nil && os.SameFile(st, model) {
			return true
		}
	}

	return false
}

// Apart reports whether out can be an output of work on the checkpoint at source: it is not the source, does not
// hold it, and is not in it. The error wraps ErrInPlace or ErrTarget.
func Apart(source, out string) error {
	if source == "" {
		return nil
	}
	if within(source, out) {
		return fmt.Errorf("%s: %w: it is in the folder of the model %s", out, ErrTarget, source)
	}

	target, err := os.Stat(out)
	if err != nil {
		return nil // not there, or Vacant says what is wrong with it
	}

	at, err := filepath.Abs(source)
	if err != nil {
		return err
	}

	for first := true; ; first = false {
		if st, err := os.Stat(at); err == nil && os.SameFile(st, target) {
			if first {
				return fmt.Errorf("%s: %w", out, ErrInPlace)
			}
			return fmt.Errorf("%s: %w: the folder holds the model %s", out, ErrTarget, source)
		}

		if at == filepath.Dir(at) {
			return nil
		}

		at = filepath.Dir(at)
	}
}
