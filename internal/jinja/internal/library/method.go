package library

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Methods are those of texts, lists and dictionaries, by the name of the type. None changes its subject.
var Methods = map[string]map[string]Function{
	"str": {
		"capitalize":   {"", texts(pyvalue.Capitalize)},
		"center":       {"width fillchar", justified('c')},
		"count":        {"sub", textCount},
		"endswith":     {"affix", textTest(strings.HasSuffix)},
		"find":         {"sub", textFind(strings.Index)},
		"format":       {"*", textFormat},
		"index":        {"sub", textIndex(strings.Index)},
		"isalnum":      {"", every(pyvalue.IsAlnum)},
		"isalpha":      {"", every(pyvalue.IsAlpha)},
		"isdecimal":    {"", every(pyvalue.IsDecimal)},
		"isdigit":      {"", func(x any, _ Given) (any, error) { return pyvalue.IsDigit(x.(string)), nil }},
		"islower":      {"", isCase(pyvalue.IsLower, pyvalue.IsUpper)},
		"isnumeric":    {"", every(pyvalue.IsNumeric)},
		"isspace":      {"", every(pyvalue.IsSpace)},
		"isupper":      {"", isCase(pyvalue.IsUpper, pyvalue.IsLower)},
		"join":         {"iterable", textJoin},
		"ljust":        {"width fillchar", justified('l')},
		"lower":        {"", texts(pyvalue.Lower)},
		"lstrip":       {"chars", strip(strings.TrimLeftFunc, strings.TrimLeft)},
		"partition":    {"sep", partition(strings.Index)},
		"removeprefix": {"affix", cutAffix(strings.TrimPrefix)},
		"removesuffix": {"affix", cutAffix(strings.TrimSuffix)},
		"replace":      {"old new count", replacement((*Env).onlyText)},
		"rfind":        {"sub", textFind(strings.LastIndex)},
		"rindex":       {"sub", textIndex(strings.LastIndex)},
		"rjust":        {"width fillchar", justified('r')},
		"rpartition":   {"sep", partition(strings.LastIndex)},
		"rsplit":       {"sep maxsplit", split(true)},
		"rstrip":       {"chars", strip(strings.TrimRightFunc, strings.TrimRight)},
		"split":        {"sep maxsplit", split(false)},
		"splitlines":   {"keepends", splitLines},
		"startswith":   {"affix", textTest(strings.HasPrefix)},
		"strip":        {"chars", strip(strings.TrimFunc, strings.Trim)},
		"swapcase":     {"", texts(pyvalue.SwapCase)},
		"title":        {"", texts(pyvalue.Title)},
		"upper":        {"", texts(pyvalue.Upper)},
		"zfill":        {"width", zeroFill},
	},
	"list":  {"count": {"value", listCount}, "index": {"value", listIndex}, "copy": {"", itself}},
	"tuple": {"count": {"value", listCount}, "index": {"value", listIndex}},
	"dict": {
		"copy": {"", itself}, "get": {"key default", dictGet}, "items": {"", dictItems}, "values": {"", dictValues},
		"keys": {"", func(x any, g Given) (any, error) { return g.Iterate(x) }},
	},
}

// itself is a copy of what never changes.
func itself(x any, _ Given) (any, error) { return x, nil }

// every tests all characters of a text that has some.
func every(holds func(r rune) bool) Action {
	return func(x any, _ Given) (any, error) {
		s := x.(string)
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !holds(r) }) < 0, nil
	}
}

func justified(side byte) Action {
	return func(x any, g Given) (any, error) {
		width, err := g.int(0, "width", 0)
		if err != nil {
			return nil, err
		}
		fill, err := g.text(1, "fillchar", " ")
		if err != nil {
			return nil, err
		}
		return justify(x.(string), width, fill, side, g)
	}
}

func zeroFill(x any, g Given) (any, error) {
	width, err := g.int(0, "width", 0)
	if err != nil {
		return nil, err
	}

	s, sign := x.(string), ""
	if s != "" && (s[0] == '+' || s[0] == '-') {
		sign, s = s[:1], s[1:]
	}

	out, err := justify(s, width-len(sign), "0", 'r', g)
	if err != nil {
		return nil, err
	}

	return sign + out.(string), nil
}

func textFormat(x any, g Given) (any, error) {
	s, err := pyvalue.Fields(x.(string), g.List, func(name string) (any, bool) { v, ok := g.Named[name]; return v, ok })
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrType, err)
	}
	return s, g.PayText(len(s))
}

// partition is partition and rpartition.
func partition(find func(s, sep string) int) Action {
	return func(x any, g Given) (any, error) {
		s := x.(string)
		sep, err := g.text(0, "sep", nil)
		if err == nil && sep == "" {
			err = fmt.Errorf("%w: an empty separator", ErrType)
		}
		if err != nil {
			return nil, err
		}

		at := find(s, sep)
		switch {
		case at >= 0:
			return pyvalue.Tuple{s[:at], sep, s[at+len(sep):]}, nil
		case find("aa", "a") == 1: // from the right
			return pyvalue.Tuple{"", "", s}, nil
		}

		return pyvalue.Tuple{s, "", ""}, nil
	}
}

func strip(space func(string, func(rune) bool) string, set func(string, string) string) Action {
	return func(x any, g Given) (any, error) {
		if chars, ok := g.or(0, "chars", nil).(string); ok {
			return set(x.(string), chars), nil
		}
		return space(x.(string), pyvalue.IsSpace), nil
	}
}

func cutAffix(f func(s, affix string) string) Action {
	return func(x any, g Given) (any, error) {
		affix, err := g.text(0, "affix", nil)
		return f(x.(string), affix), err
	}
}

// split is split and rsplit: at white space, or at a separator; at most so many times.
func split(right bool) Action {
	return func(x any, g Given) (any, error) {
		limit, ok := pyvalue.Int(g.or(1, "maxsplit", int64(-1)))
		if !ok {
			return nil, typeError("maxsplit", g.or(1, "maxsplit", nil))
		}

		sep := g.or(0, "sep", nil)
		if sep == nil {
			if err := g.Pay(countWords(x.(string))); err != nil {
				return nil, err
			}
			return splitSpace(x.(string), limit, right)
		}

		s, ok := sep.(string)
		if !ok || s == "" {
			return nil, fmt.Errorf("%w: separator %s", ErrType, pyvalue.Repr(sep))
		}

		if err := g.Pay(strings.Count(x.(string), s) + 1); err != nil {
			return nil, err
		}

		if right {
			return splitRight(x.(string), s, limit), nil
		}

		times := -1
		if limit >= 0 && limit < len(x.(string)) {
			times = limit + 1
		}

		return listOf(strings.SplitN(x.(string), s, times)), nil
	}
}

// splitRight splits at a separator from the right, which matters where separators overlap.
func splitRight(s, sep string, limit int) any {
	var parts []string
	for ; limit != 0; limit-- {
		at := strings.LastIndex(s, sep)
		if at < 0 {
			break
		}
		parts, s = append(parts, s[at+len(sep):]), s[:at]
	}

	parts = append(parts, s)
	slices.Reverse(parts)
	return listOf(parts)
}

// countWords counts what white space separates.
func countWords(s string) int {
	n, inside := 0, false
	for _, r := range s {
		space := pyvalue.IsSpace(r)
		if !space && !inside {
			n++
		}
		inside = !space
	}
	return n
}

// splitSpace splits at white space. A limit leaves the rest as it is.
func splitSpace(s string, limit int, right bool) (any, error) {
	if limit < 0 {
		return listOf(strings.FieldsFunc(s, pyvalue.IsSpace)), nil
	}
	if right {
		return splitSpaceRight(s, limit), nil
	}

	var parts []string
	s = strings.TrimLeftFunc(s, pyvalue.IsSpace)
	for ; limit > 0 && s != ""; limit-- {
		at := strings.IndexFunc(s, pyvalue.IsSpace)
		if at < 0 {
			break
		}
		parts, s = append(parts, s[:at]), strings.TrimLeftFunc(s[at:], pyvalue.IsSpace)
	}

	if s != "" {
		parts = append(parts, s)
	}

	return listOf(parts), nil
}

// splitSpaceRight splits at the last limit places with white space.
func splitSpaceRight(s string, limit int) any {
	var parts []string
	s = strings.TrimRightFunc(s, pyvalue.IsSpace)
	for ; limit > 0 && s != ""; limit-- {
		at := strings.LastIndexFunc(s, pyvalue.IsSpace)
		if at < 0 {
			break
		}
		_, n := utf8.DecodeRuneInString(s[at:])
		parts, s = append(parts, s[at+n:]), strings.TrimRightFunc(s[:at], pyvalue.IsSpace)
	}

	if s != "" {
		parts = append(parts, s)
	}

	slices.Reverse(parts)
	return listOf(parts)
}

func listOf(parts []string) []any {
	list := make([]any, len(parts))
	for i, s := range parts {
		list[i] = s
	}
	return list
}

// lineEnds are what str.splitlines takes for the end of a line.
var lineEnds = regexp.MustCompile("\r\n|[\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029]")

func splitLines(x any, g Given) (any, error) {
	lines := splitAtEnds(x.(string), g.is(0, "keepends", false))
	return listOf(lines), g.Pay(len(lines) + 1)
}

// splitAtEnds is str.splitlines: a text that ends with the end of a line has no empty line behind it.
func splitAtEnds(s string, keepEnds bool) []string {
	var lines []string
	from := 0
	for _, m := range lineEnds.FindAllStringIndex(s, -1) {
		end := m[0]
		if keepEnds {
			end = m[1]
		}
		lines = append(lines, s[from:end])
		from = m[1]
	}

	if from < len(s) {
		lines = append(lines, s[from:])
	}

	return lines
}

// textTest is startswith and endswith: of one text, or of any in a tuple.
func textTest(f func(s, affix string) bool) Action {
	return func(x any, g Given) (any, error) {
		list, ok := g.or(0, "affix", nil).(pyvalue.Tuple)
		if !ok {
			list = pyvalue.Tuple{g.or(0, "affix", nil)}
		}

		for _, v := range list {
			affix, ok := v.(string)
			if !ok {
				return nil, fmt.Errorf("%w: affix is %s, want a str or a tuple of these", ErrType, pyvalue.Kind(v))
			}

			if f(x.(string), affix) {
				return true, nil
			}
		}

		return false, nil
	}
}

func textCount(x any, g Given) (any, error) {
	s, err := g.text(0, "sub", nil)
	return int64(strings.Count(x.(string), s)), err
}

func textFind(find func(s, sub string) int) Action {
	return func(x any, g Given) (any, error) {
		s, err := g.text(0, "sub", nil)
		at := find(x.(string), s)
		if at > 0 {
			at = utf8.RuneCountInString(x.(string)[:at])
		}
		return int64(at), err
	}
}

func textIndex(find func(s, sub string) int) Action {
	return func(x any, g Given) (any, error) {
		v, err := textFind(find)(x, g)
		if err == nil && v.(int64) < 0 {
			err = fmt.Errorf("%w: %s is not in the text", ErrType, pyvalue.Repr(g.or(0, "sub", nil)))
		}
		return v, err
	}
}

func textJoin(x any, g Given) (any, error) {
	list, err := g.Iterate(g.or(0, "iterable", []any{}))
	if err != nil {
		return nil, err
	}

	parts := make([]string, len(list))
	for i, v := range list {
		var ok bool
		if parts[i], ok = v.(string); !ok {
			return nil, fmt.Errorf("%w: join of a list whose item %d is %s, want str", ErrType, i, pyvalue.Kind(v))
		}
	}

	return g.join(parts, x)
}

func listIndex(x any, g Given) (any, error) {
	v := g.or(0, "value", nil)
	list, err := g.Iterate(x)
	if err != nil {
		return nil, err
	}

	at := slices.IndexFunc(list, func(y any) bool { return pyvalue.Equal(v, y) })
	if at < 0 {
		return nil, fmt.Errorf("%w: %s is not in %s", ErrType, pyvalue.Repr(v), pyvalue.Repr(x))
	}

	return int64(at), nil
}

func listCount(x any, g Given) (any, error) {
	list, err := g.Iterate(x)
	n := int64(0)
	for _, v := range list {
		if pyvalue.Equal(v, g.or(0, "value", nil)) {
			n++
		}
	}
	return n, err
}

func dictGet(x any, g Given) (any, error) {
	v, ok, err := x.(*pyvalue.Dict).GetKey(g.or(0, "key", nil))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrType, err)
	}
	if ok {
		return v, nil
	}
	return g.or(1, "default", nil), nil
}

func dictItems(x any, _ Given) (any, error) {
	out := []any{}
	for k, v := range x.(*pyvalue.Dict).All() {
		out = append(out, pyvalue.Tuple{k, v})
	}
	return out, nil
}

func dictValues(x any, _ Given) (any, error) {
	out := []any{}
	for _, v := range x.(*pyvalue.Dict).All() {
		out = append(out, v)
	}
	return out, nil
}
