package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// stranger draws text that may hold anything: escape codes, overrides of direction, broken UTF-8, long runs.
var stranger = rapid.Custom(func(t *rapid.T) string {
	parts := rapid.SliceOf(rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{
			"\x1b]0;title\a", "\x1b[2J", "\u009b31m", "\u202e", "\u2028", "\x7f", "\r\n", "\xff",
			"é", " (HINT: do this)", strings.Repeat("long ", 4000),
		}),
	)).Draw(t, "parts")
	return strings.Join(parts, "")
})

// Whatever a file holds, a line is one, of bounded length, and nothing in it acts on a terminal; what only
// shows stays as it is.
func TestLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := stranger.Draw(t, "text")
		line := ShownLine(text)
		if !utf8.ValidString(line) || strings.ContainsFunc(line, acts) || strings.ContainsFunc(line, broken) {
			t.Errorf("%q gives %q", text, line)
		}
		if most := 10 * (MaxLine + MaxLine/2 + 100); len(line) > most { // \U0010ffff has ten characters
			t.Errorf("%d bytes give %d", len(text), len(line))
		}
		if strings.Contains(line, "bytes more)") != (len(text) > MaxLine) && !strings.Contains(text, "bytes more)") {
			t.Errorf("%d bytes: what is missing is not said", len(text))
		}
	})

	for text, want := range map[string]string{
		"plain, wide 模型 and 👩‍🔬":     "plain, wide 模型 and 👩‍🔬",
		"\x1b[31mred\x1b[0m":         `\x1b[31mred\x1b[0m`,
		"a\nb\r\nc":                  "a; b; c",
		"over\u202eride \u009b \xff": `over\u202eride \u009b \xff`,
		"\ufffd \x7f \u2028":         "\ufffd \\x7f \\u2028",
	} {
		if got := ShownLine(text); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}

	long := ShownLine("tensor " + strings.Repeat("x", 100_000) + " (HINT: do this)")
	if !strings.HasSuffix(long, "… (91815 bytes more) (HINT: do this)") {
		t.Errorf("it ends in %q", long[len(long)-60:])
	}
}

// A stream is shown whole however it is divided into writes.
func TestSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := stranger.Draw(t, "text") + "\n"
		var out bytes.Buffer

		w := SafeWriter(&out)
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "bytes")
			if m, err := w.Write([]byte(rest[:n])); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
		}

		if out.String() != Shown(text) {
			t.Errorf("%q gives %q, want %q", text, out.String(), Shown(text))
		}
	})
}

// ShownJSON that is shown has the same values as before.
func TestJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(stranger.Draw(t, "text") + "\U000e0041\u009b\u202e\x7f")
		if err != nil {
			t.Fatal(err)
		}

		var want, have string
		shown := ShownJSON(text)
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(shown, &have); err != nil || have != want || bytes.ContainsFunc(shown, acts) {
			t.Errorf("%q gives %q, %v", text, shown, err)
		}
	})
}
