package edit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/stage"
)

// TestTornHeader: a log whose first line was not finished is that of a run that has done nothing; a first line
// that is damaged is not.
func TestTornHeader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for text, damaged := range map[string]bool{
		"": false, `{"form`: false, `{"format":"x"} 123`: false, "{\"format\":\"x\"} 123\n": true,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		u, err := openLog(path, "job")
		if damaged {
			if !errors.Is(err, ErrJournal) {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}

		if err != nil || u.good != 0 {
			t.Fatalf("%q: %+v, %v", text, u, err)
		}
		if err := u.file.Close(); err != nil {
			t.Fatal(err)
		}

		l, notes, err := ResumeLog(path, "job", &Editing{})
		if err != nil || len(notes) != 0 || l.Close() != nil {
			t.Errorf("%q, resumed: %q, %v", text, notes, err)
		}
	}
}

// TestLogIsLocked: two runs with the same output do not write into one log.
func TestLogIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := StartLog(path, "job", &Editing{})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := StartLog(path, "job", &Editing{}); !errors.Is(err, stage.ErrBusy) {
		t.Errorf("begun beside it: %v", err)
	}
	if _, _, err := ResumeLog(path, "job", &Editing{}); !errors.Is(err, stage.ErrBusy) {
		t.Errorf("resumed beside it: %v", err)
	}
	if err := DropLog(path, "job"); !errors.Is(err, stage.ErrBusy) {
		t.Errorf("dropped beside it: %v", err)
	}

	if err := l.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestDropLog: of logs beside a finished output only those of the finished job go, and those of which nothing
// was written.
func TestDropLog(t *testing.T) {
	for _, c := range []struct {
		job, text string
		gone      bool
	}{{"mine", "", true}, {"mine", "mine", true}, {"mine", "other", false}} {
		path := filepath.Join(t.TempDir(), "log")
		if c.text == "" {
			if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			l, err := StartLog(path, c.text, &Editing{})
			if err != nil {
				t.Fatal(err)
			}

			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}

		if err := DropLog(path, c.job); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) != c.gone {
			t.Errorf("%+v: %v", c, err)
		}
		if err := DropLog(filepath.Join(t.TempDir(), "none"), c.job); err != nil {
			t.Error(err)
		}
	}
}
