package gp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestParseLines: formulas in both notations, comments, repetitions and ends of lines.
func TestParseLines(t *testing.T) {
	tree := `{"data": "mul", "left": {"data": "W"}, "right": {"data": "X"}}`
	text := "\ufeff# of others\r\n\nW*sqrt(X) # Wanda\r\n  " + tree + "\nX*W\n\tsqr(W)*G"
	list, err := PaperGrammar().ParseLines(text)
	if got := fmt.Sprint(list); err != nil || got != "[W*sqrt(X) W*X G*sqr(W)]" {
		t.Errorf("%s, %v", got, err)
	}
	if list, err := PaperGrammar().ParseLines("\n# none\n"); len(list) != 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
}

// TestParseLinesFaults: what is wrong, and where.
func TestParseLinesFaults(t *testing.T) {
	for text, want := range map[string]struct {
		where string
		is    error
	}{
		"W*X\nW*sqrt(":    {"line 2, column 8:", ErrSyntax},
		"W*Y":             {"line 1, column 3:", ErrUnknown},
		"\n\n{\"data\":":  {"line 3, byte ", ErrSyntax},
		"W*X\n\nW*W":      {"line 3: ", ErrOnlyW},
		"W":               {"line 1: ", ErrOnlyW},
		"sqrt(X)":         {"line 1: ", ErrNoWeight},
		"W*H":             {"line 1: ", ErrForbidden},
		"(W - W)*X # W-W": {"line 1: ", ErrConstant},
	} {
		_, err := PaperGrammar().ParseLines(text)
		if !errors.Is(err, want.is) || !strings.HasPrefix(fmt.Sprint(err), want.where) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzParseLines: what is read is allowed, each once, and is read again from what is written of it.
func FuzzParseLines(f *testing.F) {
	f.Add("W*sqrt(X)\n{\"data\": \"W\"} # tree\nabs(W)*G")
	f.Fuzz(func(t *testing.T, text string) {
		g := FullGrammar()
		list, err := g.ParseLines(text)
		if err != nil {
			return
		}

		written := ""
		for _, e := range list {
			written += e.String() + "\n"
		}
		again, err := g.ParseLines(written)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(list) {
			t.Errorf("%q: %v, then %v, %v", text, list, again, err)
		}
	})
}
