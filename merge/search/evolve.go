package search

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/merge"
)

// Rating is what a candidate is worth; less is better.
type Rating struct {
	Score  float64 `json:"score"`
	Failed string  `json:"failed,omitempty"` // why there is no score, which counts as the worst one
}

// Rate rates the candidates of a generation, wherever and in whatever order, and calls done once for each, one
// call at a time. Its error, or that of done, ends the search.
type Rate func(ctx context.Context, recipes [][]byte, done func(k int, r Rating) error) error

// Check refuses what no rating is.
func (r Rating) Check() error {
	switch {
	case r.Failed != "" && r.Score != -1:
		return fmt.Errorf("%w: a score of %g and a failure", ErrScore, r.Score)
	case math.IsNaN(r.Score) || math.IsInf(r.Score, 0):
		return fmt.Errorf("%w: a score of %g", ErrScore, r.Score)
	}
	return nil
}

// scoring rates a recipe; less is better. An error that wraps errCandidate counts as the worst score, any other ends
// the search.
type scoring func(ctx context.Context, recipe []byte) (float64, error)

// rating rates a recipe, with errors that are its own as part of the result.
func (score scoring) rating(ctx context.Context, recipe []byte) (Rating, error) {
	x, err := score(ctx, recipe)
	switch {
	case ctx.Err() != nil:
		return Rating{}, ctx.Err()
	case errors.Is(err, errCandidate):
		return Rating{Score: -1, Failed: err.Error()}, nil
	case err != nil:
		return Rating{}, err
	case math.IsNaN(x) || math.IsInf(x, 0):
		return Rating{Score: -1, Failed: fmt.Sprintf("score %v", x)}, nil
	}

	return Rating{Score: x}, nil
}

// local rates candidates in this process, up to workers at the same time.
func local(score scoring, workers int) Rate {
	return func(ctx context.Context, recipes [][]byte, done func(int, Rating) error) error {
		group, within := mmapsafe.WithContext(ctx)
		group.SetLimit(max(workers, 1))

		one := make(chan struct{}, 1)
		for k, text := range recipes {
			group.Go(func() error {
				if err := within.Err(); err != nil {
					return err
				}

				r, err := score.rating(within, text)
				if err != nil {
					return err
				}

				one <- struct{}{}
				defer func() { <-one }()

				return done(k, r)
			})
		}

		return group.Wait()
	}
}

// errCandidate marks errors that are a candidate's own: its recipe cannot be merged or run.
var errCandidate = errors.New("candidate cannot be rated")

// settings are what the course of a search depends on. The zero value is ready.
type settings struct {
	generations int     // after the starting point; default 20
	population  int     // candidates per generation, at least 4; default 4 + 3·ln(number of variables)
	sigma       float64 // standard deviation at the start, as a fraction of each range; default 0.25
	seed        uint64

	old  []Step           // of an interrupted search of the same recipe and settings
	note func(Step) error // gets every new step, in their order; nil: none
}

// Step is a rated candidate, as the journal has it.
type Step struct {
	Generation int       `json:"generation"` // 0 is the starting point
	Candidate  int       `json:"candidate"`
	Values     []float64 `json:"values"`
	Score      float64   `json:"score"` // -1 with Failed: none
	Failed     string    `json:"failed,omitempty"`
}

// outcome is what a search found.
type outcome struct {
	Variables []Variable
	Values    []float64 // the best ones
	Score     float64
	Start     float64 // of the starting point; -1 if it had none
	Steps     []Step
	Recipe    []byte // with the best values
}

// validate returns every fault of the settings, joined.
func (o settings) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", merge.ErrOption, fmt.Sprintf(format, args...)))
	}
	if o.generations < 0 || o.generations > 1_000_000 {
		bad("%d generations", o.generations)
	}
	if o.population != 0 && (o.population < 4 || o.population > 10_000) {
		bad("population of %d: want 4 to 10000", o.population)
	}
	if !(o.sigma >= 0 && o.sigma <= 1) { // NaN is neither
		bad("sigma %v: want 0 to 1, where 0 is 0.25", o.sigma)
	}

	return errors.Join(errs...)
}

// withDefaults fills in what is left out.
func (o settings) withDefaults(n int) settings {
	if o.generations == 0 {
		o.generations = 20
	}
	if o.population == 0 {
		o.population = population(n)
	}
	if o.sigma == 0 {
		o.sigma = 0.25
	}

	return o
}

// evolve finds values for the open numbers of a recipe.
func evolve(ctx context.Context, space *openRecipe, rate Rate, o settings) (*outcome, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}

	o = o.withDefaults(len(space.Variables))
	s := &evolution{
		space: space, rate: rate, o: o, journal: map[[2]int]Step{},
		result: &outcome{Variables: space.Variables, Score: math.Inf(1)},
	}
	for _, step := range o.old {
		s.journal[[2]int{step.Generation, step.Candidate}] = step
	}

	start, err := s.generation(ctx, 0, [][]float64{space.Start()})
	if err != nil {
		return nil, err
	}

	s.result.Start = start[0]
	if math.IsInf(start[0], 1) {
		s.result.Start = -1
	}

	unit := make([]float64, len(space.Variables))
	for i := range unit {
		unit[i] = space.Variables[i].unit(space.Variables[i].Start)
	}

	cma := newStrategy(unit, o.sigma, o.population)
	for g := 1; g <= o.generations; g++ {
		if err := s.step(ctx, cma, g); err != nil {
			return nil, err
		}
	}

	if s.result.Values == nil {
		return nil, fmt.Errorf("%w: %s", ErrScore, s.result.Steps[0].Failed)
	}

	s.result.Recipe = space.Recipe(s.result.Values)
	return s.result, nil
}

// evolution is a search on its way.
type evolution struct {
	space   *openRecipe
	rate    Rate
	o       settings
	journal map[[2]int]Step // of the interrupted search, by generation and candidate
	result  *outcome
}

// step rates a generation and updates the strategy with what was tried.
func (s *evolution) step(ctx context.Context, cma *strategy, g int) error {
	var points, values [][]float64
	for k := range s.o.population {
		u := cma.sample(s.o.seed, k)
		x := make([]float64, len(u))
		for i := range x {
			x[i] = s.space.Variables[i].value(u[i])
			u[i] = s.space.Variables[i].unit(x[i])
		}

		points, values = append(points, u), append(values, x)
	}

	scores, err := s.generation(ctx, g, values)
	if err != nil {
		return err
	}

	return cma.update(points, scores)
}

// generation rates candidates, those that the journal has from there, and notes the best. Candidates enter the
// journal in their order, so that it does not show who rated them, or when.
func (s *evolution) generation(ctx context.Context, g int, values [][]float64) ([]float64, error) {
	steps := make([]Step, len(values))
	var left []int // to be rated
	var recipes [][]byte
	for k, x := range values {
		steps[k] = Step{Generation: g, Candidate: k, Values: x}
		old, ok := s.journal[[2]int{g, k}]
		if !ok {
			left, recipes = append(left, k), append(recipes, s.space.Recipe(x))
			continue
		}

		if !slices.Equal(old.Values, x) {
			return nil, fmt.Errorf("%w: generation %d, candidate %d has other values; recipe, seed or options differ",
				ErrJournal, g, k)
		}

		steps[k] = old
	}

	rated, next := make([]bool, len(left)), 0
	note := func(i int, r Rating) error {
		step := &steps[left[i]]
		step.Score = r.Score
		step.Failed = r.Failed
		rated[i] = true

		for ; next < len(left) && rated[next]; next++ {
			if s.o.note == nil {
				continue
			}
			if err := s.o.note(steps[left[next]]); err != nil {
				return err
			}
		}

		return nil
	}

	if len(left) > 0 {
		if err := s.rate(ctx, recipes, note); err != nil {
			return nil, err
		}
	}

	scores := make([]float64, len(steps))
	for k, step := range steps {
		scores[k] = step.Score
		if step.Failed != "" {
			scores[k] = math.Inf(1)
		}
		if scores[k] < s.result.Score {
			s.result.Score, s.result.Values = scores[k], step.Values
		}
	}

	s.result.Steps = append(s.result.Steps, steps...)
	return scores, nil
}
