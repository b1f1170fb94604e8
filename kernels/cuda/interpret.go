//go:build linux && (amd64 || arm64)

package cuda

import "slices"

// What interpret.cu reads: places for values, and the place that means the value before.
const (
	places = 8
	before = 15
)

// schedule is a formula on its way to the interpreter.
type schedule struct {
	f     Formula
	again bool  // loads are done where their value is used, every time
	depth []int // instructions on the longest path to each value
	order []step
	at    []int // by instruction: its step, -1 before it is scheduled
}

// step is an instruction of f with the steps that made its operands, -1 if it has none.
type step struct{ instr, a, b int }

// interpretable writes a formula as interpret.cu reads it, and reports whether its values find room: an
// instruction is a word, and a word of no meaning follows the last.
func interpretable(f Formula) ([]uint32, bool) {
	if slices.ContainsFunc(f, func(i FormulaInstr) bool { return i.Arg > 255 }) { // numbers have 8 bits
		return nil, false
	}

	for _, again := range []bool{false, true} {
		s := schedule{f: f, again: again, depth: make([]int, len(f)), at: slices.Repeat([]int{-1}, len(f))}
		for n, i := range f {
			a, b := operands(i)
			for _, o := range []int{a, b} {
				if o >= 0 {
					s.depth[n] = max(s.depth[n], s.depth[o]+1)
				}
			}
		}

		s.visit(len(f) - 1)
		if code, ok := s.words(); ok {
			return code, true
		}
	}

	return nil, false
}

// operands are the values that an instruction takes, -1 for none.
func operands(i FormulaInstr) (a, b int) {
	switch {
	case i.Op >= Plus:
		return i.A, i.B
	case i.Op >= Affine:
		return i.A, -1
	}
	return -1, -1
}

// visit schedules an instruction after what it needs, the deeper operand first, and returns its step. A path
// has as many instructions as a formula at most.
func (s *schedule) visit(n int) int {
	a, b := operands(s.f[n])
	if s.at[n] >= 0 && (a >= 0 || !s.again) {
		return s.at[n]
	}

	t := step{n, -1, -1}
	switch {
	case b >= 0 && s.depth[b] > s.depth[a]:
		t.b = s.visit(b)
		t.a = s.visit(a)
	case b >= 0:
		t.a = s.visit(a)
		t.b = s.visit(b)
	case a >= 0:
		t.a = s.visit(a)
	}

	s.order = append(s.order, t)
	s.at[n] = len(s.order) - 1
	return s.at[n]
}

// words gives every value that is used later than by the next step a place, until its last use.
func (s *schedule) words() ([]uint32, bool) {
	last := make([]int, len(s.order))
	for k, t := range s.order {
		for _, o := range []int{t.a, t.b} {
			if o >= 0 {
				last[o] = k
			}
		}
	}

	var held [places]int // 1 + the step whose value is there
	code, where := make([]uint32, 0, len(s.order)+1), make([]int, len(s.order))
	for k, t := range s.order {
		i, from := s.f[t.instr], [2]int{before, before}
		for n, o := range []int{t.a, t.b} {
			if o < 0 || o == k-1 {
				continue
			}
			from[n] = where[o]
		}

		for p, o := range held {
			if o > 0 && last[o-1] <= k {
				held[p] = 0
			}
		}

		to := before
		if last[k] > k+1 {
			if to = slices.Index(held[:], 0); to < 0 {
				return nil, false
			}
			held[to], where[k] = k+1, to
		}

		code = append(code, uint32(i.Op)|uint32(from[0])<<8|uint32(from[1])<<12|uint32(to)<<16|uint32(i.Arg&255)<<24)
	}

	return append(code, 0), true
}
