package output

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// jobFile is what tells the content of a file, without reading it.
type jobFile struct {
	Path string
	Size int64
	Time int64
}

// A job tells merges apart, so that an interrupted one is only continued with what it began with. What a result
// keeps of it says nothing about when, and in which folder of which machine, the merge was done.

// JobOf is what a merge depends on: a hash of its choices, as JSON has them, and of the names and sizes of its
// files; then, behind @, the time of the newest file and a hash of all paths and times. Files that are not
// there are left out.
func JobOf(choices map[string]any, paths []string) (string, error) {
	var kept, files []jobFile
	newest := int64(0)
	for _, path := range paths {
		st, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}

		if err != nil {
			return "", err
		}

		abs, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}

		at := st.ModTime().UnixNano()
		newest = max(newest, at)

		// Only names and sizes go into the result: inputs that were copied have other paths and times, and the same
		// merge.
		kept, files = append(kept, jobFile{Path: filepath.Base(path), Size: st.Size()}),
			append(files, jobFile{abs, st.Size(), at})
	}

	what, err := jsonHash(map[string]any{"choices": choices, "files": kept})
	if err != nil {
		return "", err
	}

	where, err := jsonHash(files)
	return what + "@" + strconv.FormatInt(newest, 10) + "@" + where, err
}

// JobAnd is an identity with something more that counts.
func JobAnd(job, more string) (string, error) {
	what, where, _ := strings.Cut(job, "@")
	what, err := jsonHash([]string{what, more})
	return what + "@" + where, err
}

// JobKept is the part of an identity that belongs into the result.
func JobKept(job string) string {
	what, _, _ := strings.Cut(job, "@")
	return what
}

// jobMade reports whether a result, which keeps a part of an identity and was finished at some time, is that of a
// job: its files are all older.
func jobMade(kept string, finished time.Time, job string) bool {
	what, where, timed := strings.Cut(job, "@")
	newest, _, _ := strings.Cut(where, "@")
	at, err := strconv.ParseInt(newest, 10, 64)
	return kept == what && (!timed || err == nil && at <= finished.UnixNano())
}

func jsonHash(v any) (string, error) {
	h := sha256.New()
	err := json.NewEncoder(h).Encode(v)
	return hex.EncodeToString(h.Sum(nil)), err
}
