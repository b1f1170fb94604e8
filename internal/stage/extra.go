package stage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/card"
)

// ErrFileName: a file of the caller cannot have that name.
var ErrFileName = errors.New("no name for a file beside the weights")

// AddFile adds a file that Finish writes beside the weights. It does nothing once the output is complete. Only a card
// takes the place of a file of the source.
func (f *Folder) AddFile(name string, data []byte) error {
	if f.complete {
		return nil
	}

	weights := strings.Contains(name, ".safetensors") || name == journalName
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") || weights ||
		name != card.Name && slices.ContainsFunc(f.side, func(file fs.FileInfo) bool { return file.Name() == name }) {
		return fmt.Errorf("%s: %.100q: %w", f.dir, name, ErrFileName)
	}

	if f.extra == nil {
		f.extra = map[string][]byte{}
	}

	f.extra[name] = slices.Clone(data)
	return nil
}

// writeExtra writes the files that were added.
func (f *Folder) writeExtra() error {
	for name, data := range f.extra {
		if err := write(filepath.Join(f.place.Dir, name), bytes.NewReader(data)); err != nil {
			return err
		}
	}

	return nil
}
