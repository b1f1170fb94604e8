package template

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcompress/compress/editeval/task/internal/value"
)

// given is the arguments of a call.
type given struct {
	list  []any
	named map[string]any
	*budget
}

// or is an argument by its place or name, or what counts without it.
func (g given) or(i int, name string, without any) any {
	if i < len(g.list) {
		return g.list[i]
	}
	if v, ok := g.named[name]; ok {
		return v
	}
	return without
}

// text is an argument that must be a text.
func (g given) text(i int, name string, without any) (string, error) {
	v := g.or(i, name, without)
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%w: %s is %s, want a str", ErrType, name, value.Kind(v))
	}
	return s, nil
}

// function is a filter, a method or a function.
type function func(x any, g given) (any, error)

func isUndefined(err error) bool { return errors.Is(err, ErrUndefined) }

// texts makes a function of one on texts.
func texts(f func(s string) string) function {
	return func(x any, g given) (any, error) {
		s, err := g.str(x)
		if err != nil {
			return nil, err
		}
		s = f(s)
		return s, g.payText(len(s))
	}
}

// filters are those of Jinja that task files use, and regex_replace.
var filters = map[string]function{
	"abs":           filterAbs,
	"capitalize":    texts(capitalize),
	"count":         length,
	"d":             filterDefault,
	"default":       filterDefault,
	"first":         end1(func(n int) int { return 0 }),
	"float":         filterFloat,
	"int":           filterInt,
	"join":          filterJoin,
	"last":          end1(func(n int) int { return n - 1 }),
	"length":        length,
	"list":          func(x any, g given) (any, error) { return items(x, g) },
	"lower":         texts(lower),
	"max":           extreme(1),
	"min":           extreme(-1),
	"regex_replace": filterRegexReplace,
	"replace":       filterReplace,
	"reverse":       filterReverse,
	"round":         filterRound,
	"safe":          func(x any, _ given) (any, error) { return x, nil },
	"sort":          filterSort,
	"string":        texts(func(s string) string { return s }),
	"sum":           filterSum,
	"title":         texts(titleFilter),
	"tojson":        filterJSON,
	"trim":          filterTrim,
	"unique":        filterUnique,
	"upper":         texts(upper),
}

// tests are those of Jinja's "is" that task files use.
var tests = map[string]func(v any) bool{
	"defined":   nil, // these two look at the expression, not at its value
	"undefined": nil,
	"none":      func(v any) bool { return v == nil },
	"string":    func(v any) bool { _, ok := v.(string); return ok },
	"number":    func(v any) bool { _, ok := value.Number(v); return ok },
	"boolean":   func(v any) bool { _, ok := v.(bool); return ok },
	"mapping":   func(v any) bool { _, ok := v.(*value.Dict); return ok },
	"iterable":  func(v any) bool { _, err := iterate(v); return err == nil },
	"sequence":  func(v any) bool { _, err := iterate(v); return err == nil },
	"even":      func(v any) bool { n, ok := value.Int(v); return ok && n%2 == 0 },
	"odd":       func(v any) bool { n, ok := value.Int(v); return ok && n%2 != 0 },
}

// globals are the functions.
var globals = map[string]function{"range": globalRange}

// items is iterate that copies.
func items(x any, g given) ([]any, error) {
	list, err := g.iterate(x)
	return slices.Clone(list), err
}

func length(x any, _ given) (any, error) {
	if s, ok := x.(string); ok {
		return int64(utf8.RuneCountInString(s)), nil
	}
	list, err := iterate(x)
	return int64(len(list)), err
}

// end1 picks one item.
func end1(at func(n int) int) function {
	return func(x any, g given) (any, error) {
		list, err := g.iterate(x)
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("%w: no items", ErrUndefined)
		}
		if err != nil {
			return nil, err
		}
		return list[at(len(list))], nil
	}
}

func filterAbs(x any, _ given) (any, error) {
	switch x := x.(type) {
	case int64:
		return max(x, -x), nil
	case float64:
		return math.Abs(x), nil
	}
	return nil, typeError("abs", x)
}

func filterDefault(x any, g given) (any, error) {
	if value.Truth(g.or(1, "boolean", false)) && !value.Truth(x) {
		return g.or(0, "default_value", ""), nil
	}
	return x, nil
}

func filterInt(x any, g given) (any, error) {
	if n, ok := x.(int64); ok {
		return n, nil
	}
	if s, ok := x.(string); ok {
		base, ok := value.Int(g.or(1, "base", int64(10)))
		if !ok {
			return nil, typeError("base", g.or(1, "base", nil))
		}
		if n, ok, err := parseInt(s, base); ok {
			return n, err
		}
		f, ok := parseFloat(s)
		if !ok {
			return g.or(0, "default", int64(0)), nil
		}
		x = f
	}
	f, ok := value.Number(x)
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return g.or(0, "default", int64(0)), nil
	}
	if math.Abs(f) >= 1<<63 {
		return nil, errInt
	}
	return int64(f), nil
}

func filterFloat(x any, g given) (any, error) {
	if s, ok := x.(string); ok {
		if f, ok := parseFloat(s); ok {
			return f, nil
		}
	}
	if f, ok := value.Number(x); ok {
		return f, nil
	}
	return g.or(0, "default", 0.0), nil
}

func filterJoin(x any, g given) (any, error) {
	list, err := g.iterate(x)
	if err != nil {
		return nil, err
	}
	key := g.or(1, "attribute", nil)
	parts := make([]string, len(list))
	for i, v := range list {
		if d, ok := v.(*value.Dict); ok && key != nil {
			if v, ok = d.Get(value.Str(key)); !ok {
				return nil, fmt.Errorf("%w: %s", ErrUndefined, value.Str(key))
			}
		}
		if parts[i], err = g.str(v); err != nil {
			return nil, err
		}
	}
	return joinTexts(parts, g.or(0, "d", ""), g.budget)
}

// joinTexts puts texts together.
func joinTexts(parts []string, between any, b *budget) (any, error) {
	sep, err := b.str(between)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, s := range parts {
		if total += len(s) + len(sep); total > maxOutput+len(sep) {
			break
		}
	}
	if err := b.payText(max(total-len(sep), 0)); err != nil {
		return nil, err
	}
	return strings.Join(parts, sep), nil
}

// extreme picks the largest (1) or smallest (-1) item.
func extreme(sign int) function {
	return func(x any, g given) (any, error) {
		list, err := g.byItself(x)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("%w: no items", ErrUndefined)
		}
		best := list[0]
		for _, v := range list[1:] {
			c, err := compareCase(v, best, value.Truth(g.or(0, "case_sensitive", false)))
			if err != nil {
				return nil, err
			}
			if c*sign > 0 {
				best = v
			}
		}
		return best, nil
	}
}

// byItself lists items that are compared as they are, not by an attribute.
func (g given) byItself(x any) ([]any, error) {
	if g.or(1, "attribute", nil) != nil {
		return nil, fmt.Errorf("%w: comparing by an attribute", ErrUnknown)
	}
	return g.iterate(x)
}

func filterRegexReplace(x any, g given) (any, error) {
	pattern, err := g.text(0, "pattern", nil)
	if err != nil {
		return nil, err
	}
	to, err := g.text(1, "repl", nil)
	if err != nil {
		return nil, err
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrType, err)
	}
	if strings.Contains(to, `\`) {
		return nil, fmt.Errorf("%w: regex_replace with groups in what replaces", ErrUnknown)
	}
	s, err := g.str(x)
	if err != nil {
		return nil, err
	}
	total := len(s)
	s = re.ReplaceAllStringFunc(s, func(string) string {
		if total += len(to); total > maxOutput {
			return ""
		}
		return to
	})
	if total > maxOutput {
		return nil, g.payText(total)
	}
	return s, g.payText(len(s))
}

func filterReplace(x any, g given) (any, error) {
	from, err := g.text(0, "old", nil)
	if err != nil {
		return nil, err
	}
	to, err := g.text(1, "new", nil)
	if err != nil {
		return nil, err
	}
	n := -1
	if v, ok := value.Int(g.or(2, "count", nil)); ok {
		n = v
	}
	s, err := g.str(x)
	if err != nil {
		return nil, err
	}
	times := strings.Count(s, from)
	if n >= 0 {
		times = min(times, n)
	}
	if grow := len(to) - len(from); grow > 0 && times > maxOutput/grow {
		return nil, g.payText(maxOutput + 1)
	} else if err := g.payText(len(s) + times*grow); err != nil {
		return nil, err
	}
	return strings.Replace(s, from, to, n), nil
}

func filterReverse(x any, g given) (any, error) {
	list, err := items(x, g)
	if err != nil {
		return nil, err
	}
	slices.Reverse(list)
	if _, ok := x.(string); ok {
		return filterJoin(list, given{budget: g.budget})
	}
	return list, nil
}

func filterRound(x any, g given) (any, error) {
	f, ok := value.Number(x)
	n, okN := value.Int(g.or(0, "precision", int64(0)))
	if !ok || !okN {
		return nil, typeError("round", x)
	}
	scale := math.Pow(10, float64(n))
	switch method := value.Str(g.or(1, "method", "common")); method {
	case "common":
		if i, isInt := x.(int64); isInt && n >= 0 {
			return i, nil
		} else if isInt {
			return int64(roundTo(f, n)), nil
		}
		return roundTo(f, n), nil
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	default:
		return nil, fmt.Errorf("%w: rounding %q; known: common, ceil, floor", ErrUnknown, method)
	}
}

func filterSort(x any, g given) (any, error) {
	list, err := items(x, g)
	if err != nil {
		return nil, err
	}
	if g.or(2, "attribute", nil) != nil {
		return nil, fmt.Errorf("%w: sort by an attribute", ErrUnknown)
	}
	sign := 1
	if value.Truth(g.or(0, "reverse", false)) {
		sign = -1
	}
	var fault error
	slices.SortStableFunc(list, func(a, b any) int {
		c, err := compareCase(a, b, value.Truth(g.or(1, "case_sensitive", false)))
		fault = errors.Join(fault, err)
		return sign * c
	})
	return list, fault
}

// compareCase orders two values; letters in upper and lower case are the same unless told otherwise.
func compareCase(a, b any, sensitive bool) (int, error) {
	s, okS := a.(string)
	t, okT := b.(string)
	if okS && okT && !sensitive {
		return cmp.Compare(lower(s), lower(t)), nil
	}
	c, err := value.Compare(a, b)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrType, err)
	}
	return c, err
}

func filterSum(x any, g given) (any, error) {
	list, err := g.iterate(x)
	var total any = int64(0)
	for i := 0; err == nil && i < len(list); i++ {
		total, err = arith{"+", constant{total}, constant{list[i]}}.eval(&state{budget: *g.budget})
	}
	return total, err
}

func filterJSON(x any, g given) (any, error) {
	if g.or(0, "indent", nil) != nil {
		return nil, fmt.Errorf("%w: tojson with an indent", ErrUnknown)
	}
	b, err := toJSON(nil, x)
	if err == nil {
		err = g.payText(len(b))
	}
	return string(b), err
}

func filterTrim(x any, g given) (any, error) {
	s, err := g.str(x)
	if err != nil {
		return nil, err
	}
	if chars, ok := g.or(0, "chars", nil).(string); ok {
		return strings.Trim(s, chars), nil
	}
	return value.Strip(s), nil
}

func filterUnique(x any, g given) (any, error) {
	list, err := g.byItself(x)
	out := []any{}
	for _, v := range list {
		if err := g.payFor(out...); err != nil {
			return nil, err
		}
		sensitive := value.Truth(g.or(0, "case_sensitive", false))
		if !slices.ContainsFunc(out, func(o any) bool {
			s, isText := o.(string)
			t, both := v.(string)
			return value.Equal(o, v) || isText && both && !sensitive && lower(s) == lower(t)
		}) {
			out = append(out, v)
		}
	}
	return out, err
}

func globalRange(_ any, g given) (any, error) {
	var n [3]int
	for i, v := range g.list {
		k, ok := value.Int(v)
		if !ok || i > 2 {
			return nil, typeError("range", g.list...)
		}
		n[i] = k
	}
	lo, hi, step := n[0], n[1], n[2]
	switch len(g.list) {
	case 0:
		return nil, fmt.Errorf("%w: range without a number", ErrType)
	case 1:
		lo, hi, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 || (hi-lo)/step > maxSteps {
		return nil, fmt.Errorf("%w: range(%d, %d, %d)", ErrCost, lo, hi, step)
	}
	if err := g.pay(max((hi-lo)/step, 0)); err != nil {
		return nil, err
	}
	out := []any{}
	for i := lo; step > 0 && i < hi || step < 0 && i > hi; i += step {
		out = append(out, int64(i))
	}
	return out, nil
}
