package library

import (
	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// Compare applies ==, !=, <, <=, >, >=, in or not in.
func (s *Env) Compare(op string, x, y any) (bool, error) {
	switch op {
	case "==", "!=":
		same, err := s.Equal(x, y)
		return same == (op == "=="), err
	case "in", "not in":
		in, err := s.contains(y, x)
		return in == (op == "in"), err
	}

	for _, v := range []any{x, y} {
		if u, ok := v.(*Undefined); ok {
			return false, u.Err()
		}
	}

	c, err := pyvalue.Compare(x, y)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrType, err)
	}

	f, okX := pyvalue.Number(x)
	g, okY := pyvalue.Number(y)
	if okX && okY && (math.IsNaN(f) || math.IsNaN(g)) {
		return false, nil
	}

	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}

	return c >= 0, nil
}

func (s *Env) contains(in, v any) (bool, error) {
	switch in := in.(type) {
	case string:
		part, ok := v.(string)
		if !ok {
			return false, typeError("in", v, in)
		}
		return strings.Contains(in, part), nil
	case *pyvalue.Dict:
		_, has, err := in.GetKey(v)
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrType, err)
		}
		return has, err
	}

	items, err := s.Iterate(in)
	for _, x := range items {
		if same, err := s.Equal(x, v); err != nil || same {
			return same, err
		}
	}

	return false, err
}

// has lists the keys of a dictionary.
func has(x any) string {
	if d, ok := x.(*pyvalue.Dict); ok {
		return "; known: " + strings.Join(d.Keys(), ", ")
	}
	return ""
}

// Filter applies a filter.
func (s *Env) Filter(name string, f Function, x any, args Given) (any, error) {
	if u, ok := x.(*Undefined); ok && name != "default" && name != "d" {
		empty, err := s.orEmpty(u)
		if err != nil {
			return nil, err
		}

		if name == "tojson" || name == "int" || name == "float" || name == "abs" || name == "round" {
			return nil, u.Err()
		}

		x = empty
	}

	if err := s.PayFor(x); err != nil {
		return nil, err
	}

	return f.Do(x, args)
}

// Cut is items[lo:hi:step].
func Cut(items []any, parts [3]*int) ([]any, error) {
	n := len(items)
	step := 1
	if parts[2] != nil {
		step = *parts[2]
	}
	if step == 0 {
		return nil, fmt.Errorf("%w: slice with step 0", ErrType)
	}

	// Positions are clamped to those that can be reached: a walk backwards begins at the last item and ends before the
	// first (CPython, PySlice_AdjustIndices).
	low, high := 0, n
	if step < 0 {
		low, high = -1, n-1
	}

	bound := func(p *int, without int) int {
		if p == nil {
			return without
		}
		v := *p
		if v < 0 {
			v += n
		}
		return min(max(v, low), high)
	}

	lo, hi := bound(parts[0], low), bound(parts[1], high)
	if step < 0 {
		lo, hi = bound(parts[0], high), bound(parts[1], low)
	}

	out := []any{}
	for i := range walk(lo, hi, step) {
		out = append(out, items[i])
	}

	return out, nil
}

// walk gives lo, lo+step, … up to hi, without it. What comes behind the last number may have no room in an int.
func walk(lo, hi, step int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := lo; step > 0 && i < hi || step < 0 && i > hi; i += step {
			if !yield(i) || step > 0 && step >= hi-i || step < 0 && step <= hi-i {
				return
			}
		}
	}
}
