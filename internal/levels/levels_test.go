package levels

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// problems draws small problems.
func problems(t *rapid.T, largest int64) Problem {
	p := Problem{}
	for range rapid.IntRange(1, 6).Draw(t, "parts") {
		var part []Level
		for range rapid.IntRange(1, 4).Draw(t, "levels") {
			part = append(part, Level{
				Size: rapid.Int64Range(0, largest).Draw(t, "size"),
				Loss: float64(rapid.IntRange(-3, 60).Draw(t, "loss")),
			})
		}
		p.Parts = append(p.Parts, part)
	}
	p.Budget = rapid.Int64Range(0, 4*largest).Draw(t, "budget")
	return p
}

// every calls f with each assignment.
func every(p Problem, f func([]int)) {
	choice := make([]int, len(p.Parts))
	var rest func(i int)
	rest = func(i int) {
		if i == len(choice) {
			f(choice)
			return
		}
		for k := range p.Parts[i] {
			choice[i] = k
			rest(i + 1)
		}
	}
	rest(0)
}

// TestSolve: no assignment within the budget is better, and where none fits the error names the budget that would.
func TestSolve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := problems(t, 40)
		best, smallest := math.Inf(1), int64(math.MaxInt64)
		every(p, func(c []int) {
			smallest = min(smallest, p.Size(c))
			if p.Size(c) <= p.Budget {
				best = min(best, p.Loss(c))
			}
		})

		choice, err := p.Solve()
		var short *BudgetError
		switch {
		case smallest > p.Budget:
			if !errors.As(err, &short) || short.Smallest != smallest || !errors.Is(err, ErrBudget) {
				t.Fatalf("%v; the smallest takes %d", err, smallest)
			}
		case err != nil:
			t.Fatal(err)
		case p.Size(choice) > p.Budget || p.Loss(choice) != best:
			t.Fatalf("%v costs %g in %d of %d; the best costs %g", choice, p.Loss(choice), p.Size(choice), p.Budget,
				best)
		}
	})
}

// TestSolveCoarse: sizes that are too fine for the table are rounded up, which costs little, and nothing that would
// still have fitted is left out.
func TestSolveCoarse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := problems(t, 1<<40)
		choice, err := p.Solve()
		if errors.Is(err, ErrBudget) {
			return
		}
		if err != nil || p.Size(choice) > p.Budget {
			t.Fatalf("%v takes %d of %d: %v", choice, p.Size(choice), p.Budget, err)
		}

		tight := p // with a budget that rounding cannot use up
		tight.Budget -= p.Budget / units * int64(len(p.Parts)+2)
		every(tight, func(c []int) {
			if tight.Size(c) <= tight.Budget && tight.Loss(c) < p.Loss(choice) {
				t.Fatalf("%v costs %g in %d of %d; %v costs %g in %d", choice, p.Loss(choice), p.Size(choice),
					p.Budget, c, p.Loss(c), p.Size(c))
			}
		})
	})
}

// TestSearch: every assignment that is measured fits the budget, the figure never rises, the same seed takes the same
// course, and on losses that add up the search comes to the optimum.
func TestSearch(t *testing.T) {
	p := Problem{Budget: 60}
	for i := range 10 {
		weight := float64(1 + (i*7)%10)
		p.Parts = append(p.Parts, []Level{{3, 9 * weight}, {5, 3 * weight}, {8, weight}, {16, 0}})
	}
	want, err := p.Solve()
	if err != nil {
		t.Fatal(err)
	}

	run := func(seed uint64) ([]int, float64, []Generation) {
		var course []Generation
		s := Search{
			Problem: p, Start: p.smallest(), Generations: 300, Offspring: 16, Survivors: []int{4}, Seed: seed,
			Judge: func(_ context.Context, stage int, choices [][]int) (out []float64, err error) {
				for _, c := range choices {
					if n := p.Size(c); n > p.Budget {
						t.Errorf("%v takes %d", c, n)
					}
					noise := float64((c[0]*5+c[1]*3)%4) * float64(1-stage) // the first stage sees badly
					out = append(out, p.Loss(c)+noise)
				}
				return out, nil
			},
			Note: func(g Generation) { course = append(course, g) },
		}
		best, score, err := s.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return best, score, course
	}

	best, score, course := run(1)
	if score != p.Loss(want) || p.Loss(best) != score {
		t.Errorf("%v costs %g; the best is %v, %g", best, score, want, p.Loss(want))
	}
	if len(course) != 301 || course[0].Score != p.Loss(p.smallest()) {
		t.Errorf("%d generations from %g", len(course), course[0].Score)
	}
	for i, g := range course[1:] {
		if g.Score > course[i].Score || g.Better != (g.Score < course[i].Score) || g.Number != i+1 {
			t.Errorf("generation %d: %+v after %+v", i+1, g, course[i])
		}
	}
	if again, _, other := run(1); !slices.Equal(again, best) || len(other) != len(course) ||
		!slices.Equal(other[20].Best, course[20].Best) {
		t.Error("another course with the same seed")
	}
}

// TestSearchEnds: a start beyond the budget, a failing judge, a context that has ended, and parts of a single level.
func TestSearchEnds(t *testing.T) {
	p := Problem{Parts: [][]Level{{{1, 1}}, {{1, 1}}}, Budget: 2}
	failed := errors.New("no")
	s := Search{
		Problem: p, Start: []int{0, 0}, Generations: 3, Offspring: 4,
		Judge: func(_ context.Context, _ int, c [][]int) ([]float64, error) { return make([]float64, len(c)), nil },
	}
	if best, _, err := s.Run(context.Background()); err != nil || !slices.Equal(best, s.Start) {
		t.Errorf("nothing to switch: %v, %v", best, err)
	}

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := s.Run(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}

	s.Judge = func(context.Context, int, [][]int) ([]float64, error) { return nil, failed }
	if _, _, err := s.Run(context.Background()); !errors.Is(err, failed) {
		t.Errorf("a judge that fails: %v", err)
	}
	s.Budget = 1
	if _, _, err := s.Run(context.Background()); !errors.Is(err, ErrBudget) {
		t.Errorf("a start beyond the budget: %v", err)
	}
}
