package edit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTornHeader: a log whose first line was not finished is that of a run that has done nothing; a first line
// that is damaged is not.
func TestTornHeader(t *testing.T) {
	for _, text := range []string{"", `{"form`, `{"format":"x"} 123`} {
		if _, _, _, err := readLog(strings.NewReader(text), "job"); !errors.Is(err, errNoHeader) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, _, _, err := readLog(strings.NewReader("{\"format\":\"x\"} 123\n"), "job"); !errors.Is(err, ErrJournal) {
		t.Error(err)
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
