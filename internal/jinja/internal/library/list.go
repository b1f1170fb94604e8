package library

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// items is iterate that copies.
func items(x any, g Given) ([]any, error) {
	list, err := g.Iterate(x)
	return append([]any{}, list...), err
}

// end1 picks one item.
func end1(at func(n int) int) Action {
	return func(x any, g Given) (any, error) {
		list, err := g.Iterate(x)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return &Undefined{What: "item of what is empty"}, nil
		}
		return list[at(len(list))], nil
	}
}

// getter is a function that reads an attribute, such as "a.b.0", of values.
func (g Given) getter(attribute any) func(v any) (any, error) {
	var steps []any
	switch a := attribute.(type) {
	case nil:
	case string:
		for part := range strings.SplitSeq(a, ".") {
			if n, err := strconv.Atoi(part); err == nil {
				steps = append(steps, int64(n))
			} else {
				steps = append(steps, part)
			}
		}
	default:
		steps = []any{a}
	}

	return func(v any) (any, error) {
		for _, key := range steps {
			var err error
			if v, err = g.Item(v, key); err != nil {
				return nil, err
			}
			if err := g.Step(); err != nil {
				return nil, err
			}
		}

		return v, nil
	}
}

// orUse is v, or what counts where it is not defined; nil stands for none.
func orUse(v, without any) any {
	if _, missing := v.(*Undefined); missing && without != nil {
		return without
	}
	return v
}

func filterJoin(x any, g Given) (any, error) {
	list, err := g.Iterate(x)
	if err != nil {
		return nil, err
	}

	get := g.getter(g.or(1, "attribute", nil))
	parts := make([]string, len(list))
	for i, v := range list {
		if v, err = get(v); err != nil {
			return nil, err
		}
		if parts[i], err = g.Str(v); err != nil {
			return nil, err
		}
	}

	return g.join(parts, g.or(0, "d", ""))
}

// join puts texts together.
func (s *Env) join(parts []string, between any) (any, error) {
	sep, err := s.Str(between)
	if err != nil {
		return nil, err
	}

	total := 0
	for _, part := range parts {
		if total += len(part) + len(sep); total > MaxOutput+len(sep) {
			break
		}
	}

	if err := s.PayText(max(total-len(sep), 0)); err != nil {
		return nil, err
	}

	return strings.Join(parts, sep), nil
}

func filterReverse(x any, g Given) (any, error) {
	list, err := items(x, g)
	if err != nil {
		return nil, err
	}

	slices.Reverse(list)
	if _, ok := x.(string); !ok {
		return list, nil
	}

	var b strings.Builder
	for _, c := range list {
		b.WriteString(c.(string))
	}

	return b.String(), nil
}

// keyed is an item with what it is ordered by.
type keyed struct{ key, item any }

// keys pairs items with what they are ordered by; texts count without regard to upper and lower case unless
// they are sensitive.
func (g Given) keys(list []any, sensitive bool, get func(v any) (any, error)) ([]keyed, error) {
	out := make([]keyed, len(list))
	for i, item := range list {
		key, err := get(item)
		if err != nil {
			return nil, err
		}

		if u, ok := key.(*Undefined); ok {
			return nil, u.Err()
		}
		if s, ok := key.(string); ok && !sensitive {
			key = pyvalue.Lower(s)
		}

		out[i] = keyed{key, item}
	}

	return out, g.PayFor(list...)
}

// order sorts items; those that are equal keep their order.
func order(list []keyed, reverse bool) error {
	var fault error
	sign := 1
	if reverse {
		sign = -1
	}

	slices.SortStableFunc(list, func(a, b keyed) int {
		if pyvalue.Equal(a.key, b.key) { // Jinja compares lists of one, whose equal items are asked no order
			return 0
		}

		c, err := pyvalue.Compare(a.key, b.key)
		if err != nil && fault == nil {
			fault = fmt.Errorf("%w: %w", ErrType, err)
		}
		return sign * c
	})

	return fault
}

func itemsOf(list []keyed) []any {
	out := make([]any, len(list))
	for i, k := range list {
		out[i] = k.item
	}
	return out
}

// several is a getter of attributes with commas between them, as a list.
func (g Given) several(attribute any, sensitive bool) func(v any) (any, error) {
	names, ok := attribute.(string)
	if !ok || !strings.Contains(names, ",") {
		return g.getter(attribute)
	}

	return func(v any) (any, error) {
		var out []any
		for name := range strings.SplitSeq(names, ",") {
			x, err := g.getter(name)(v)
			if err != nil {
				return nil, err
			}

			if s, ok := x.(string); ok && !sensitive {
				x = pyvalue.Lower(s)
			}

			out = append(out, x)
		}

		return out, nil
	}
}

func filterSort(x any, g Given) (any, error) {
	list, err := g.Iterate(x)
	if err != nil {
		return nil, err
	}

	sensitive := g.is(1, "case_sensitive", false)
	sorted, err := g.keys(list, sensitive, g.several(g.or(2, "attribute", nil), sensitive))
	if err == nil {
		err = order(sorted, g.is(0, "reverse", false))
	}

	return itemsOf(sorted), err
}

func filterDictSort(x any, g Given) (any, error) {
	d, ok := x.(*pyvalue.Dict)
	if !ok {
		return nil, typeError("dictsort", x)
	}

	at := map[string]int64{"key": 0, "value": 1}
	by, ok := at[pyvalue.Str(g.or(1, "by", "key"))]
	if !ok {
		return nil, fmt.Errorf("%w: dictsort by %s; known: key, value", ErrUnknown, pyvalue.Repr(g.or(1, "by", nil)))
	}

	list, _ := dictItems(d, g)
	sorted, err := g.keys(list.([]any), g.is(0, "case_sensitive", false), g.getter(by))
	if err == nil {
		err = order(sorted, g.is(2, "reverse", false))
	}

	return itemsOf(sorted), err
}

func filterGroup(x any, g Given) (any, error) {
	list, err := g.Iterate(x)
	if err != nil {
		return nil, err
	}

	get := g.getter(g.or(0, "attribute", nil))
	key := func(v any) (any, error) {
		k, err := get(v)
		return orUse(k, g.or(1, "default", nil)), err
	}

	sorted, err := g.keys(list, g.is(2, "case_sensitive", false), key)
	if err == nil {
		err = order(sorted, false)
	}
	if err != nil {
		return nil, err
	}

	out := []any{}
	for i := 0; i < len(sorted); {
		n := 1
		for i+n < len(sorted) && pyvalue.Equal(sorted[i].key, sorted[i+n].key) {
			n++
		}

		name, err := key(sorted[i].item)
		if err != nil {
			return nil, err
		}

		out = append(out, pyvalue.Tuple{name, itemsOf(sorted[i : i+n])})
		i += n
	}

	return out, nil
}

func filterSum(x any, g Given) (any, error) {
	list, err := g.Iterate(x)
	get := g.getter(g.or(0, "attribute", nil))
	total := g.or(1, "start", int64(0))
	for i := 0; err == nil && i < len(list); i++ {
		var v any
		if v, err = get(list[i]); err != nil {
			break
		}
		if u, ok := v.(*Undefined); ok {
			return nil, u.Err()
		}

		total, err = g.arith("+", total, v)
	}

	return total, err
}

func filterUnique(x any, g Given) (any, error) {
	list, err := g.Iterate(x)
	if err != nil {
		return nil, err
	}

	all, err := g.keys(list, g.is(0, "case_sensitive", false), g.getter(g.or(1, "attribute", nil)))
	seen, out := pyvalue.NewDict(), []any{}
	for _, k := range all {
		_, has, keyErr := seen.GetKey(k.key)
		if keyErr != nil {
			return nil, fmt.Errorf("%w: %w", ErrType, keyErr)
		}
		if has {
			continue
		}

		out = append(out, k.item)
		err = errors.Join(err, seen.SetKey(k.key, true))
	}

	return out, err
}

// extreme picks the largest (1) or smallest (-1) item.
func extreme(sign int) Action {
	return func(x any, g Given) (any, error) {
		list, err := g.Iterate(x)
		if err != nil {
			return nil, err
		}

		all, err := g.keys(list, g.is(0, "case_sensitive", false), g.getter(g.or(1, "attribute", nil)))
		if err != nil {
			return nil, err
		}

		if len(all) == 0 {
			return &Undefined{What: "extreme of what is empty"}, nil
		}

		best := all[0]
		for _, v := range all[1:] {
			c, err := pyvalue.Compare(v.key, best.key)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrType, err)
			}

			if c*sign > 0 {
				best = v
			}
		}

		return best.item, nil
	}
}

func filterBatch(x any, g Given) (any, error) {
	n, err := g.int(0, "linecount", 0)
	list, err2 := g.Iterate(x)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: rows of %d", ErrType, n)
	}

	out := []any{}
	for row := range slices.Chunk(list, n) {
		row = slices.Clone(row)
		if fill := g.or(1, "fill_with", nil); fill != nil && len(row) < n {
			if err := g.Pay(n); err != nil {
				return nil, err
			}
			row = append(row, slices.Repeat([]any{fill}, n-len(row))...)
		}

		out = append(out, row)
	}

	return out, nil
}

func filterSlice(x any, g Given) (any, error) {
	n, err := g.int(0, "slices", 0)
	list, err2 := g.Iterate(x)
	if err := errors.Join(err, err2, g.Pay(max(n, 0))); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: %d slices", ErrType, n)
	}

	size, extra := len(list)/n, len(list)%n
	out := []any{}
	for i := range n {
		lo := i*size + min(i, extra)
		hi := (i+1)*size + min(i+1, extra)
		part := slices.Clone(list[lo:hi])
		if fill := g.or(1, "fill_with", nil); fill != nil && i >= extra {
			part = append(part, fill)
		}

		out = append(out, part)
	}

	return out, nil
}

func filterItems(x any, g Given) (any, error) {
	if s, ok := x.(string); ok && s == "" { // what is not defined has none
		return []any{}, nil
	}
	d, ok := x.(*pyvalue.Dict)
	if !ok {
		return nil, typeError("items", x)
	}
	return dictItems(d, g)
}

// some lists the items of what counts as true; what does not has none.
func (g Given) some(x any) ([]any, error) {
	if holds, err := g.Truth(x); err != nil || !holds {
		return nil, err
	}
	return g.Iterate(x)
}

// filterMap applies a filter to every item, or reads an attribute of it.
func filterMap(x any, g Given) (any, error) {
	list, err := g.some(x)
	if err != nil {
		return nil, err
	}

	do, err := g.mapping()
	if err != nil {
		return nil, err
	}

	out := make([]any, len(list))
	for i, v := range list {
		if out[i], err = do(v); err != nil {
			return nil, err
		}
	}

	return out, g.PayFor(out...)
}

// mapping is what map does with an item.
func (g Given) mapping() (func(v any) (any, error), error) {
	attribute, ok := g.Named["attribute"]
	if len(g.List) == 0 && ok {
		get, without := g.getter(attribute), g.or(1, "default", nil)
		if err := (Function{Args: "attribute default"}).Check(g); err != nil {
			return nil, err
		}

		return func(v any) (any, error) {
			out, err := get(v)
			return orUse(out, without), err
		}, nil
	}

	name, err := g.text(0, "filter", nil)
	if err != nil {
		return nil, err
	}

	f, ok := g.Filters[name]
	if !ok {
		return nil, fmt.Errorf("%w: filter %q; known: %s", ErrUnknown, name, Known(g.Filters))
	}

	rest := g
	rest.List = g.List[1:]
	return func(v any) (any, error) { return g.Filter(name, f, v, rest) }, f.Check(rest)
}

// choose makes select and reject: items, or an attribute of them, for which a test holds or not.
func choose(attribute, keep bool) Action {
	return func(x any, g Given) (any, error) {
		list, err := g.some(x)
		if err != nil {
			return nil, err
		}

		get := g.getter(nil)
		if attribute {
			if len(g.List) == 0 {
				return nil, fmt.Errorf("%w: no attribute is named", ErrType)
			}
			get = g.getter(g.List[0])
			g.List = g.List[1:]
		}

		holds, err := g.choice()
		if err != nil {
			return nil, err
		}

		out := []any{}
		for _, item := range list {
			v, err := get(item)
			if err != nil {
				return nil, err
			}

			ok, err := holds(v)
			if err != nil {
				return nil, err
			}

			if ok == keep {
				out = append(out, item)
			}
		}

		return out, nil
	}
}

// choice is the test that the first argument names; without one it is whether a value counts as true.
func (g Given) choice() (func(v any) (bool, error), error) {
	if len(g.List) == 0 {
		return g.Truth, Function{}.Check(g)
	}

	name, err := g.text(0, "test", nil)
	if err != nil {
		return nil, err
	}

	test, ok := g.Tests[name]
	if !ok {
		return nil, fmt.Errorf("%w: test %q; known: %s", ErrUnknown, name, Known(g.Tests))
	}

	rest := g
	rest.List = g.List[1:]
	return func(v any) (bool, error) {
		if err := g.PayFor(v); err != nil {
			return false, err
		}
		ok, err := test.Do(v, rest)
		if err != nil {
			return false, err
		}
		return ok.(bool), nil
	}, test.Check(rest)
}
