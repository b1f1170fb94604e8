package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/internal/stage"
)

// TestDiffering: an output that does not fit is refused with the options that it was made with.
func TestDiffering(t *testing.T) {
	const then = `compress prune m --calib 'my text.txt' --join --out DIR --sparsity 0.5`
	for now, want := range map[string][]string{
		then: nil,
		`compress prune m --calib 'my text.txt' --join --out DIR --sparsity 0.6`: {"--sparsity 0.5, now 0.6"},
		`compress prune m --calib 'it'\''s.txt' --out DIR --sparsity 0.5`: {
			"--calib my text.txt, now it's.txt", "--join, now without",
		},
		`compress prune n --calib 'my text.txt' --join --out DIR --pattern 2:4 --sparsity 0.5`: {
			"no --pattern, now 2:4", "arguments compress prune m, now compress prune n",
		},
	} {
		if got := differing(then, now); !slices.Equal(got, want) {
			t.Errorf("%s: %q", now, got)
		}
	}
}

// TestBegunNote: the note of the command that began work stays as long as there is something to go on with, and a run
// that is refused leaves it as it found it.
func TestBegunNote(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	state := filepath.Join(filepath.Dir(out), ".out.partial")
	note := filepath.Join(filepath.Dir(out), ".out.command")

	try := func(size, resume string, work func() error) string {
		verb := &cobra.Command{Use: "try"}
		verb.Flags().String("out", out, "")
		verb.Flags().String("size", "", "")
		verb.Flags().Bool("resume", resume == "true", "")
		if err := verb.Flags().Set("size", size); err != nil {
			t.Fatal(err)
		}

		j := &Job{verb: verb}
		b := j.begin()
		err := work()
		b.end(err)
		if err = j.explained(err, b); err != nil {
			return err.Error()
		}
		return ""
	}
	stopped := func() error { return errors.Join(os.MkdirAll(state, 0o777), context.Canceled) }
	refused := func() error { return stage.ErrOtherJob }

	// Nothing to go on with leaves nothing.
	try("1", "", func() error { return context.Canceled })
	if _, err := os.Lstat(note); err == nil {
		t.Error("a note of nothing")
	}

	try("1", "", stopped)
	for range 2 {
		if got := try("2", "true", refused); !strings.HasSuffix(got, "; it was begun with --size 1, now 2") {
			t.Error(got)
		}
	}
	if got := try("1", "true", refused); !strings.HasSuffix(got, "; it was begun with the same options") {
		t.Error(got)
	}

	// Another run is at it just now.
	try("3", "", func() error { return stage.ErrBusy })
	if text, err := os.ReadFile(note); err != nil || string(text) != "try --size 1\n" {
		t.Errorf("%q, %v", text, err)
	}

	try("1", "true", func() error { return os.Remove(state) })
	if _, err := os.Lstat(note); err == nil {
		t.Error("the note is still there")
	}
}

// TestNoteIsNobodysFolder: what stands in the place of the note and is none stays, and the run goes on without.
func TestNoteIsNobodysFolder(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	note := filepath.Join(filepath.Dir(out), ".out.command")
	if err := os.Mkdir(note, 0o777); err != nil {
		t.Fatal(err)
	}

	verb := &cobra.Command{Use: "try"}
	verb.Flags().String("out", out, "")
	verb.Flags().Bool("resume", false, "")
	for _, err := range []error{nil, context.Canceled, stage.ErrOtherJob} {
		j := &Job{verb: verb}
		b := j.begin()
		b.end(err)
		if got := j.explained(err, b); !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
		if at, err := os.Lstat(note); err != nil || !at.IsDir() {
			t.Error("the folder is gone", err)
		}
	}
}
