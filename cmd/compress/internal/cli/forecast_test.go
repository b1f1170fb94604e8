package cli

import (
	"testing"
	"time"

	"github.com/modelcompress/compress/lm/corpus"
)

// TestRoughTime: two digits at most, in the unit that one would say.
func TestRoughTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		34567 * time.Millisecond: "35 s", 99 * time.Second: "99 s", 14*time.Minute + 20*time.Second: "14 min",
		3*time.Hour + 29*time.Minute: "3.5 h", 30 * time.Hour: "30 h", 200 * time.Hour: "8 days",
	} {
		if got := RoughTime(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

// TestShare: parts have their names, or are fractions.
func TestShare(t *testing.T) {
	for x, want := range map[float64]string{1. / 16: "a sixteenth", .125: "an eighth", .5: "half", 1. / 37: "1/37"} {
		if got := share(x); got != want {
			t.Errorf("%g is %q, want %q", x, got, want)
		}
	}
}

// TestWindowsText: equal sequences are said as one product, others by their sum.
func TestWindowsText(t *testing.T) {
	w := corpus.Windows{IDs: [][]int32{{1, 2}, {3, 4}}, SeqLen: 2}
	if got := windows(w, Tokens(w)); got != "2 × 2 tokens" {
		t.Error(got)
	}
	w.IDs[1] = w.IDs[1][:1]
	if got := windows(w, Tokens(w)); got != "2 sequences of 3 tokens in all" {
		t.Error(got)
	}
}
