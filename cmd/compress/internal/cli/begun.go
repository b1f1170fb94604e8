package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
)

// begun is the note of the command that began unfinished work: a hidden file beside the output, as long as the work is
// not done. What identifies the work in its own journal are hashes, which tell that something differs and not what.
// It is for messages alone: where it cannot be written, or is lost, they say less.
type begun struct {
	path string // empty: the run leaves nothing to go on with
	line string // the command of this run
	then []byte // the note of an earlier run; nil: none
}

// begin notes the command of a run that could be interrupted, unless the note is there of the run that it goes on with.
func (j *Job) begin() begun {
	flags := j.verb.Flags()
	resume, out := flags.Lookup("resume"), flags.Lookup("out")
	dry := flags.Lookup("dry-run")
	if resume == nil || out == nil || out.Value.String() == "" || dry != nil && dry.Value.String() == "true" {
		return begun{}
	}

	clean := filepath.Clean(out.Value.String())
	b := begun{
		path: filepath.Join(filepath.Dir(clean), "."+filepath.Base(clean)+".command"),
		line: j.CommandLine(),
	}
	b.then, _ = safefile.ReadFile(b.path, 2*card.MaxBase)
	if b.then == nil || resume.Value.String() != "true" || !b.unfinished() {
		_ = b.write([]byte(b.line + "\n"))
	}
	return b
}

// write writes a note into the folder of the output, which the note is no reason to make.
func (b *begun) write(text []byte) error {
	if _, err := os.Stat(filepath.Dir(b.path)); err != nil {
		return err
	}
	return safefile.WriteFile(b.path, text, 0o644)
}

// end keeps the note of work that is left unfinished. A run that was refused leaves what it found: the work is another
// run's, which may be at it just now.
func (b *begun) end(err error) {
	if b.path == "" {
		return
	}

	refused := err != nil && (IsUsage(err) || errors.Is(err, stage.ErrBusy))
	switch {
	case refused && b.then != nil:
		_ = b.write(b.then)
	case !refused && err != nil && b.unfinished():
		if _, there := os.Stat(b.path); there != nil { // the folder was not there at the beginning
			_ = b.write([]byte(b.line + "\n"))
		}
	default:
		if at, err := os.Lstat(b.path); err == nil && at.Mode().IsRegular() { // a folder there is somebody's
			_ = os.Remove(b.path)
		}
	}
}

// unfinished reports whether something is there to go on with: a hidden file or folder beside the output, as most verbs
// keep it, or a journal in it.
func (b *begun) unfinished() bool {
	dir, name := filepath.Split(b.path)
	hidden := strings.TrimSuffix(name, "command")
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Name() != name && strings.HasPrefix(e.Name(), hidden) {
			return true
		}
	}

	out := filepath.Join(dir, strings.TrimSuffix(hidden[1:], "."))
	_, err = os.Stat(filepath.Join(out, "journal.jsonl"))
	return err == nil
}
