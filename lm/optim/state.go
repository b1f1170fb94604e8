package optim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// table is the state of all parameters of an optimiser.
type table struct {
	kinds    []string // names of what is kept besides the step
	slots    map[string]*slot
	restored bool
}

// slot is the state of one parameter: buffers by kind, some of them absent.
type slot struct {
	step int64
	bufs map[string][]float32
}

// maxStep is the largest count that a float32 holds exactly, with all below it.
const maxStep = 1 << 24

// of returns the slot of a parameter, checked, or a new one that sizes describe: the number of values by kind,
// where 0 means that the kind is absent. The slot is kept by keep only, so that a failing Apply changes
// nothing.
func (t *table) of(p Param, sizes map[string]int) (*slot, error) {
	s, ok := t.slots[p.Name]
	if !ok && t.restored {
		return nil, fmt.Errorf("%s: %w: the restored state lacks this parameter", p.Name, ErrState)
	}

	if !ok {
		s = &slot{bufs: map[string][]float32{}}
		for kind, n := range sizes {
			if n > 0 {
				s.bufs[kind] = make([]float32, n)
			}
		}

		if t.slots == nil {
			t.slots = map[string]*slot{}
		}

		t.slots[p.Name] = s
		return s, nil
	}

	for _, kind := range t.kinds {
		if got, want := len(s.bufs[kind]), sizes[kind]; got != want {
			return nil, fmt.Errorf("%s: %w: %s has %d values, want %d", p.Name, ErrState, kind, got, want)
		}
	}

	if s.step >= maxStep {
		return nil, fmt.Errorf("%s: %w: more than %d steps", p.Name, ErrState, maxStep)
	}

	return s, nil
}

// State implements [Optimizer].
func (t *table) State() map[string][]float32 {
	out := make(map[string][]float32, len(t.slots)*(1+len(t.kinds)))
	for name, s := range t.slots {
		out[name+".step"] = []float32{float32(s.step)}
		for kind, b := range s.bufs {
			out[name+"."+kind] = b
		}
	}
	return out
}

// Restore implements [Optimizer].
func (t *table) Restore(state map[string][]float32) error {
	slots := map[string]*slot{}
	for _, key := range slices.Sorted(maps.Keys(state)) {
		dot := strings.LastIndexByte(key, '.')
		if dot < 0 {
			return fmt.Errorf("%.200q: %w: the name lacks what it is; known: step, %s", key, ErrState,
				strings.Join(t.kinds, ", "))
		}

		name, kind := key[:dot], key[dot+1:]
		s := slots[name]
		if s == nil {
			s = &slot{step: -1, bufs: map[string][]float32{}}
			slots[name] = s
		}

		switch {
		case kind == "step":
			v := state[key]
			if len(v) != 1 || !(v[0] >= 0 && v[0] <= maxStep) || v[0] != float32(math.Trunc(float64(v[0]))) {
				return fmt.Errorf("%.200q: %w: not a count of steps", key, ErrState)
			}
			s.step = int64(v[0])
		case slices.Contains(t.kinds, kind):
			s.bufs[kind] = slices.Clone(state[key])
		default:
			return fmt.Errorf("%.200q: %w: unknown kind %.50q; known: step, %s", key, ErrState, kind,
				strings.Join(t.kinds, ", "))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(slots)) {
		if slots[name].step < 0 {
			return fmt.Errorf("%.200q: %w: no step", name, ErrState)
		}
	}

	t.slots, t.restored = slots, true
	return nil
}
