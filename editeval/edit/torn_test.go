package edit

import (
	"errors"
	"strings"
	"testing"
)

// TestTornHeader: a log whose first line was not finished is that of a run that has done nothing; a first line that is damaged is not.
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
