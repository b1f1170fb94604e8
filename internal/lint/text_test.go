package lint

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// source extensions, and those of prose and settings.
var (
	sourceExt = []string{".go", ".s", ".cu", ".cuh", ".h", ".cc", ".sh", ".py", ".js"}
	proseExt  = []string{".md", ".yaml", ".yml", ".toml", ".mod", ".txt", ".txtar", ".html", ".css"}
)

// isSource reports whether a file is code: by its extension, or as a script of the checks.
func isSource(name string) bool {
	return slices.Contains(sourceExt, path.Ext(name)) || strings.HasPrefix(name, ".ci/")
}

// TestFinished: no notes about work that was left undone. (The words are put together here so that this file passes.)
func TestFinished(t *testing.T) {
	words := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b|(?i:not ` + `(yet )?implemented)`)
	lines(t, isSource, func(name string, number int, line string) {
		if found := words.FindString(line); found != "" {
			t.Errorf("%s:%d: %q; finish it, or say what the code does", name, number, found)
		}
	})
}

// TestNoMachinePaths: nothing in the repository names a folder of the machine it was written on.
func TestNoMachinePaths(t *testing.T) {
	folder := regexp.MustCompile(`(^|[^\w./~-])/(wo` + `rk|tm` + `p|ho` + `me|ro` + `ot)/`)
	keep := func(name string) bool {
		return isSource(name) || slices.Contains(proseExt, path.Ext(name)) || path.Ext(name) == ".svg" ||
			path.Base(name) == ".gitignore"
	}
	lines(t, keep, func(name string, number int, line string) {
		if found := folder.FindString(line); found != "" {
			t.Errorf("%s:%d: absolute path %q", name, number, strings.TrimSpace(found))
		}
	})
}
