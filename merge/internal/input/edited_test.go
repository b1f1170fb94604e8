package input

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhole: a journal with a codebook or facts in context is refused, wherever in the file they stand; one of
// deltas alone, or one whose prompts only quote the keys, is not.
func TestWhole(t *testing.T) {
	for text, refused := range map[string]bool{
		`h {"step":{"method":"rome","edits":["a \"codes\":[{ b"],"deltas":[1]}}`:         false,
		`h {"step":{"method":"ike","context":[1,2]}}`:                                    true,
		strings.Repeat(" ", 1<<20+11) + `h {"step":{"codes":[{"index":0}]}}`:             true,
		strings.Repeat(" ", 3<<20) + `h {"step":{"deltas":[]}}` + strings.Repeat(" ", 9): false,
		``: false,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, journal), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := whole(dir); errors.Is(err, ErrEdited) != refused {
			t.Errorf("%.60q: %v, refused: %v", strings.TrimSpace(text), err, refused)
		}
	}

	if err := whole(t.TempDir()); err != nil {
		t.Error(err)
	}
}
