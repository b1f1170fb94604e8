package prepare

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/modelcompress/compress/lm/tokenizer/internal/chars"
	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
)

// unicodeForm is one of the four Unicode normalization forms.
type unicodeForm struct{ form norm.Form }

// decompose is NFD.
var decompose = unicodeForm{norm.NFD}

func newUnicodeForm(n *config.Node) Normalizer {
	return unicodeForm{map[string]norm.Form{
		"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD,
	}[n.Kind]}
}

// Normalize implements Normalizer.
func (u unicodeForm) Normalize(p Piece, track bool) (Piece, error) {
	if isASCII(p.Text) || u.form.IsNormalString(p.Text) {
		return p, nil
	}
	if !track {
		return Piece{Text: u.apply(p.Text), off: p.off, First: p.First}, nil
	}

	e := edit(p, track)
	for i := 0; i < len(p.Text); {
		n := u.form.NextBoundaryInString(p.Text[i:], true)
		n = u.wholeRun(p.Text, i, i+max(n, 1))
		part := p.Text[i : i+n]
		if out := u.apply(part); out == part {
			e.keep(i, i+n)
		} else {
			e.put(out, i, i+n)
		}

		i += n
	}

	return e.piece(), nil
}

// wholeRun returns the length from i to the end of the marks that follow j: boundaries of golang.org/x/text may lie
// inside long runs of marks.
func (u unicodeForm) wholeRun(s string, i, j int) int {
	for j < len(s) {
		props := u.form.PropertiesString(s[j:])
		if props.CCC() == 0 && props.BoundaryBefore() {
			break
		}
		j += max(props.Size(), 1)
	}
	return j - i
}

// apply normalizes a text. Characters that the format's reference implementation does not know yet are to it letters
// without a decomposition, so that the parts around them are normalized on their own.
func (u unicodeForm) apply(s string) string {
	var out []byte
	from := 0
	for i, r := range s {
		if u.late(r) {
			out = append(append(out, u.plain(s[from:i])...), string(r)...)
			from = i + utf8.RuneLen(r)
		}
	}

	if from == 0 {
		return u.plain(s)
	}

	return string(append(out, u.plain(s[from:])...))
}

// firstLate is the first character that late can be true for.
const firstLate = 0x07FD

func (u unicodeForm) late(r rune) bool {
	if r < firstLate {
		return false
	}
	return unicode.Is(chars.LateMarks, r) ||
		(u.form == norm.NFKC || u.form == norm.NFKD) && unicode.Is(chars.LateCompat, r)
}

func (u unicodeForm) plain(s string) string {
	if out := u.form.String(s); !hasMark(s, out) {
		return out
	}
	return u.unlimited(s)
}

// unlimited is the normalization algorithm itself (Unicode Standard Annex 15), for texts with more than 30 marks in a
// row, where golang.org/x/text breaks the run with a joiner.
func (u unicodeForm) unlimited(s string) string {
	split := norm.NFD
	if u.form == norm.NFKC || u.form == norm.NFKD {
		split = norm.NFKD
	}

	var runes []rune
	for _, r := range s {
		runes = append(runes, []rune(split.String(string(r)))...)
	}

	sortMarks(runes)
	if u.form == norm.NFC || u.form == norm.NFKC {
		runes = compose(runes)
	}

	return string(runes)
}

func combiningClass(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }

// sortMarks puts each run of marks in the order of their combining classes.
func sortMarks(runes []rune) {
	for i := 0; i < len(runes); {
		j := i
		for j < len(runes) && combiningClass(runes[j]) != 0 {
			j++
		}
		slices.SortStableFunc(runes[i:j],
			func(a, b rune) int { return int(combiningClass(a)) - int(combiningClass(b)) })
		i = j + 1
	}
}

// compose joins marks with the starter in front of them where a composed character exists.
func compose(runes []rune) []rune {
	out := runes[:0]
	starter, last := -1, uint8(0)
	for _, r := range runes {
		class := combiningClass(r)
		if starter >= 0 && (len(out) == starter+1 || last < class) {
			if c := []rune(norm.NFC.String(string([]rune{out[starter], r}))); len(c) == 1 {
				out[starter] = c[0]
				continue
			}
		}

		if class == 0 {
			starter = len(out)
		}

		last = class
		out = append(out, r)
	}

	return out
}
