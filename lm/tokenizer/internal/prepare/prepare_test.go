package prepare

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/pattern"
)

// value is the text of a component as a value.
func value(t testing.TB, text string) config.Value {
	t.Helper()
	c, err := config.NewCursor(text)
	if err != nil {
		t.Fatal(err)
	}

	v, err := c.Raw()
	if err != nil {
		t.Fatal(err)
	}

	return v
}

// split runs pre-tokenizers over a text, with or without offsets.
func split(t testing.TB, list []Splitter, text string, track bool) (out []string, spans []Span) {
	t.Helper()
	var step func(i int) func(Piece) error
	step = func(i int) func(Piece) error {
		if i == len(list) {
			return func(p Piece) error {
				out, spans = append(out, p.Text), append(spans, p.Span(0, len(p.Text)))
				return nil
			}
		}
		return func(p Piece) error { return list[i].Split(p, track, step(i+1)) }
	}

	if err := step(0)(Piece{Text: text, First: true}); err != nil {
		t.Fatal(err)
	}

	return out, spans
}

func TestSplitters(t *testing.T) {
	for _, c := range []struct{ spec, text, want string }{
		{`{"type":"Whitespace"}`, "don't stop", "don|'|t|stop"},
		{`{"type":"WhitespaceSplit"}`, " don't  stop", "don't|stop"},
		{`{"type":"BertPreTokenizer"}`, "Hey, you!", "Hey|,|you|!"},
		{`{"type":"Punctuation","behavior":"Contiguous"}`, "a!?b", "a|!?|b"},
		{`{"type":"Digits","individual_digits":true}`, "a12b", "a|1|2|b"},
		{`{"type":"Digits"}`, "a12b", "a|12|b"},
		{`{"type":"CharDelimiterSplit","delimiter":"-"}`, "a-b--c", "a|b|c"},
		{`{"type":"FixedLength","length":2}`, "aébcd", "aé|bc|d"},
		{`{"type":"UnicodeScripts"}`, "abc かな漢 def", "abc |かな漢 |def"},
		{`{"type":"Metaspace"}`, "a b  c", "▁a|▁b|▁|▁c"},
		{`{"type":"Metaspace","prepend_scheme":"never"}`, "a b", "a|▁b"},
		{`{"type":"Metaspace","prepend_scheme":"first","split":false}`, "a b", "▁a▁b"},
		{`{"type":"Metaspace","replacement":"_","add_prefix_space":false}`, "a b", "a|_b"},
		{`{"type":"ByteLevel","add_prefix_space":true}`, "a é", "Ġa|ĠÃ©"},
		{`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, "a b\n", "aĠbĊ"},
		{`{"type":"Split","pattern":{"String":"x"},"behavior":"Removed"}`, "axxb", "a|b"},
		{`{"type":"Split","pattern":{"String":"x"},"behavior":"Isolated"}`, "axxb", "a|x|x|b"},
		{`{"type":"Split","pattern":{"String":"x"},"behavior":"MergedWithPrevious"}`, "axxb", "ax|x|b"},
		{`{"type":"Split","pattern":{"String":"x"},"behavior":"MergedWithNext"}`, "axxb", "a|x|xb"},
		{`{"type":"Split","pattern":{"String":"x"},"behavior":"Contiguous"}`, "axxb", "a|xx|b"},
		{`{"type":"Split","pattern":{"Regex":"[^x]"},"behavior":"Removed","invert":true}`, "axxb", "a|b"},
		{`{"type":"Split","pattern":{"String":""},"behavior":"Isolated"}`, "ab", "ab"},
		{`{"type":"Split","pattern":{"Regex":"(?=b)"},"behavior":"Isolated"}`, "abab", "a|ba|b"},
		{`{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Digits"}]}`, "a1 b", "a|1|b"},
	} {
		list, err := Splitters(value(t, c.spec))
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}

		for _, track := range []bool{false, true} {
			if got, _ := split(t, list, c.text, track); strings.Join(got, "|") != c.want {
				t.Errorf("%s on %q: got %q, want %q", c.spec, c.text, strings.Join(got, "|"), c.want)
			}
		}
	}
}

func TestNormalizers(t *testing.T) {
	for _, c := range []struct{ spec, text, want string }{
		{`{"type":"Lowercase"}`, "AÉİß", "aéi\u0307ß"},
		{`{"type":"StripAccents"}`, "e\u0301a\u1cf2", "ea"},
		{`{"type":"BertNormalizer"}`, "a\u1734\u08e2\u0891b", "a\u08e2\u0891b"},
		{`{"type":"Strip","strip_left":true,"strip_right":true}`, " a b\u00a0", "a b"},
		{`{"type":"Strip","strip_left":false,"strip_right":true}`, " a ", " a"},
		{`{"type":"Prepend","prepend":"▁"}`, "a", "▁a"},
		{`{"type":"Prepend","prepend":"▁"}`, "", ""},
		{`{"type":"Replace","pattern":{"String":" "},"content":"__"}`, "a b c", "a__b__c"},
		{`{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}`, "a   b", "a b"},
		{`{"type":"Replace","pattern":{"Regex":"b*"},"content":"-"}`, "abbc", "-a-c-"},
		{`{"type":"NFC"}`, "e\u0301", "é"},
		{`{"type":"NFD"}`, "é", "e\u0301"},
		{`{"type":"NFKC"}`, "ﬁ①", "fi1"},
		{`{"type":"NFKD"}`, "ﬁé", "fie\u0301"},
		{`{"type":"Nmt"}`, "a\tb\u200bc\x01", "a b c"},
		{`{"type":"ByteLevel"}`, "a é", "aĠÃ©"},
		{`{"type":"BertNormalizer"}`, "Äb\x00\t中\ufffd", "ab  中 "},
		{`{"type":"BertNormalizer","lowercase":false,"handle_chinese_chars":false}`, "Äb中", "Äb中"},
		{`{"type":"Precompiled","precompiled_charsmap":null}`, "a", "a"},
		{`{"type":"Sequence","normalizers":[{"type":"Lowercase"},{"type":"NFD"}]}`, "É", "e\u0301"},
	} {
		list, err := Normalizers(value(t, c.spec))
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}

		for _, track := range []bool{false, true} {
			p := Piece{Text: c.text, First: true}
			for _, n := range list {
				if p, err = n.Normalize(p, track); err != nil {
					t.Fatal(err)
				}
			}

			if p.Text != c.want {
				t.Errorf("%s on %q: got %q, want %q", c.spec, c.text, p.Text, c.want)
			}
		}
	}
}

func TestRefuses(t *testing.T) {
	for _, c := range []struct {
		spec string
		want error
	}{
		{`{"type":"Magic"}`, config.ErrUnsupported},
		{`{}`, config.ErrUnsupported},
		{`[]`, config.ErrSyntax},
		{`{"type":"Split","pattern":{"Regex":"(a)\\1"},"behavior":"Isolated"}`, config.ErrUnsupported},
		{`{"type":"Split","pattern":{},"behavior":"Isolated"}`, config.ErrSyntax},
		{`{"type":"Split","behavior":"Isolated"}`, config.ErrSyntax},
		{`{"type":"Split","pattern":{"String":"a"},"behavior":"Shredded"}`, config.ErrUnsupported},
		{`{"type":"Metaspace","replacement":"ab"}`, config.ErrSyntax},
		{`{"type":"Metaspace","prepend_scheme":"twice"}`, config.ErrUnsupported},
		{`{"type":"Digits","individual_digits":1}`, config.ErrSyntax},
		{`{"type":"FixedLength","length":0}`, config.ErrSyntax},
		{`{"type":"Sequence","pretokenizers":[{"type":"Magic"}]}`, config.ErrUnsupported},
		{`{"type":"Sequence","pretokenizers":3}`, config.ErrSyntax},
		{strings.Repeat(`{"type":"Sequence","pretokenizers":[`, 20) + strings.Repeat(`]}`, 20), config.ErrSyntax},
	} {
		if _, err := Splitters(value(t, c.spec)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v", c.spec, err)
		}
	}

	for _, spec := range []string{
		`{"type":"Precompiled","precompiled_charsmap":"%"}`, `{"type":"Precompiled","precompiled_charsmap":"AA=="}`,
		`{"type":"Precompiled","precompiled_charsmap":"/////w=="}`, `{"type":"Prepend"}`,
	} {
		if _, err := Normalizers(value(t, spec)); !errors.Is(err, config.ErrSyntax) {
			t.Errorf("%s: got %v", spec, err)
		}
	}
}

// anyText draws texts with much of what patterns tell apart.
func anyText() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.OneOf(
			rapid.SampledFrom([]string{
				"a", "Z", "é", "ſ", "中", "1", "²", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2028", "'s", "'LL", "'",
				"!",
				"/", "\u0301", "ǅ", "😀", "١", "'ſ", "’s", "\u200d", "_",
			}),
			rapid.StringN(0, 3, 8),
		), 0, 12).Draw(t, "parts")
		return strings.ToValidUTF8(strings.Join(parts, ""), "")
	})
}

// TestScanners holds the scanners to the patterns that they stand for.
func TestScanners(t *testing.T) {
	for source, scan := range scanners() {
		p, err := pattern.Compile(source)
		if err != nil {
			t.Fatal(err)
		}

		rapid.Check(t, func(t *rapid.T) {
			text := anyText().Draw(t, "text")
			m := p.Over(text)
			defer m.Done()

			for i := 0; i < len(text); {
				start, end, err := m.Find(i)
				if got := scan(text, i); err != nil || start != i || got != end {
					t.Fatalf("%.20s… on %q at %d: got %d, want %d to %d, %v", source, text, i, got, start, end, err)
				}
				i = end
			}
		})
	}
}

// TestTracking checks that offsets don't change a result, and that they are in order and in bounds.
func TestTracking(t *testing.T) {
	for _, spec := range []string{
		`{"type":"NFKC"}`, `{"type":"NFD"}`, `{"type":"BertNormalizer"}`, `{"type":"Nmt"}`, `{"type":"ByteLevel"}`,
		`{"type":"Replace","pattern":{"Regex":"\\s+"},"content":""}`,
	} {
		list, err := Normalizers(value(t, spec))
		if err != nil {
			t.Fatal(err)
		}

		rapid.Check(t, func(t *rapid.T) {
			text := anyText().Draw(t, "text")
			p, err := list[0].Normalize(Piece{Text: text, First: true}, false)
			if err != nil {
				t.Fatal(err)
			}

			q, err := list[0].Normalize(Piece{Text: text, First: true}, true)
			if err != nil || p.Text != q.Text || p.First != q.First {
				t.Fatalf("%s on %q: got %q with offsets, %q without", spec, text, q.Text, p.Text)
			}

			for i := range len(q.Text) {
				if sp := q.Span(i, i+1); sp.Start > sp.End || sp.End > len(text) {
					t.Fatalf("%s on %q: byte %d from %v", spec, text, i, sp)
				}
			}
		})
	}
}

// TestUnlimited compares the textbook algorithm with golang.org/x/text, where that doesn't break runs of marks.
func TestUnlimited(t *testing.T) {
	for _, form := range []norm.Form{norm.NFC, norm.NFD, norm.NFKC, norm.NFKD} {
		rapid.Check(t, func(t *rapid.T) {
			s := rapid.SliceOfN(rapid.OneOf(rapid.Rune(), rapid.RuneFrom([]rune("aeo\u0301\u0316\u0327\u0308한각ﬁ"))),
				0, 12).Draw(t, "text")
			text := strings.ToValidUTF8(string(s), "")
			if got, want := (unicodeForm{form}).unlimited(text), form.String(text); got != want {
				t.Fatalf("%d of %+q: got %+q, want %+q", form, text, got, want)
			}
		})
	}

	marks := strings.Repeat("\u0301", 100)
	if got := (unicodeForm{norm.NFC}).apply("e" + marks); got != "é"+marks[2:] {
		t.Errorf("long run: got %+q", got)
	}
}

func TestRepair(t *testing.T) {
	for in, want := range map[string]string{
		"a\xffb": "a\ufffdb", "\xe4\xb8": "\ufffd", "\xe4\xb8x": "\ufffdx", "\xf0\x9f\x98": "\ufffd",
		"\xc0\x80":     "\ufffd\ufffd",
		"\xed\xa0\x80": "\ufffd\ufffd\ufffd", "ok é": "ok é", "\xf4\x90\x80\x80": "\ufffd\ufffd\ufffd\ufffd",
	} {
		if got := Repair(Piece{Text: in}, true); got.Text != want || !utf8.ValidString(got.Text) {
			t.Errorf("%q: got %q, want %q", in, got.Text, want)
		}
	}
}

func TestByteRunes(t *testing.T) {
	seen := map[rune]bool{}
	for b, r := range ByteRunes() {
		if seen[r] {
			t.Errorf("%q stands for two bytes", r)
		}

		seen[r] = true
		if s, ok := UnmapBytes(string(r)); !ok || s != string([]byte{byte(b)}) {
			t.Errorf("byte %d: got %q back", b, s)
		}
	}

	if _, ok := UnmapBytes("中"); ok {
		t.Error("中 stands for no byte")
	}
	if got := string(AppendMapped(nil, "a \n")); got != "aĠĊ" {
		t.Errorf("got %q", got)
	}
}

func TestSpans(t *testing.T) {
	list, err := Splitters(value(t, `{"type":"Metaspace"}`))
	if err != nil {
		t.Fatal(err)
	}
	_, spans := split(t, list, "ab cd", true)
	if want := []Span{{0, 2}, {2, 5}}; !slices.Equal(spans, want) {
		t.Errorf("got %v, want %v", spans, want)
	}
}
