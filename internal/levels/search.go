package levels

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
)

// Search goes from one assignment to a better one by switching levels: one part gets more, another less, so that the
// whole stays within the budget (EvoPress, Sieberling et al., arXiv 2410.14649). There is one parent; each generation
// makes offspring of it, measures all of them on little, the better ones on more, and the best one replaces the
// parent if it is better on everything. Levels of a part are neighbours by their sizes.
type Search struct {
	Problem
	Start       []int // an assignment within the budget
	Generations int
	Offspring   int // of a generation
	// Survivors is how many go on to each further stage, such as 4, 1; the best of the last one is compared with
	// the parent.
	Survivors []int
	Seed      uint64

	// Judge measures assignments at a stage, 0 being the cheapest; a lower figure is better. There are
	// len(Survivors)+1 stages. It is asked about the parent at the last one alone.
	Judge func(ctx context.Context, stage int, choices [][]int) ([]float64, error)
	// Note is told about every generation, 0 being the start; nil: nobody is.
	Note func(Generation)
}

// Generation is what one has come to.
type Generation struct {
	Number int
	Best   []int
	Score  float64 // at the last stage
	Better bool    // than the generation before
}

// Run searches, and gives the best assignment with its figure. Errors are those of Judge and of the context.
func (s *Search) Run(ctx context.Context) ([]int, float64, error) {
	if n := s.Size(s.Start); n > s.Budget {
		return nil, 0, &BudgetError{s.Budget, n}
	}

	last := len(s.Survivors)
	best := slices.Clone(s.Start)
	figures, err := s.judge(ctx, last, [][]int{best})
	if err != nil {
		return nil, 0, err
	}
	score := figures[0]
	s.note(Generation{Best: best, Score: score})

	for g := 1; g <= s.Generations; g++ {
		found, figure, err := s.generation(ctx, g, best)
		if err != nil {
			return nil, 0, err
		}

		better := found != nil && figure < score
		if better {
			best, score = found, figure
		}
		s.note(Generation{Number: g, Best: best, Score: score, Better: better})
	}
	return best, score, nil
}

func (s *Search) note(g Generation) {
	if s.Note != nil {
		g.Best = slices.Clone(g.Best)
		s.Note(g)
	}
}

// judge asks for the figures of assignments; what is no number is as bad as can be.
func (s *Search) judge(ctx context.Context, stage int, choices [][]int) ([]float64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	figures, err := s.Judge(ctx, stage, choices)
	if err != nil {
		return nil, err
	}
	if len(figures) != len(choices) {
		return nil, fmt.Errorf("%d figures of %d assignments", len(figures), len(choices))
	}
	for i, v := range figures {
		if math.IsNaN(v) {
			figures[i] = math.Inf(1)
		}
	}
	return figures, nil
}

// generation is the best offspring of a parent; nil if there is none.
func (s *Search) generation(ctx context.Context, number int, parent []int) ([]int, float64, error) {
	var young [][]int
	for k := range s.Offspring {
		child := s.mutate(rng.NewStream(s.Seed, number, k), parent)
		same := func(c []int) bool { return slices.Equal(c, child) }
		if child != nil && !same(parent) && !slices.ContainsFunc(young, same) {
			young = append(young, child)
		}
	}

	figure := math.Inf(1)
	for stage := 0; stage <= len(s.Survivors) && len(young) > 0; stage++ {
		figures, err := s.judge(ctx, stage, young)
		if err != nil {
			return nil, 0, err
		}

		order := make([]int, len(young))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case figures[a] < figures[b]:
				return -1
			case figures[a] > figures[b]:
				return 1
			}
			return 0
		})

		keep := 1
		if stage < len(s.Survivors) {
			keep = min(max(1, s.Survivors[stage]), len(young))
		}
		var next [][]int
		for _, i := range order[:keep] {
			next = append(next, young[i])
		}
		figure = figures[order[0]]
		young = next
	}

	if len(young) == 0 {
		return nil, 0, nil
	}
	return young[0], figure, nil
}

// tries bounds how often a part is drawn for a switch that none may allow.
const tries = 64

// mutate switches levels: once as a rule, seldom up to three times. nil if no switch was found.
func (s *Search) mutate(random *rng.Stream, parent []int) []int {
	child := slices.Clone(parent)
	switches := min(1+random.Below(3), 1+random.Below(3))
	for range switches {
		if !s.swap(random, child) {
			return nil
		}
	}
	return child
}

// swap gives one part its next larger level, and others, drawn one after another, their next smaller one until all fit.
func (s *Search) swap(random *rng.Stream, choice []int) bool {
	raised := -1
	for range tries {
		i := random.Below(len(choice))
		if k, ok := s.step(i, choice[i], 1); ok {
			choice[i] = k
			raised = i
			break
		}
	}
	if raised < 0 {
		return false
	}

	for range tries {
		if s.Size(choice) <= s.Budget {
			return true
		}
		i := random.Below(len(choice))
		if i == raised {
			continue
		}
		if k, ok := s.step(i, choice[i], -1); ok {
			choice[i] = k
		}
	}
	return s.Size(choice) <= s.Budget
}

// step is the level of a part that comes next by its size, the smallest larger or the largest smaller one.
func (s *Search) step(part, level, direction int) (int, bool) {
	found := -1
	now := s.Parts[part][level].Size
	for k, l := range s.Parts[part] {
		beyond := compare(l.Size, now) == direction
		nearer := found < 0 || compare(s.Parts[part][found].Size, l.Size) == direction
		if beyond && nearer {
			found = k
		}
	}
	return found, found >= 0
}
