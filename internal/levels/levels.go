// Package levels chooses one of several levels for each part of a whole so that all together fit a budget: types of
// numbers for the matrices of a model, for one. [Problem.Solve] takes the losses of parts to add up; [Search] measures
// whole assignments instead, and goes from one to a better one.
package levels

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Level is one of the choices for a part.
type Level struct {
	Size int64   // what it takes of the budget, not negative
	Loss float64 // what it costs, finite
}

// Problem is what to choose from. Every part has a level at least; parts may have different ones.
type Problem struct {
	Parts  [][]Level
	Budget int64
}

// ErrBudget: no assignment fits the budget.
var ErrBudget = errors.New("no assignment fits the budget")

// BudgetError names the budget that would just do.
type BudgetError struct {
	Budget   int64 // the one that was asked for
	Smallest int64 // what the smallest level of every part takes
}

// Error gives both figures.
func (e *BudgetError) Error() string {
	return fmt.Sprintf("%v: %d, and the smallest takes %d", ErrBudget, e.Budget, e.Smallest)
}

// Unwrap gives [ErrBudget].
func (e *BudgetError) Unwrap() error { return ErrBudget }

// Size is what an assignment takes.
func (p Problem) Size(choice []int) (n int64) {
	for i, k := range choice {
		n += p.Parts[i][k].Size
	}
	return n
}

// Loss is what an assignment costs if losses add up.
func (p Problem) Loss(choice []int) (sum float64) {
	for i, k := range choice {
		sum += p.Parts[i][k].Loss
	}
	return sum
}

// units bounds how finely the budget is divided.
const units = 100_000

// Solve finds the assignment of least loss within the budget, by dynamic programming over sizes. Where these have no
// large common divisor they are rounded up to 1/100,000 of the budget, and what that leaves is filled afterwards. Of
// assignments that cost the same the one with lower levels in earlier parts is taken. The error is a [*BudgetError].
func (p Problem) Solve() ([]int, error) {
	least := int64(0)
	for _, part := range p.Parts {
		least += slices.MinFunc(part, func(a, b Level) int { return compare(a.Size, b.Size) }).Size
	}
	if least > p.Budget {
		return nil, &BudgetError{p.Budget, least}
	}

	unit := p.unit()
	choice, ok := p.best(unit)
	if !ok { // rounded up, not even the smallest levels fit
		choice = p.smallest()
	}
	p.fill(choice)
	return choice, nil
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// unit is what sizes are counted in: their greatest common divisor, or more where that is too fine.
func (p Problem) unit() int64 {
	unit := int64(0)
	for _, part := range p.Parts {
		for _, l := range part {
			for a, b := unit, l.Size; ; {
				if b == 0 {
					unit = a
					break
				}
				a, b = b, a%b
			}
		}
	}
	unit = max(unit, 1)
	return unit * ((p.Budget/unit + units) / units)
}

// best is the assignment of least loss with all sizes in units, rounded up; false if none fits.
func (p Problem) best(unit int64) ([]int, bool) {
	room := int(p.Budget / unit)
	cost := make([]float64, room+1) // least loss of the parts so far within a room
	taken := make([][]uint8, len(p.Parts))
	for i, part := range p.Parts {
		next := make([]float64, room+1)
		taken[i] = make([]uint8, room+1)
		for r := range next {
			next[r] = math.Inf(1)
			for k, l := range part {
				size := int((l.Size + unit - 1) / unit)
				if size <= r && cost[r-size]+l.Loss < next[r] {
					next[r] = cost[r-size] + l.Loss
					taken[i][r] = uint8(k)
				}
			}
		}
		cost = next
	}
	if math.IsInf(cost[room], 1) {
		return nil, false
	}

	choice := make([]int, len(p.Parts))
	for i := len(p.Parts) - 1; i >= 0; i-- {
		choice[i] = int(taken[i][room])
		room -= int((p.Parts[i][choice[i]].Size + unit - 1) / unit)
	}
	return choice, true
}

func (p Problem) smallest() []int {
	choice := make([]int, len(p.Parts))
	for i, part := range p.Parts {
		for k, l := range part {
			if l.Size < part[choice[i]].Size {
				choice[i] = k
			}
		}
	}
	return choice
}

// fill spends what is left of the budget where a byte saves most.
func (p Problem) fill(choice []int) {
	for left := p.Budget - p.Size(choice); ; {
		part, level := -1, 0
		gain := 0.0
		for i, k := range choice {
			now := p.Parts[i][k]
			for to, l := range p.Parts[i] {
				more := l.Size - now.Size
				if saved := (now.Loss - l.Loss) / float64(max(more, 1)); more <= left && saved > gain {
					part, level = i, to
					gain = saved
				}
			}
		}
		if part < 0 {
			return
		}
		left -= p.Parts[part][level].Size - p.Parts[part][choice[part]].Size
		choice[part] = level
	}
}
