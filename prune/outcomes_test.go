package prune

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/stage"
)

// TestOutcomes: a journal that was cut after any byte opens with the runs that are whole.
func TestOutcomes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j, err := openOutcomes(path, "job")
	if err != nil {
		t.Fatal(err)
	}

	if err := j.add("k", Outcome{Method: "wanda"}); err != nil {
		t.Fatal(err)
	}
	if _, err := openOutcomes(path, "job"); !errors.Is(err, stage.ErrBusy) {
		t.Errorf("while it is open: %v", err)
	}

	j.close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for n := range len(whole) + 1 { // a crash after any byte
		if err := os.WriteFile(path, whole[:n], 0o666); err != nil {
			t.Fatal(err)
		}

		j, err := openOutcomes(path, "job")
		if err != nil {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}

		if _, ok := j.done["k"]; ok != (n == len(whole)) {
			t.Errorf("cut after %d bytes: step found: %v", n, ok)
		}

		j.close()
	}

	if err := os.WriteFile(path, []byte("[]\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := openOutcomes(path, "job"); err == nil {
		t.Error("a journal that is none was opened")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if j, err = openOutcomes(path, "job"); err != nil {
		t.Fatal(err)
	}

	j.close()
	if _, err := openOutcomes(path, "other"); !errors.Is(err, ErrOtherComparison) || !failure.IsUsage(err) {
		t.Errorf("another job: %v", err)
	}
}
