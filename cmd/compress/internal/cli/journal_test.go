package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/stage"
)

type step struct{ Name string }

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j, err := OpenJournal[step](path, "compress test", "job")
	if err != nil {
		t.Fatal(err)
	}

	if err := j.Add("k", step{"wanda"}); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal[step](path, "compress test", "job"); !errors.Is(err, ErrBusy) {
		t.Errorf("while it is open: %v", err)
	}

	j.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for n := range len(whole) + 1 { // a crash after any byte
		if err := os.WriteFile(path, whole[:n], 0o666); err != nil {
			t.Fatal(err)
		}

		j, err := OpenJournal[step](path, "compress test", "job")
		if err != nil {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}

		if _, ok := j.Done["k"]; ok != (n == len(whole)) {
			t.Errorf("cut after %d bytes: step found: %v", n, ok)
		}

		j.Close()
	}

	if err := os.WriteFile(path, []byte("[]\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal[step](path, "compress test", "job"); err == nil {
		t.Error("a journal that is none was opened")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if j, err = OpenJournal[step](path, "compress test", "job"); err != nil {
		t.Fatal(err)
	}

	j.Close()
	if _, err := OpenJournal[step](path, "compress test", "another"); !errors.Is(err, ErrOtherJob) || !IsUsage(err) {
		t.Errorf("another job: %v", err)
	}
}

// TestJournalForm: the journals of finished comparisons and demos are added to by later builds, so that their form
// stays what it was, and damage is named by its line.
func TestJournalForm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	const old = `{"command":"compress test","job":"job"}` + "\n" + `{"key":"k","step":{"Name":"wanda"}}` + "\n"
	if err := os.WriteFile(path, []byte(old), 0o666); err != nil {
		t.Fatal(err)
	}

	j, err := OpenJournal[step](path, "compress test", "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Add("l", step{"ria"}); err != nil || j.Done["k"].Name != "wanda" {
		t.Errorf("%v: %v", j.Done, err)
	}
	j.Close()

	const added = old + `{"key":"l","step":{"Name":"ria"}}` + "\n"
	if text, err := os.ReadFile(path); err != nil || string(text) != added {
		t.Errorf("%s: %v", text, err)
	}

	if err := os.WriteFile(path, []byte(strings.Replace(added, `{"key":"k"`, `{"key:"k"`, 1)), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = OpenJournal[step](path, "compress test", "job")
	if !errors.Is(err, stage.ErrJournal) || !strings.Contains(err.Error(), "journal.jsonl:2: ") {
		t.Errorf("a damaged line: %v", err)
	}
}
