package template

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/editeval/task/internal/value"
)

// methods are those of texts, lists and dictionaries, by the name of the type.
var methods = map[string]map[string]function{
	"str": {
		"capitalize":   texts(capitalize),
		"count":        textCount,
		"endswith":     textTest(strings.HasSuffix),
		"find":         textFind,
		"index":        textIndex,
		"isdigit":      func(x any, _ given) (any, error) { return value.IsDigit(x.(string)), nil },
		"join":         textJoin,
		"lower":        texts(lower),
		"lstrip":       strip(strings.TrimLeftFunc, strings.TrimLeft),
		"replace":      filterReplace,
		"removeprefix": cutAffix(strings.TrimPrefix),
		"removesuffix": cutAffix(strings.TrimSuffix),
		"rsplit":       split(true),
		"rstrip":       strip(strings.TrimRightFunc, strings.TrimRight),
		"split":        split(false),
		"splitlines":   splitLines,
		"startswith":   textTest(strings.HasPrefix),
		"strip":        strip(strings.TrimFunc, strings.Trim),
		"title":        texts(titleMethod),
		"upper":        texts(upper),
	},
	"list":  {"count": listCount, "index": listIndex},
	"tuple": {"count": listCount, "index": listIndex},
	"dict":  {"get": dictGet, "items": dictItems, "keys": func(x any, _ given) (any, error) { return iterate(x) }, "values": dictValues},
}

func isMethod(x any, name string) bool {
	_, ok := methods[value.Kind(x)][name]
	return ok
}

func callMethod(x any, name string, g given) (any, error) {
	table := methods[value.Kind(x)]
	f, ok := table[name]
	if !ok {
		return nil, fmt.Errorf("%w: method %q of a %s; known: %s", ErrUnknown, name, value.Kind(x), known(table))
	}
	v, err := f(x, g)
	if err != nil {
		return nil, fmt.Errorf("method %s: %w", name, err)
	}
	return v, nil
}

func strip(space func(string, func(rune) bool) string, set func(string, string) string) function {
	return func(x any, g given) (any, error) {
		if chars, ok := g.or(0, "chars", nil).(string); ok {
			return set(x.(string), chars), nil
		}
		return space(x.(string), value.IsSpace), nil
	}
}

func cutAffix(f func(s, affix string) string) function {
	return func(x any, g given) (any, error) {
		affix, err := g.text(0, "affix", nil)
		return f(x.(string), affix), err
	}
}

// split is split and rsplit: at white space, or at a separator; at most so many times.
func split(right bool) function {
	return func(x any, g given) (any, error) {
		limit, ok := value.Int(g.or(1, "maxsplit", int64(-1)))
		if !ok {
			return nil, typeError("maxsplit", g.or(1, "maxsplit", nil))
		}
		sep := g.or(0, "sep", nil)
		if sep == nil {
			if err := g.pay(countWords(x.(string))); err != nil {
				return nil, err
			}
			return splitSpace(x.(string), limit, right)
		}
		s, ok := sep.(string)
		if !ok || s == "" {
			return nil, fmt.Errorf("%w: separator %s", ErrType, value.Repr(sep))
		}
		if err := g.pay(strings.Count(x.(string), s) + 1); err != nil {
			return nil, err
		}
		parts := strings.Split(x.(string), s)
		if extra := len(parts) - 1 - limit; limit >= 0 && extra > 0 {
			if right {
				parts = slices.Concat([]string{strings.Join(parts[:extra+1], s)}, parts[extra+1:])
			} else {
				parts = append(parts[:limit:limit], strings.Join(parts[limit:], s))
			}
		}
		return listOf(parts), nil
	}
}

// countWords counts what white space separates.
func countWords(s string) int {
	n, inside := 0, false
	for _, r := range s {
		space := value.IsSpace(r)
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
		return listOf(strings.FieldsFunc(s, value.IsSpace)), nil
	}
	if right {
		return nil, fmt.Errorf("%w: rsplit at white space with a limit", ErrUnknown)
	}
	var parts []string
	s = strings.TrimLeftFunc(s, value.IsSpace)
	for ; limit > 0 && s != ""; limit-- {
		at := strings.IndexFunc(s, value.IsSpace)
		if at < 0 {
			break
		}
		parts, s = append(parts, s[:at]), strings.TrimLeftFunc(s[at:], value.IsSpace)
	}
	if s != "" {
		parts = append(parts, s)
	}
	return listOf(parts), nil
}

func listOf(parts []string) []any {
	list := make([]any, len(parts))
	for i, s := range parts {
		list[i] = s
	}
	return list
}

func splitLines(x any, g given) (any, error) {
	if err := g.pay(strings.Count(x.(string), "\n") + strings.Count(x.(string), "\r") + 1); err != nil {
		return nil, err
	}
	s := strings.ReplaceAll(strings.ReplaceAll(x.(string), "\r\n", "\n"), "\r", "\n")
	if s == "" {
		return []any{}, nil
	}
	return listOf(strings.Split(strings.TrimSuffix(s, "\n"), "\n")), nil
}

func textTest(f func(s, affix string) bool) function {
	return func(x any, g given) (any, error) {
		affix, err := g.text(0, "affix", nil)
		return f(x.(string), affix), err
	}
}

func textCount(x any, g given) (any, error) {
	s, err := g.text(0, "sub", nil)
	return int64(strings.Count(x.(string), s)), err
}

func textFind(x any, g given) (any, error) {
	s, err := g.text(0, "sub", nil)
	at := strings.Index(x.(string), s)
	if at > 0 {
		at = utf8.RuneCountInString(x.(string)[:at])
	}
	return int64(at), err
}

func textIndex(x any, g given) (any, error) {
	v, err := textFind(x, g)
	if err == nil && v.(int64) < 0 {
		err = fmt.Errorf("%w: %s is not in the text", ErrType, value.Repr(g.or(0, "sub", nil)))
	}
	return v, err
}

func textJoin(x any, g given) (any, error) {
	parts, err := g.iterate(g.or(0, "iterable", []any{}))
	if err != nil {
		return nil, err
	}
	for i, v := range parts {
		if _, ok := v.(string); !ok {
			return nil, fmt.Errorf("%w: join of a list whose item %d is %s, want str", ErrType, i, value.Kind(v))
		}
	}
	return filterJoin(parts, given{list: []any{x}, budget: g.budget})
}

func listIndex(x any, g given) (any, error) {
	v := g.or(0, "value", nil)
	list, err := iterate(x)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list, func(y any) bool { return value.Equal(v, y) })
	if at < 0 {
		return nil, fmt.Errorf("%w: %s is not in %s", ErrType, value.Repr(v), value.Repr(x))
	}
	return int64(at), nil
}

func listCount(x any, g given) (any, error) {
	list, err := iterate(x)
	n := int64(0)
	for _, v := range list {
		if value.Equal(v, g.or(0, "value", nil)) {
			n++
		}
	}
	return n, err
}

func dictGet(x any, g given) (any, error) {
	if v, ok := x.(*value.Dict).Get(value.Str(g.or(0, "key", nil))); ok {
		return v, nil
	}
	return g.or(1, "default", nil), nil
}

func dictItems(x any, _ given) (any, error) {
	d := x.(*value.Dict)
	out := []any{}
	for _, k := range d.Keys() {
		v, _ := d.Get(k)
		out = append(out, value.Tuple{k, v})
	}
	return out, nil
}

func dictValues(x any, _ given) (any, error) {
	d := x.(*value.Dict)
	out := []any{}
	for _, k := range d.Keys() {
		v, _ := d.Get(k)
		out = append(out, v)
	}
	return out, nil
}
