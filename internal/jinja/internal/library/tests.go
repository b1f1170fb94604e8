package library

import (
	"fmt"
	"unicode"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Tests are those of Jinja's "is".
var Tests = map[string]Function{
	"boolean":     kindTest("bool"),
	"callable":    {"", func(x any, _ Given) (any, error) { _, ok := x.(Callable); return ok, nil }},
	"defined":     {"", func(x any, _ Given) (any, error) { _, missing := x.(*Undefined); return !missing, nil }},
	"divisibleby": {"num", divisible},
	"even":        {"", remainder(0)},
	"false":       {"", func(x any, _ Given) (any, error) { return x == any(false), nil }},
	"filter": {"", func(x any, g Given) (any, error) {
		s, _ := x.(string)
		_, ok := g.Filters[s]
		return ok,
			nil
	}},
	"float":     kindTest("float"),
	"in":        {"seq", func(x any, g Given) (any, error) { return g.contains(g.or(0, "seq", nil), x) }},
	"integer":   kindTest("int"),
	"iterable":  {"", isIterable},
	"lower":     {"", isCase(pyvalue.IsLower, pyvalue.IsUpper)},
	"mapping":   kindTest("dict"),
	"none":      kindTest("None"),
	"number":    {"", func(x any, _ Given) (any, error) { _, ok := pyvalue.Number(x); return ok, nil }},
	"odd":       {"", remainder(1)},
	"sameas":    {"other", sameAs},
	"sequence":  {"", isSequence},
	"string":    kindTest("str"),
	"test":      {"", func(x any, g Given) (any, error) { s, _ := x.(string); _, ok := g.Tests[s]; return ok, nil }},
	"true":      {"", func(x any, _ Given) (any, error) { return x == any(true), nil }},
	"undefined": {"", func(x any, _ Given) (any, error) { _, missing := x.(*Undefined); return missing, nil }},
	"upper":     {"", isCase(pyvalue.IsUpper, pyvalue.IsLower)},

	"==": comparison("=="), "eq": comparison("=="), "equalto": comparison("=="), "!=": comparison("!="),
	"ne": comparison("!="),
	"<":  comparison("<"), "lt": comparison("<"), "lessthan": comparison("<"), "<=": comparison("<="),
	"le": comparison("<="),
	">":  comparison(">"), "gt": comparison(">"), "greaterthan": comparison(">"), ">=": comparison(">="),
	"ge": comparison(">="),
}

// kindTest is a test of a value's type.
func kindTest(kind string) Function {
	return Function{"", func(x any, _ Given) (any, error) { return pyvalue.Kind(x) == kind, nil }}
}

// comparison is a test that compares with its argument.
func comparison(op string) Function {
	return Function{"other", func(x any, g Given) (any, error) {
		return g.Compare(op, x, g.or(0, "other", &Undefined{What: "argument of the test"}))
	}}
}

// remainder tests what a number leaves when it is divided by two.
func remainder(want float64) Action {
	return func(x any, g Given) (any, error) {
		rest, err := g.arith("%", x, int64(2))
		if u, ok := x.(*Undefined); ok {
			return false, u.Err()
		}
		f, _ := pyvalue.Number(rest)
		return f == want, err
	}
}

func divisible(x any, g Given) (any, error) {
	rest, err := g.arith("%", x, g.or(0, "num", nil))
	f, _ := pyvalue.Number(rest)
	return f == 0 && err == nil, err
}

func sameAs(x any, g Given) (any, error) {
	y := g.or(0, "other", nil)
	if pyvalue.Kind(x) != pyvalue.Kind(y) {
		return false, nil
	}
	switch x.(type) {
	case nil, bool, *pyvalue.Dict, *Namespace:
		return x == y, nil
	}
	return false, fmt.Errorf("%w: sameas of a %s, which depends on how values are stored", ErrUnknown, pyvalue.Kind(x))
}

func isIterable(x any, g Given) (any, error) {
	if u, ok := x.(*Undefined); ok {
		_, err := g.orEmpty(u)
		return err == nil, err
	}
	switch pyvalue.Kind(x) {
	case "str", "list", "tuple", "dict":
		return true, nil
	}
	return false, nil
}

func isSequence(x any, g Given) (any, error) {
	if _, ok := x.(*Undefined); ok {
		return !g.Strict, nil
	}
	return isIterable(x, g)
}

// isCase is str.islower() or str.isupper(): some letters of the one case, none of the other.
func isCase(want, other func(rune) bool) Action {
	return func(x any, g Given) (any, error) {
		s, err := g.Str(x)
		found := false
		for _, r := range s {
			if other(r) || unicode.IsTitle(r) {
				return false, err
			}
			found = found || want(r)
		}
		return found, err
	}
}
