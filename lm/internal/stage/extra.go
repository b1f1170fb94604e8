package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrFileName: a file of the caller cannot have that name.
var ErrFileName = errors.New("no name for a file beside the weights")

// AddFile adds a file that Finish writes beside the weights. It does nothing once the output is complete.
func (f *Folder) AddFile(name string, data []byte) error {
	if f.complete {
		return nil
	}

	weights := strings.Contains(name, ".safetensors") || name == journalName
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") || weights ||
		slices.ContainsFunc(f.side, func(file fs.FileInfo) bool { return file.Name() == name }) {
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
		out, err := os.OpenFile(filepath.Join(f.stage, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o666)
		if err != nil {
			return err
		}

		_, err = out.Write(data)
		if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
			return err
		}
	}

	return nil
}
