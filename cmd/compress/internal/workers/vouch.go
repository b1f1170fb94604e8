package workers

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/system"
)

// Some work is done in a folder that coordinator and workers share. An offer only names that folder; what is to be done
// there is what the folder itself says, since whoever can make an offer need not be somebody whom this machine's user
// lets write here.

// maxVouched bounds what a folder says of its run.
const maxVouched = 64 << 20

// Vouch leaves in a folder what its offer says, for [Worker.Vouched].
func Vouch(file string, spec []byte) error { return cli.WriteFile(file, spec) }

// Vouched refuses an offer whose folder does not say the same in a file, or may not be worked in: it has to be this
// user's own, or one that was named.
func (w *Worker) Vouched(dir, file string, spec []byte) error {
	if len(w.Folders) > 0 && !within(dir, w.Folders) {
		return fmt.Errorf("%w: %s is none of the folders that this worker may work in", jobs.ErrRefused, dir)
	}

	path := filepath.Join(dir, file)
	said, err := safefile.ReadFile(path, maxVouched)
	if err != nil || !bytes.Equal(said, spec) {
		return fmt.Errorf("%w: the folder %s of the run is not here, or another run has taken it over "+
			"(HINT: share it, under the same path)", jobs.ErrRefused, dir)
	}

	if len(w.Folders) > 0 {
		return nil
	}

	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: the folder %s of the run is not here", jobs.ErrRefused, dir)
	}

	if !system.Mine(st) {
		return fmt.Errorf("%w: %s is another user's (HINT: compress worker --folder %s)", jobs.ErrRefused, dir, dir)
	}

	return nil
}

// within reports whether a folder lies in one of others, or is one of them, links followed.
func within(dir string, roots []string) bool {
	real := func(path string) (string, error) {
		abs, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		return filepath.EvalSymlinks(abs)
	}

	dir, err := real(dir)
	if err != nil {
		return false
	}

	for _, root := range roots {
		root, err := real(root)
		if err != nil {
			continue
		}

		rel, err := filepath.Rel(root, dir)
		if err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return true
		}
	}

	return false
}

// withheld is a refusal with details that are for this machine's user alone.
type withheld struct{ public, detail error }

// Withheld is an error of which a coordinator elsewhere hears only the first part: the second may have words from files
// of this machine.
func Withheld(public, detail error) error {
	if detail == nil {
		return public
	}
	return &withheld{public, detail}
}

func (e *withheld) Error() string   { return e.public.Error() + ": " + e.detail.Error() }
func (e *withheld) Public() string  { return e.public.Error() }
func (e *withheld) Unwrap() []error { return []error{e.public, e.detail} }
