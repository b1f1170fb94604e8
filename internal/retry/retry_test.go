package retry

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The header has seconds or a date; anything else says nothing.
func TestAfter(t *testing.T) {
	at := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	if d := After(at); d < 59*time.Minute || d > time.Hour {
		t.Errorf("%s is in %v", at, d)
	}
	past := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)
	for text, want := range map[string]time.Duration{
		"7": 7 * time.Second, "0": 0, past: 0, "soon": 0, "": 0, "-1": 0, "1.5": 0, "99999999999999": 0,
	} {
		if d := After(text); d != want {
			t.Errorf("%q: %v, want %v", text, d, want)
		}
	}
}

// What a server says is one line of bounded length that cannot steer a terminal.
func TestSaid(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		" a\r\n\tb ":             "a b",
		"red \x1b[31malert\x07":  "red [31malert",
		"\xffx":                  "�x",
		strings.Repeat("a", 201): strings.Repeat("a", 200) + "…",
		strings.Repeat("é", 101): strings.Repeat("é", 100) + "…",
	} {
		if have := Said(text); have != want {
			t.Errorf("%q: %q, want %q", text, have, want)
		}
	}
}

// An interrupt ends waiting.
func TestSleep(t *testing.T) {
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := Sleep(ctx, time.Hour); !errors.Is(err, gone) {
		t.Error(err)
	}
	if err := Sleep(t.Context(), 0); err != nil {
		t.Error(err)
	}
}
