package prepare

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// cut is a stretch of a text, and whether the pattern matched it.
type cut struct {
	text  string
	match bool
}

// behave joins the matches of a pattern and what is between them as the behaviours of a Split say, from their
// definitions.
func behave(behavior string, cuts []cut) (out []string) {
	switch behavior {
	case "Removed":
		for _, c := range cuts {
			if !c.match {
				out = append(out, c.text)
			}
		}
	case "Isolated":
		for _, c := range cuts {
			out = append(out, c.text)
		}
	case "Contiguous":
		for i, c := range cuts {
			if i > 0 && c.match == cuts[i-1].match {
				out[len(out)-1] += c.text
			} else {
				out = append(out, c.text)
			}
		}
	case "MergedWithPrevious":
		before := false
		for _, c := range cuts {
			if c.match && !before && len(out) > 0 {
				out[len(out)-1] += c.text
			} else {
				out = append(out, c.text)
			}
			before = c.match
		}
	case "MergedWithNext":
		behind := false
		for _, c := range slices.Backward(cuts) {
			if c.match && !behind && len(out) > 0 {
				out[len(out)-1] = c.text + out[len(out)-1]
			} else {
				out = append(out, c.text)
			}
			behind = c.match
		}
		slices.Reverse(out)
	}
	return out
}

// TestBehaviors: every behaviour of a Split, for matches anywhere, inverted too; with offsets each piece is the text
// that its span says.
func TestBehaviors(t *testing.T) {
	for _, pattern := range []string{"x", "x+", "[xy]", "xy|z"} {
		re := regexp.MustCompile(pattern)
		for _, behavior := range []string{"Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"} {
			for _, invert := range []bool{false, true} {
				list, err := Splitters(value(t, fmt.Sprintf(
					`{"type":"Split","pattern":{"Regex":%q},"behavior":%q,"invert":%v}`, pattern, behavior, invert)))
				if err != nil {
					t.Fatal(err)
				}

				rapid.Check(t, func(t *rapid.T) {
					text := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z", "é", " "}), 0, 9).
						Draw(t, "text"), "")

					var cuts []cut
					at := 0
					for _, m := range re.FindAllStringIndex(text, -1) {
						if m[0] > at {
							cuts = append(cuts, cut{text[at:m[0]], invert})
						}
						cuts = append(cuts, cut{text[m[0]:m[1]], !invert})
						at = m[1]
					}
					if at < len(text) {
						cuts = append(cuts, cut{text[at:], invert})
					}

					want := behave(behavior, cuts)
					var got []string
					err := list[0].Split(Piece{Text: text, First: true}, true, func(p Piece) error {
						got = append(got, p.Text)
						if s := p.Span(0, len(p.Text)); text[s.Start:s.End] != p.Text {
							t.Fatalf("%q: %v is not %q", text, s, p.Text)
						}
						return nil
					})
					if err != nil || !slices.Equal(got, want) {
						t.Fatalf("%s, %s, inverted %v, of %q: %q, want %q, %v", pattern, behavior, invert, text, got,
							want, err)
					}
				})
			}
		}
	}
}

// TestByteLevelComesBack: the pieces of a byte-level splitter, as bytes again, are the text, with the space that is put
// before it where it has none.
func TestByteLevelComesBack(t *testing.T) {
	for _, prefix := range []bool{false, true} {
		list, err := Splitters(value(t, fmt.Sprintf(`{"type":"ByteLevel","add_prefix_space":%v}`, prefix)))
		if err != nil {
			t.Fatal(err)
		}

		rapid.Check(t, func(t *rapid.T) {
			text := "a" + anyText().Draw(t, "text") // pieces are never empty
			if rapid.Bool().Draw(t, "space") {
				text = " " + text
			}

			var back strings.Builder
			err := list[0].Split(Piece{Text: text, First: true}, false, func(p Piece) error {
				s, ok := UnmapBytes(p.Text)
				if !ok || s == "" {
					t.Fatalf("%q: the piece %q stands for no bytes", text, p.Text)
				}
				back.WriteString(s)
				return nil
			})

			want := text
			if prefix && !strings.HasPrefix(text, " ") {
				want = " " + text
			}
			if err != nil || back.String() != want {
				t.Fatalf("%q comes back as %q, %v", want, back.String(), err)
			}
		})
	}
}

// TestEditor: what an edited piece keeps comes from where it was, what is new from what it stands for; pieces of pieces
// have the spans of the whole.
func TestEditor(t *testing.T) {
	p := Piece{Text: "0123456789", First: true}
	e := edit(p, true)
	e.keep(0, 2)
	e.put("abc", 2, 4) // for "23"
	e.put("!", 6, 6)   // new, before 6
	e.keep(6, 10)
	e.put("?", 10, 10) // new, at the end
	q := e.piece()
	if q.Text != "01abc!6789?" || !q.First {
		t.Fatalf("%+v", q)
	}

	for at, want := range map[[2]int]Span{
		{0, 2}: {0, 2}, {2, 3}: {2, 4}, {2, 5}: {2, 4}, {1, 4}: {1, 4}, {5, 6}: {6, 7}, {6, 10}: {6, 10},
		{10, 11}: {9, 10}, {3, 3}: {},
	} {
		if got := q.Span(at[0], at[1]); got != want {
			t.Errorf("%v comes from %v, want %v", at, got, want)
		}
	}

	part := q.Slice(2, 8)
	if part.Text != "abc!67" || part.First || part.Span(0, 3) != (Span{2, 4}) || part.Span(4, 6) != (Span{6, 8}) {
		t.Errorf("%+v, %v, %v", part, part.Span(0, 3), part.Span(4, 6))
	}

	plain := p.Slice(3, 7)
	if plain.Span(1, 2) != (Span{4, 5}) || plain.First || !p.Slice(0, 1).First {
		t.Errorf("%+v", plain)
	}

	// What is dropped at the front takes the beginning of the input with it.
	e = edit(p, false)
	e.keep(1, 10)
	if q := e.piece(); q.First || q.Text != "123456789" {
		t.Errorf("%+v", q)
	}
}
