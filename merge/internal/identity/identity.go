// Package identity tells merges apart, so that an interrupted one is only continued with what it began with.
// What a result keeps of it says nothing about when, and in which folder of which machine, the merge was done.
package identity

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

// file is what tells the content of a file, without reading it.
type file struct {
	Path string
	Size int64
	Time int64
}

// Of is what a merge depends on: a hash of its choices, as JSON has them, and of the names and sizes of its
// files; then, behind @, the time of the newest file and a hash of all paths and times. Files that are not
// there are left out.
func Of(choices map[string]any, paths []string) (string, error) {
	var kept, files []file
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
		kept, files = append(kept, file{Path: filepath.Base(path), Size: st.Size()}),
			append(files, file{abs, st.Size(), at})
	}

	what, err := hash(map[string]any{"choices": choices, "files": kept})
	if err != nil {
		return "", err
	}

	where, err := hash(files)
	return what + "@" + strconv.FormatInt(newest, 10) + "@" + where, err
}

// And is an identity with something more that counts.
func And(job, more string) (string, error) {
	what, where, _ := strings.Cut(job, "@")
	what, err := hash([]string{what, more})
	return what + "@" + where, err
}

// Kept is the part of an identity that belongs into the result.
func Kept(job string) string {
	what, _, _ := strings.Cut(job, "@")
	return what
}

// Made tells whether a result, which keeps a part of an identity and was finished at some time, is that of a
// job: its files are all older.
func Made(kept string, finished time.Time, job string) bool {
	what, where, timed := strings.Cut(job, "@")
	newest, _, _ := strings.Cut(where, "@")
	at, err := strconv.ParseInt(newest, 10, 64)
	return kept == what && (!timed || err == nil && at <= finished.UnixNano())
}

func hash(v any) (string, error) {
	h := sha256.New()
	err := json.NewEncoder(h).Encode(v)
	return hex.EncodeToString(h.Sum(nil)), err
}
