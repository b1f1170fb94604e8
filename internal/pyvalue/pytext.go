package pyvalue

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Lower and Upper are str.Lower() and str.Upper(): letters that change into several do, and a sigma at the end
// of a word is the final one.
func Lower(s string) string { return cases.Lower(language.Und).String(s) }

// Upper is str.upper(): letters that change into several do.
func Upper(s string) string { return cases.Upper(language.Und).String(s) }

// titleCase is the first letter of a word.
func titleCase(r rune) string { return cases.Title(language.Und, cases.NoLower).String(string(r)) }

// Capitalize is str.Capitalize(): the first character in title case, the others in lower case.
func Capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return titleCase(r) + strings.TrimPrefix(Lower(s), Lower(s[:n]))
}

// SwapCase is str.swapcase().
func SwapCase(s string) string {
	var b strings.Builder
	small := Lower(s) // as a whole, for what a sigma becomes depends on what stands around it; the size does not
	at := 0
	for _, r := range s {
		n := len(Lower(string(r)))
		switch {
		case IsUpper(r):
			b.WriteString(small[at : at+n])
		case IsLower(r):
			b.WriteString(Upper(string(r)))
		default:
			b.WriteRune(r)
		}

		at += n
	}

	return b.String()
}

// IsLower reports whether a character counts as a small letter, as superscript ones and small Roman numerals do.
func IsLower(r rune) bool { return unicode.In(r, unicode.Ll, unicode.Other_Lowercase) }

// IsUpper reports whether a character counts as a capital letter, as large Roman numerals do.
func IsUpper(r rune) bool { return unicode.In(r, unicode.Lu, unicode.Other_Uppercase) }

// TitleWords is Jinja's title: every word in lower case but its first letter. Words end at white space, hyphens
// and opening brackets.
func TitleWords(s string) string {
	var b strings.Builder
	between := func(r rune) bool { return IsSpace(r) || strings.ContainsRune("-({[<", r) }
	for s != "" {
		end := strings.IndexFunc(s, between)
		if end == 0 {
			_, n := utf8.DecodeRuneInString(s)
			b.WriteString(s[:n])
			s = s[n:]
			continue
		}

		if end < 0 {
			end = len(s)
		}

		_, n := utf8.DecodeRuneInString(s)
		b.WriteString(Upper(s[:n]) + Lower(s[n:end]))
		s = s[end:]
	}

	return b.String()
}

// Title is str.title(): a letter behind one is in lower case, any other in title case.
func Title(s string) string {
	var b strings.Builder
	small := Lower(s)
	if utf8.RuneCountInString(small) != utf8.RuneCountInString(s) {
		small = strings.ToLower(s)
	}

	after, rest := false, small
	for _, r := range s {
		_, n := utf8.DecodeRuneInString(rest)
		if after {
			b.WriteString(rest[:n])
		} else {
			b.WriteString(titleCase(r))
		}

		rest = rest[n:]
		after = IsLower(r) || IsUpper(r) || unicode.IsTitle(r)
	}

	return b.String()
}

// ParseInt is int(s, base); false where s is no such number.
func ParseInt(s string, base int) (n int64, ok bool, err error) {
	digits, negative := asciiDigits(Strip(s)), false
	if digits != "" && (digits[0] == '-' || digits[0] == '+') {
		negative, digits = digits[0] == '-', digits[1:]
	}

	if len(digits) > 2 && digits[0] == '0' {
		if b := map[byte]int{'x': 16, 'o': 8, 'b': 2}[digits[1]|0x20]; b != 0 && (base == 0 || base == b) {
			base, digits = b, strings.TrimPrefix(digits[2:], "_")
		}
	}

	if base == 0 {
		base = 10
		if len(digits) > 1 && digits[0] == '0' && strings.Trim(digits, "0_") != "" {
			return 0, false, nil
		}
	}

	plain := strings.ReplaceAll(digits, "_", "")
	if base < 2 || base > 36 || plain == "" || plain[0] == '-' || plain[0] == '+' || strings.HasPrefix(digits, "_") ||
		strings.HasSuffix(digits, "_") || strings.Contains(digits, "__") {
		return 0, false, nil
	}

	if negative {
		plain = "-" + plain
	}

	n, err = strconv.ParseInt(plain, base, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, true, ErrInt
	}

	return n, err == nil, nil
}

// asciiDigits replaces the digits of other scripts, which Python reads too.
func asciiDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf || !unicode.IsDigit(r) {
			return r
		}

		// Digits come in tens, and several of these may follow each other, as five styles of mathematics do.
		first := r
		for unicode.IsDigit(first - 1) {
			first--
		}

		return '0' + (r-first)%10
	}, s)
}

// ParseFloat is float(s).
func ParseFloat(s string) (float64, bool) {
	s = asciiDigits(Strip(s))
	if strings.ContainsAny(s, "xXpP") || looseUnderscore.MatchString(s) {
		return 0, false
	}

	s = strings.ReplaceAll(s, "_", "")
	if unsigned := strings.TrimLeft(s, "+-"); len(s)-len(unsigned) == 1 && strings.EqualFold(unsigned, "nan") {
		return math.NaN(), true
	}

	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// looseUnderscore matches one that does not stand between two digits.
var looseUnderscore = regexp.MustCompile(`^_|_$|[^0-9]_|_[^0-9]`)

// Round is round(f, n): to the nearest number of n decimals, halves of the exact value to the even one.
func Round(f float64, n int) float64 {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0) || n > 323:
		return f
	case n >= 0:
		return parsed(strconv.FormatFloat(f, 'f', n, 64), f)
	}

	// The decimals of the exact value are rounded, not a quotient that may have been rounded to a half. Its first digit
	// stands for 10^top.
	text := strconv.FormatFloat(f, 'e', -1, 64)
	top, err := strconv.Atoi(text[strings.IndexByte(text, 'e')+1:])
	if err != nil {
		return f
	}

	unit := math.Copysign(parsed("1e"+strconv.Itoa(-n), f), f)
	switch keep := top + n; {
	case f == 0 || keep < -1:
		return math.Copysign(0, f)
	case keep >= 0:
		return parsed(strconv.FormatFloat(f, 'e', keep, 64), f)
	case math.Abs(f) > 5*parsed("1e"+strconv.Itoa(top), f):
		return unit
	}

	return math.Copysign(0, f)
}

// parsed is the number that a text stands for, or f where there is none.
func parsed(text string, f float64) float64 {
	out, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return f
	}
	return out
}
