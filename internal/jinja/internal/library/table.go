package library

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Given is the arguments of a call.
type Given struct {
	List  []any
	Named map[string]any
	Names []string // the keys of Named, as they were written
	*Env
}

// or is an argument by its place or name, or what counts without it.
func (g Given) or(i int, name string, without any) any {
	if i < len(g.List) {
		return g.List[i]
	}
	if v, ok := g.Named[name]; ok {
		return v
	}
	return without
}

// text is an argument that must be a text.
func (g Given) text(i int, name string, without any) (string, error) {
	v := g.or(i, name, without)
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%w: %s is %s, want a str", ErrType, name, pyvalue.Kind(v))
	}
	return s, nil
}

// int is an argument that must be a whole number.
func (g Given) int(i int, name string, without int) (int, error) {
	v := g.or(i, name, int64(without))
	n, ok := pyvalue.Int(v)
	if !ok {
		return 0, fmt.Errorf("%w: %s is %s, want an int", ErrType, name, pyvalue.Kind(v))
	}
	return n, nil
}

// is is an argument that counts as true or false.
func (g Given) is(i int, name string, without bool) bool {
	return pyvalue.Truth(g.or(i, name, without))
}

// Action is what a filter, a method, a test or a function does with x, its subject.
type Action func(x any, g Given) (any, error)

// Function is a filter, a method, a test or a function: the names of its arguments ("*" are any) and what it does.
type Function struct {
	Args string
	Do   Action
}

// Check refuses arguments that the function does not have.
func (f Function) Check(g Given) error { return f.CheckNames(len(g.List), g.Names) }

// CheckNames is Check for n arguments without names and some with.
func (f Function) CheckNames(n int, names []string) error {
	if f.Args == "*" {
		return nil
	}

	want := strings.Fields(f.Args)
	if n > len(want) {
		return fmt.Errorf("%w: %d arguments, want at most %d (%s)", ErrUnknown, n, len(want), f.Args)
	}

	for _, name := range names {
		if !slices.Contains(want, name) {
			return fmt.Errorf("%w: argument %q; known: %s", ErrUnknown, name, strings.Join(want, ", "))
		}
	}

	return nil
}

// texts makes a function of one on texts.
func texts(f func(s string) string) Action {
	return func(x any, g Given) (any, error) {
		s, err := g.Str(x)
		if err != nil {
			return nil, err
		}
		s = f(s)
		return s, g.PayText(len(s))
	}
}

// Filters are those of Jinja that templates use, and regex_replace of lm-evaluation-harness.
var Filters = map[string]Function{
	"abs":           {"", filterAbs},
	"attr":          {"name", filterAttribute},
	"batch":         {"linecount fill_with", filterBatch},
	"capitalize":    {"", texts(pyvalue.Capitalize)},
	"center":        {"width", filterCenter},
	"count":         {"", length},
	"d":             {"default_value boolean", filterDefault},
	"default":       {"default_value boolean", filterDefault},
	"dictsort":      {"case_sensitive by reverse", filterDictSort},
	"e":             {"", texts(escapeHTML)},
	"escape":        {"", texts(escapeHTML)},
	"first":         {"", end1(func(int) int { return 0 })},
	"float":         {"default", filterFloat},
	"forceescape":   {"", texts(escapeHTML)},
	"format":        {"*", filterFormat},
	"groupby":       {"attribute default case_sensitive", filterGroup},
	"indent":        {"width first blank", filterIndent},
	"int":           {"default base", filterInt},
	"items":         {"", filterItems},
	"join":          {"d attribute", filterJoin},
	"last":          {"", end1(func(n int) int { return n - 1 })},
	"length":        {"", length},
	"list":          {"", func(x any, g Given) (any, error) { return items(x, g) }},
	"lower":         {"", texts(pyvalue.Lower)},
	"map":           {"*", filterMap},
	"max":           {"case_sensitive attribute", extreme(1)},
	"min":           {"case_sensitive attribute", extreme(-1)},
	"regex_replace": {"pattern repl", filterRegexReplace},
	"reject":        {"*", choose(false, false)},
	"rejectattr":    {"*", choose(true, false)},
	"replace":       {"old new count", replacement((*Env).Str)},
	"reverse":       {"", filterReverse},
	"round":         {"precision method", filterRound},
	"safe":          {"", texts(func(s string) string { return s })},
	"select":        {"*", choose(false, true)},
	"selectattr":    {"*", choose(true, true)},
	"slice":         {"slices fill_with", filterSlice},
	"sort":          {"reverse case_sensitive attribute", filterSort},
	"string":        {"", texts(func(s string) string { return s })},
	"sum":           {"attribute start", filterSum},
	"title":         {"", texts(pyvalue.TitleWords)},
	"tojson":        {"indent ensure_ascii separators sort_keys", filterJSON},
	"trim":          {"chars", filterTrim},
	"truncate":      {"length killwords end leeway", filterTruncate},
	"unique":        {"case_sensitive attribute", filterUnique},
	"upper":         {"", texts(pyvalue.Upper)},
	"wordcount":     {"", filterWordCount},
}

// Globals are the functions. strftime_now wants a clock.
var Globals = map[string]Function{
	"range":           {"start stop step", globalRange},
	"dict":            {"*", globalDict},
	"namespace":       {"*", globalNamespace},
	"raise_exception": {"message", globalRaise},
	"strftime_now":    {"format", globalTime},
}

func globalRange(_ any, g Given) (any, error) {
	var n [3]int
	for i, v := range g.List {
		k, ok := pyvalue.Int(v)
		if !ok {
			return nil, typeError("range", g.List...)
		}
		n[i] = k
	}

	lo := n[0]
	hi := n[1]
	step := n[2]
	switch len(g.List) {
	case 0:
		return nil, fmt.Errorf("%w: range without a number", ErrType)
	case 1:
		lo = 0
		hi = n[0]
		step = 1
	case 2:
		step = 1
	}

	if step == 0 {
		return nil, fmt.Errorf("%w: range with step 0", ErrType)
	}

	if lo < -maxNumber || lo > maxNumber || hi < -maxNumber || hi > maxNumber || (hi-lo)/step > maxSteps {
		return nil, fmt.Errorf("%w: range(%d, %d, %d)", ErrCost, lo, hi, step)
	}
	if err := g.Pay(max((hi-lo)/step, 0)); err != nil {
		return nil, err
	}

	out := []any{}
	for i := range walk(lo, hi, step) {
		out = append(out, int64(i))
	}

	return out, nil
}

// pairs reads dict(pairs, name=value …).
func (g Given) pairs(set func(k, v any) error) error {
	if len(g.List) > 1 {
		return fmt.Errorf("%w: %d arguments, want one", ErrType, len(g.List))
	}

	for _, from := range g.List {
		d, isDict := from.(*pyvalue.Dict)
		items, err := g.Iterate(from)
		if err != nil {
			return err
		}

		for _, item := range items {
			pair := []any{item, nil}
			if isDict {
				pair[1], _, err = d.GetKey(item)
			} else {
				pair, err = g.Iterate(item)
			}
			if err == nil && len(pair) != 2 {
				err = fmt.Errorf("%w: a dictionary is made of pairs, not of %d items", ErrType, len(pair))
			}
			if err == nil {
				err = set(pair[0], pair[1])
			}
			if err != nil {
				return err
			}
		}
	}

	for _, name := range g.Names {
		if err := set(name, g.Named[name]); err != nil {
			return err
		}
	}

	return nil
}

func globalDict(_ any, g Given) (any, error) {
	d := pyvalue.NewDict()
	if err := g.pairs(d.SetKey); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrType, err)
	}
	return d, nil
}

func globalNamespace(_ any, g Given) (any, error) {
	n := &Namespace{map[string]any{}}
	return n, g.pairs(func(k, v any) error {
		name, ok := k.(string)
		if !ok {
			return typeError("namespace", k)
		}
		n.Items[name] = v
		return nil
	})
}

func globalRaise(_ any, g Given) (any, error) {
	message, err := g.Str(g.or(0, "message", ""))
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %.300s", ErrRaised, message)
}

func globalTime(_ any, g Given) (any, error) {
	format, err := g.text(0, "format", nil)
	if err != nil {
		return nil, err
	}
	return strftime(g.Now(), format)
}
