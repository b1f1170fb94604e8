// Package identity tells merges apart, so that an interrupted one is only continued with what it began with.
package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// file is what tells the content of a file, without reading it.
type file struct {
	Path string
	Size int64
	Time int64
}

// Of is a hash of what a merge depends on: its choices, as JSON has them, and its files by path, size and time. Files that are
// not there are left out.
func Of(choices map[string]any, paths []string) (string, error) {
	var files []file
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
		files = append(files, file{abs, st.Size(), st.ModTime().UnixNano()})
	}
	h := sha256.New()
	err := json.NewEncoder(h).Encode(map[string]any{"choices": choices, "files": files})
	return hex.EncodeToString(h.Sum(nil)), err
}
