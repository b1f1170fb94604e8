package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case object:
		return len(v) > 0
	}
	return true
}

// text is a value as {{ … }} writes it.
func text(v any) (string, error) {
	switch v := v.(type) {
	case undefined:
		return "", nil
	case nil:
		return "None", nil
	case string:
		return v, nil
	case bool:
		return map[bool]string{true: "True", false: "False"}[v], nil
	case int, float64:
		return fmt.Sprint(v), nil
	}
	return "", errors.New("a list, an object or a function is written as text; use the filter tojson")
}

func elements(v any) ([]any, error) {
	switch v := v.(type) {
	case []any:
		return v, nil
	case undefined:
		return nil, nil
	case string:
		var list []any
		for _, c := range v {
			list = append(list, string(c))
		}
		return list, nil
	case object:
		var list []any
		for _, k := range keys(v) {
			list = append(list, k)
		}
		return list, nil
	}
	return nil, errors.New("a loop over what is neither a list, an object nor a text")
}

func keys(o object) []string {
	var list []string
	for k := range o {
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b string) int { // a message has its role first
		if a == "role" || b == "role" {
			return map[bool]int{true: -1, false: 1}[a == "role" && b != "role"]
		}
		return strings.Compare(a, b)
	})
	return list
}

// combine applies an operator.
func combine(op string, x, y any) (any, error) {
	switch op {
	case "==":
		return equal(x, y), nil
	case "!=":
		return !equal(x, y), nil
	case "in", "not in":
		found, err := contains(y, x)
		return found == (op == "in"), err
	case "~":
		a, err := text(x)
		b, err2 := text(y)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		return onTexts("+", a, b)
	}
	if a, ok := x.(string); ok {
		if b, ok := y.(string); ok {
			return onTexts(op, a, b)
		}
	}
	if a, ok := x.([]any); ok {
		if b, ok := y.([]any); ok && op == "+" {
			if len(a)+len(b) > maxWork {
				return nil, errors.New("a list becomes too long")
			}
			return append(slices.Clone(a), b...), nil
		}
	}
	a, okA := x.(int)
	b, okB := y.(int)
	if !okA || !okB {
		return nil, fmt.Errorf("%s does not go with values of these types", op)
	}
	return onNumbers(op, a, b)
}

func onTexts(op, a, b string) (any, error) {
	switch op {
	case "+":
		if len(a)+len(b) > maxOutput {
			return nil, errors.New("a text becomes too long")
		}
		return a + b, nil
	case "<":
		return a < b, nil
	case ">":
		return a > b, nil
	case "<=":
		return a <= b, nil
	case ">=":
		return a >= b, nil
	}
	return nil, fmt.Errorf("%s does not go with texts", op)
}

func onNumbers(op string, a, b int) (any, error) {
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "<":
		return a < b, nil
	case ">":
		return a > b, nil
	case "<=":
		return a <= b, nil
	case ">=":
		return a >= b, nil
	}
	if b == 0 || a == math.MinInt {
		return nil, errors.New("division by zero")
	}
	switch op {
	case "/":
		return float64(a) / float64(b), nil
	case "//":
		q := a / b
		if a%b != 0 && (a < 0) != (b < 0) {
			q--
		}
		return q, nil
	}
	return ((a % b) + b) % b, nil
}

func equal(x, y any) bool {
	budget := maxWork
	return same(x, y, &budget)
}

// same compares values, as far as the budget reaches: namespaces may hold themselves.
func same(x, y any, budget *int) bool {
	if *budget--; *budget < 0 {
		return false
	}
	switch x := x.(type) {
	case []any:
		y, ok := y.([]any)
		return ok && slices.EqualFunc(x, y, func(a, b any) bool { return same(a, b, budget) })
	case object:
		y, ok := y.(object)
		return ok && maps.EqualFunc(x, y, func(a, b any) bool { return same(a, b, budget) })
	case function:
		return false
	}
	switch y.(type) {
	case []any, object, function:
		return false
	}
	return x == y
}

func contains(in, x any) (bool, error) {
	switch in := in.(type) {
	case string:
		s, ok := x.(string)
		return ok && strings.Contains(in, s), nil
	case []any:
		return slices.ContainsFunc(in, func(v any) bool { return equal(v, x) }), nil
	case object:
		s, ok := x.(string)
		_, has := in[s]
		return ok && has, nil
	case undefined:
		return false, nil
	}
	return false, errors.New("\"in\" needs a text, a list or an object")
}

// get is v[k] and v.k.
func get(v, k any) (any, error) {
	switch v := v.(type) {
	case object:
		name, _ := k.(string)
		if x, ok := v[name]; ok {
			return x, nil
		}
		if m := objectMethods[name]; m != nil {
			return bound(m, v), nil
		}
		return undefined{}, nil
	case []any:
		i, ok := k.(int)
		if i < 0 {
			i += len(v)
		}
		if !ok || i < 0 || i >= len(v) {
			return undefined{}, nil
		}
		return v[i], nil
	case string:
		if name, ok := k.(string); ok {
			if m := textMethods[name]; m != nil {
				return bound(m, v), nil
			}
			return nil, fmt.Errorf("texts have no %.40q here", name)
		}
		i, ok := k.(int)
		runes := []rune(v)
		if i < 0 {
			i += len(runes)
		}
		if !ok || i < 0 || i >= len(runes) {
			return undefined{}, nil
		}
		return string(runes[i]), nil
	case undefined:
		return nil, fmt.Errorf("%.40v of something that is not there", k)
	}
	return undefined{}, nil
}

func bound(f function, v any) function {
	return func(r *render, args []any, named map[string]any) (any, error) {
		return f(r, append([]any{v}, args...), named)
	}
}

// cutOut is a slice of a list or a text.
func cutOut(v any, at [3]*int) (any, error) {
	items, isList := v.([]any)
	s, isText := v.(string)
	if !isList && !isText {
		return nil, errors.New("a slice of what is neither a list nor a text")
	}
	var runes []rune
	n := len(items)
	if isText {
		runes = []rune(s)
		n = len(runes)
	}
	step := 1
	if at[2] != nil {
		step = *at[2]
	}
	lo, hi := 0, n
	if step == -1 && at[0] == nil && at[1] == nil {
		items, runes = slices.Clone(items), slices.Clone(runes)
		slices.Reverse(items)
		slices.Reverse(runes)
	} else if step != 1 {
		return nil, errors.New("a slice in steps")
	}
	for i, bound := range []*int{&lo, &hi} {
		if at[i] != nil {
			*bound = *at[i]
			if *bound < 0 {
				*bound += n
			}
		}
		*bound = min(max(*bound, 0), n)
	}
	if isText {
		return string(runes[lo:max(lo, hi)]), nil
	}
	return items[lo:max(lo, hi):max(lo, hi)], nil
}

// tests are what may stand after "is".
var tests = map[string]func(any) bool{
	"defined":   func(v any) bool { return v != undefined{} },
	"undefined": func(v any) bool { return v == undefined{} },
	"none":      func(v any) bool { return v == nil },
	"true":      func(v any) bool { return v == true },
	"false":     func(v any) bool { return v == false },
	"string":    func(v any) bool { _, ok := v.(string); return ok },
	"mapping":   func(v any) bool { _, ok := v.(object); return ok },
	"iterable":  func(v any) bool { _, err := elements(v); return err == nil },
	"sequence":  func(v any) bool { _, err := elements(v); return err == nil },
	"boolean":   func(v any) bool { _, ok := v.(bool); return ok },
	"number":    func(v any) bool { _, ok := v.(int); return ok },
	"odd":       func(v any) bool { n, ok := v.(int); return ok && n%2 != 0 },
	"even":      func(v any) bool { n, ok := v.(int); return ok && n%2 == 0 },
}

// functions are what a template may call.
var functions = map[string]function{
	"raise_exception": func(_ *render, args []any, _ map[string]any) (any, error) {
		s := "raise_exception"
		if len(args) > 0 {
			s, _ = args[0].(string)
		}
		return nil, fmt.Errorf("%.300s", s)
	},
	"namespace": func(_ *render, _ []any, named map[string]any) (any, error) { return object(named), nil },
	"range": func(_ *render, args []any, _ map[string]any) (any, error) {
		lo, hi := 0, 0
		switch len(args) {
		case 1:
			hi, _ = args[0].(int)
		case 2:
			lo, _ = args[0].(int)
			hi, _ = args[1].(int)
		default:
			return nil, errors.New("range wants one number or two")
		}
		if hi-lo > maxWork {
			return nil, errors.New("range is too long")
		}
		list := []any{}
		for i := lo; i < hi; i++ {
			list = append(list, i)
		}
		return list, nil
	},
}

// onText makes a function of one that needs a text, and perhaps another.
func onText(f func(s, arg string) any) function {
	return func(_ *render, args []any, _ map[string]any) (any, error) {
		s, ok := args[0].(string)
		if !ok {
			return nil, errors.New("a method or filter for texts is used on something else")
		}
		arg := ""
		if len(args) > 1 {
			if arg, ok = args[1].(string); !ok {
				return nil, errors.New("an argument is no text")
			}
		}
		return f(s, arg), nil
	}
}

// trimmed removes characters, by default white space, on the sides.
func trimmed(left, right bool) function {
	return onText(func(s, set string) any {
		cut := unicode.IsSpace
		if set != "" {
			cut = func(c rune) bool { return strings.ContainsRune(set, c) }
		}
		if left {
			s = strings.TrimLeftFunc(s, cut)
		}
		if right {
			s = strings.TrimRightFunc(s, cut)
		}
		return s
	})
}

func split(s, by string) any {
	words := strings.Fields(s)
	if by != "" {
		words = strings.Split(s, by)
	}
	list := make([]any, len(words))
	for i, w := range words {
		list[i] = w
	}
	return list
}

func replace(_ *render, args []any, _ map[string]any) (any, error) {
	var s [3]string
	for i := range s {
		var ok bool
		if i >= len(args) {
			return nil, errors.New("replace wants two texts")
		}
		if s[i], ok = args[i].(string); !ok {
			return nil, errors.New("replace wants texts")
		}
	}
	if n := strings.Count(s[0], s[1]); len(s[0])+n*len(s[2]) > maxOutput {
		return nil, errors.New("a text becomes too long")
	}
	return strings.ReplaceAll(s[0], s[1], s[2]), nil
}

func title(s, _ string) any {
	first := true
	return strings.Map(func(c rune) rune {
		defer func() { first = !unicode.IsLetter(c) }()
		if first {
			return unicode.ToUpper(c)
		}
		return unicode.ToLower(c)
	}, s)
}

func capital(s, _ string) any {
	c, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToUpper(c)) + strings.ToLower(s[n:])
}

var textMethods = map[string]function{
	"strip": trimmed(true, true), "lstrip": trimmed(true, false), "rstrip": trimmed(false, true),
	"upper":      onText(func(s, _ string) any { return strings.ToUpper(s) }),
	"lower":      onText(func(s, _ string) any { return strings.ToLower(s) }),
	"title":      onText(title),
	"capitalize": onText(capital),
	"startswith": onText(func(s, p string) any { return strings.HasPrefix(s, p) }),
	"endswith":   onText(func(s, p string) any { return strings.HasSuffix(s, p) }),
	"split":      onText(split),
	"replace":    replace,
}

var objectMethods = map[string]function{
	"get": func(_ *render, args []any, _ map[string]any) (any, error) {
		if len(args) < 2 {
			return nil, errors.New("get wants a key")
		}
		k, _ := args[1].(string)
		if v, ok := args[0].(object)[k]; ok {
			return v, nil
		}
		if len(args) > 2 {
			return args[2], nil
		}
		return nil, nil
	},
	"items": func(_ *render, args []any, _ map[string]any) (any, error) {
		o, list := args[0].(object), []any{}
		for _, k := range keys(o) {
			list = append(list, []any{k, o[k]})
		}
		return list, nil
	},
	"keys": func(_ *render, args []any, _ map[string]any) (any, error) { return elements(args[0]) },
}

// filters are what may stand after |.
var filters = map[string]function{
	"trim": trimmed(true, true), "upper": textMethods["upper"], "lower": textMethods["lower"], "title": textMethods["title"], "capitalize": textMethods["capitalize"],
	"replace": replace,
	"length":  length, "count": length, "string": toText, "tojson": toJSON, "join": join,
	"default": func(_ *render, args []any, _ map[string]any) (any, error) {
		if args[0] != (undefined{}) || len(args) < 2 {
			return args[0], nil
		}
		return args[1], nil
	},
	"first": func(_ *render, args []any, _ map[string]any) (any, error) { return get(args[0], 0) },
	"last":  func(_ *render, args []any, _ map[string]any) (any, error) { return get(args[0], -1) },
	"list":  func(_ *render, args []any, _ map[string]any) (any, error) { return elements(args[0]) },
	"safe":  func(_ *render, args []any, _ map[string]any) (any, error) { return args[0], nil },
}

func toText(_ *render, args []any, _ map[string]any) (any, error) { return text(args[0]) }

func length(_ *render, args []any, _ map[string]any) (any, error) {
	switch v := args[0].(type) {
	case string:
		return utf8.RuneCountInString(v), nil
	case undefined:
		return 0, nil
	}
	list, err := elements(args[0])
	return len(list), err
}

func join(_ *render, args []any, _ map[string]any) (any, error) {
	list, err := elements(args[0])
	if err != nil {
		return nil, err
	}
	by, words := "", make([]string, len(list))
	if len(args) > 1 {
		by, _ = args[1].(string)
	}
	for i, v := range list {
		if words[i], err = text(v); err != nil {
			return nil, err
		}
	}
	return strings.Join(words, by), nil
}

// toJSON writes a value as Python's json does, with a space after colons and commas.
func toJSON(_ *render, args []any, _ map[string]any) (any, error) {
	var b strings.Builder
	err := writeJSON(&b, args[0], 0)
	return b.String(), err
}

func writeJSON(b *strings.Builder, v any, depth int) error {
	if depth > maxDepth || b.Len() > maxOutput {
		return errors.New("tojson of something that is too large")
	}
	switch v := v.(type) {
	case []any:
		b.WriteByte('[')
		for i, x := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := writeJSON(b, x, depth+1); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case object:
		b.WriteByte('{')
		for i, k := range keys(v) {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(quote(k) + ": ")
			if err := writeJSON(b, v[k], depth+1); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case string:
		b.WriteString(quote(v))
	case nil, bool, int, float64:
		text, err := json.Marshal(v)
		b.Write(text)
		return err
	default:
		return errors.New("tojson of something that is not there, or of a function")
	}
	return nil
}

// quote writes a text as JSON, without the escapes that HTML needs.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(s) != nil {
		return `""`
	}
	return strings.TrimSuffix(b.String(), "\n")
}
