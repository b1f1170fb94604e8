package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
)

// ErrForeign: what has the name of an unfinished or earlier output is something else, which is not touched.
var ErrForeign = failure.Misuse("the folder has the name of an output of this program, but holds something else",
	"")

// Leftover returns an error that wraps [ErrForeign] unless a folder may be emptied for a new output: there is
// none, or it is empty, or it holds what outputs have: weights, a configuration, or a file that one of the
// patterns fits, see [filepath.Match].
func Leftover(dir string, patterns ...string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}

	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return own(e, patterns) }) {
		return nil
	}

	return fmt.Errorf("%s: %w: %.60q among others (HINT: move it elsewhere, or choose another name for the output)",
		dir, ErrForeign, entries[0].Name())
}

// own reports whether an entry is one that outputs have.
func own(e fs.DirEntry, patterns []string) bool {
	name := e.Name()
	if e.Type().IsRegular() && (strings.Contains(name, ".safetensors") || strings.HasSuffix(name, "config.json")) {
		return true
	}
	return slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, name); return ok })
}
