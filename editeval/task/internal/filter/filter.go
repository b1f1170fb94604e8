// Package filter has the steps that turn generated texts into answers: lm-evaluation-harness' filters.
//
// Patterns are written for Python's re and translated to Go's regexp: \s, \d and \w stand for the characters of
// Unicode, a $ at the end also matches before a last line end, and a look-behind of fixed text at the beginning
// and a look-ahead of plain text or single characters at the end are emulated. Other look-arounds and
// back-references are refused.
package filter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// The ways in which a chain can be wrong.
var (
	ErrUnknown  = errors.New("unknown filter")
	ErrArgument = errors.New("bad argument of a filter")
)

// Chain is a chain of filters for one document at a time.
type Chain struct {
	Name  string
	steps []step
}

// step changes the responses to a document; what is no text may come out of map and take_first.
type step func(responses []any, doc *pyvalue.Dict) ([]any, error)

// maker makes a step of its arguments.
type maker func(args *arguments) step

// table lists the filters.
var table = map[string]maker{
	"lowercase":          func(*arguments) step { return each(strings.ToLower) },
	"majority_vote":      func(*arguments) step { return majority },
	"map":                mapping,
	"multi_choice_regex": lettered,
	"regex":              regex,
	"remove_whitespace":  func(*arguments) step { return each(pyvalue.Strip) },
	"take_first":         func(*arguments) step { return takeFirst },
	"take_first_k":       takeFirstK,
	"uppercase":          func(*arguments) step { return each(strings.ToUpper) },
}

// NewChain starts a chain.
func NewChain(name string) *Chain { return &Chain{Name: name} }

// Add appends a filter with its arguments; the key function is passed over.
func (c *Chain) Add(name string, args *pyvalue.Dict) error {
	m, ok := table[name]
	if !ok {
		return fmt.Errorf("%w %q; known: %s", ErrUnknown, name, strings.Join(slices.Sorted(maps.Keys(table)), ", "))
	}

	a := &arguments{dict: args, used: map[string]bool{"function": true}}
	s := m(a)
	if a.err == nil {
		for _, k := range args.Keys() {
			if !a.used[k] {
				a.err = fmt.Errorf("%w: %q", ErrArgument, k)
			}
		}
	}

	c.steps = append(c.steps, s)
	if a.err != nil {
		return fmt.Errorf("filter %s: %w", name, a.err)
	}

	return nil
}

// Apply runs the chain over the responses to a document. What is left is one answer, or a list of them without
// take_first.
func (c *Chain) Apply(responses []string, doc *pyvalue.Dict) (any, error) {
	list := make([]any, len(responses))
	for i, r := range responses {
		list[i] = r
	}

	for _, s := range c.steps {
		if len(list) == 1 {
			if inner, ok := list[0].(taken); ok { // what follows a take_first
				list = inner.again()
			}
		}

		var err error
		if list, err = s(list, doc); err != nil {
			return nil, err
		}
	}

	if len(list) == 1 {
		if t, ok := list[0].(taken); ok {
			return t.v, nil
		}
	}

	return list, nil
}

// taken is what take_first has left: the answer itself.
type taken struct{ v any }

func (t taken) again() []any {
	if l, ok := t.v.([]any); ok {
		return l
	}
	return []any{t.v}
}

// arguments are those of a filter.
type arguments struct {
	dict *pyvalue.Dict
	used map[string]bool
	err  error
}

func (a *arguments) get(key string) any {
	a.used[key] = true
	v, _ := a.dict.Get(key)
	return v
}

func (a *arguments) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf("%w: %s", ErrArgument, fmt.Sprintf(format, args...))
	}
}

func (a *arguments) text(key, without string) string {
	switch v := a.get(key).(type) {
	case nil:
		return without
	case string:
		return v
	default:
		a.fail("%s is a %s, want text", key, pyvalue.Kind(v))
	}
	return without
}

func (a *arguments) int(key string, without int) int {
	v := a.get(key)
	if v == nil {
		return without
	}
	n, ok := v.(int64)
	if !ok {
		a.fail("%s is a %s, want a whole number", key, pyvalue.Kind(v))
	}
	return int(n)
}

// each changes every text; what is none becomes "".
func each(f func(s string) string) step {
	return func(responses []any, _ *pyvalue.Dict) ([]any, error) {
		out := make([]any, len(responses))
		for i, r := range responses {
			s, _ := r.(string)
			out[i] = f(s)
		}
		return out, nil
	}
}

func takeFirst(responses []any, _ *pyvalue.Dict) ([]any, error) {
	if len(responses) == 0 {
		return nil, fmt.Errorf("%w: nothing to take", ErrArgument)
	}
	return []any{taken{responses[0]}}, nil
}

func takeFirstK(a *arguments) step {
	k := a.int("k", 0)
	if k < 1 {
		a.fail("k is %d, want 1 or more", k)
	}

	return func(responses []any, _ *pyvalue.Dict) ([]any, error) {
		if len(responses) < k {
			return nil, fmt.Errorf("%w: %d responses, fewer than the %d to take (HINT: repeats)", ErrArgument,
				len(responses), k)
		}
		return responses[:k], nil
	}
}

// majority keeps the response that is there most often, of equal ones the first.
func majority(responses []any, _ *pyvalue.Dict) ([]any, error) {
	best, most := 0, 0
	for i, r := range responses {
		n := 0
		for _, s := range responses {
			if pyvalue.Equal(r, s) {
				n++
			}
		}

		if n > most {
			best, most = i, n
		}
	}

	return responses[best : best+1], nil
}

func mapping(a *arguments) step {
	table, ok := a.get("mapping_dict").(*pyvalue.Dict)
	if !ok {
		a.fail("mapping_dict is no dictionary")
		table = pyvalue.NewDict()
	}

	without := a.get("default_value")
	return func(responses []any, _ *pyvalue.Dict) ([]any, error) {
		out := make([]any, len(responses))
		for i, r := range responses {
			out[i] = without
			if v, ok := table.Get(pyvalue.Str(r)); ok {
				out[i] = v
			}
		}
		return out, nil
	}
}

// regex takes what a pattern matches: all of its groups, or the whole; the match that group_select says,
// counted from the end if negative.
func regex(a *arguments) step {
	r := newFinder(a)
	return func(responses []any, _ *pyvalue.Dict) ([]any, error) {
		out := make([]any, len(responses))
		for i, resp := range responses {
			s, _ := resp.(string)
			m, found, err := find(r.p, s, r.pick)
			switch {
			case err != nil:
				return nil, err
			case found:
				out[i] = m
			case r.p.Groups() > 1 && len(r.p.FindAll(s)) > 0:
				out[i] = pyvalue.Strip(r.fallback) // as the harness does
			default:
				out[i] = r.fallback
			}
		}

		return out, nil
	}
}

// finder is the arguments that filters with a pattern share.
type finder struct {
	p        *Pattern
	pick     int
	fallback string
}

func newFinder(a *arguments) *finder {
	source := a.text("regex_pattern", `#### (\-?[0-9\.\,]+)`)
	r := &finder{pick: a.int("group_select", 0), fallback: a.text("fallback", "[invalid]")}
	var err error
	if r.p, err = Compile(source); err != nil {
		a.fail("%v", err)
	}
	return r
}

// find gives the chosen match of a pattern: its only group, or the first of several that holds something; false
// where there is none.
func find(p *Pattern, s string, pick int) (match string, found bool, err error) {
	all := p.FindAll(s)
	if len(all) == 0 {
		return "", false, nil
	}

	at := pick
	if at < 0 {
		at += len(all)
	}
	if at < 0 || at >= len(all) {
		return "", false, fmt.Errorf("%w: group_select %d of %d matches", ErrArgument, pick, len(all))
	}
	if p.Groups() < 2 {
		return pyvalue.Strip(all[at][0]), true, nil
	}

	for _, g := range all[at] {
		if g != "" {
			return pyvalue.Strip(g), true, nil
		}
	}

	return "", false, nil
}
