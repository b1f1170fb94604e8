package pyvalue

import (
	"errors"
	"math"
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
	for _, r := range s {
		switch {
		case unicode.IsUpper(r):
			b.WriteString(Lower(string(r)))
		case unicode.IsLower(r):
			b.WriteString(Upper(string(r)))
		default:
			b.WriteRune(r)
		}
	}

	return b.String()
}

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
		after = unicode.IsLower(r) || unicode.IsUpper(r) || unicode.IsTitle(r)
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
		zero := r
		for r-zero < 9 && unicode.IsDigit(zero-1) {
			zero--
		}
		return '0' + (r - zero)
	}, s)
}

// ParseFloat is float(s).
func ParseFloat(s string) (float64, bool) {
	s = asciiDigits(Strip(s))
	if strings.ContainsAny(s, "xXpP_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// Round is round(f, n): to the nearest number of n decimals, halves of the exact value to the even one.
func Round(f float64, n int) float64 {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0) || n > 323:
		return f
	case n < -308:
		return math.Copysign(0, f)
	case n < 0:
		scale := math.Pow(10, float64(-n))
		return math.RoundToEven(f/scale) * scale
	}

	out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', n, 64), 64)
	if err != nil {
		return f
	}

	return out
}
