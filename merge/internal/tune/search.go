package tune

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/merge/internal/output"
)

// The ways in which a search can fail.
var (
	ErrOption  = output.ErrOption
	ErrJournal = failure.Misuse("journal does not belong to this search", "")
	ErrScore   = errors.New("no candidate has a score")
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

// Score rates a recipe; less is better. An error that wraps ErrCandidate counts as the worst score, any other ends the
// search.
type Score func(ctx context.Context, recipe []byte) (float64, error)

// Rating rates a recipe, with errors that are its own as part of the result.
func (score Score) Rating(ctx context.Context, recipe []byte) (Rating, error) {
	x, err := score(ctx, recipe)
	switch {
	case ctx.Err() != nil:
		return Rating{}, ctx.Err()
	case errors.Is(err, ErrCandidate):
		return Rating{Score: -1, Failed: err.Error()}, nil
	case err != nil:
		return Rating{}, err
	case math.IsNaN(x) || math.IsInf(x, 0):
		return Rating{Score: -1, Failed: fmt.Sprintf("score %v", x)}, nil
	}

	return Rating{Score: x}, nil
}

// Local rates candidates in this process, up to workers at the same time.
func Local(score Score, workers int) Rate {
	return func(ctx context.Context, recipes [][]byte, done func(int, Rating) error) error {
		group, within := mmapsafe.WithContext(ctx)
		group.SetLimit(max(workers, 1))

		one := make(chan struct{}, 1)
		for k, text := range recipes {
			group.Go(func() error {
				if err := within.Err(); err != nil {
					return err
				}

				r, err := score.Rating(within, text)
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

// ErrCandidate marks errors that are a candidate's own: its recipe cannot be merged or run.
var ErrCandidate = errors.New("candidate cannot be rated")

// Options of a search. The zero value is ready.
type Options struct {
	Generations int     // after the starting point; default 20
	Population  int     // candidates per generation, at least 4; default 4 + 3·ln(number of variables)
	Sigma       float64 // standard deviation at the start, as a share of each range; default 0.25
	Seed        uint64
	Workers     int // candidates rated at the same time; default 1

	Journal []byte    // lines of an interrupted search of the same recipe and options; nil: none
	Append  io.Writer // gets a line per score, each in one Write; nil: none
	Each    func(Step)
}

// Step is a rated candidate, as the journal has it.
type Step struct {
	Generation int       `json:"generation"` // 0 is the starting point
	Candidate  int       `json:"candidate"`
	Values     []float64 `json:"values"`
	Score      float64   `json:"score"` // -1 with Failed: none
	Failed     string    `json:"failed,omitempty"`
}

// Result of a search.
type Result struct {
	Variables []Variable `json:"variables"`
	Values    []float64  `json:"values"` // the best ones
	Score     float64    `json:"score"`
	Start     float64    `json:"start_score"` // of the starting point; -1 if it had none
	Steps     []Step     `json:"steps"`
	Recipe    []byte     `json:"-"` // with the best values
}

// Validate returns every fault of the options, joined.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrOption, fmt.Sprintf(format, args...)))
	}
	if o.Generations < 0 || o.Generations > 1_000_000 {
		bad("%d generations", o.Generations)
	}
	if o.Population != 0 && (o.Population < 4 || o.Population > 10_000) {
		bad("population of %d: want 4 to 10000", o.Population)
	}
	if !(o.Sigma >= 0 && o.Sigma <= 1) { // NaN is neither
		bad("sigma %v: want 0 to 1, where 0 is 0.25", o.Sigma)
	}

	return errors.Join(errs...)
}

// withDefaults fills in what is left out.
func (o Options) withDefaults(n int) Options {
	if o.Generations == 0 {
		o.Generations = 20
	}
	if o.Population == 0 {
		o.Population = population(n)
	}
	if o.Sigma == 0 {
		o.Sigma = 0.25
	}

	return o
}

// Search finds values for the open numbers of a recipe.
func Search(ctx context.Context, space *Space, rate Rate, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}

	o = o.withDefaults(len(space.Variables))
	s := &search{space: space, rate: rate, o: o, result: &Result{Variables: space.Variables, Score: math.Inf(1)}}
	if err := s.readJournal(); err != nil {
		return nil, err
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

	cma := newStrategy(unit, o.Sigma, o.Population)
	for g := 1; g <= o.Generations; g++ {
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

// search is the work.
type search struct {
	space   *Space
	rate    Rate
	o       Options
	journal map[[2]int]Step
	result  *Result
}

// step rates a generation and updates the strategy with what was tried.
func (s *search) step(ctx context.Context, cma *strategy, g int) error {
	var points, values [][]float64
	for k := range s.o.Population {
		u := cma.draw(s.o.Seed, k)
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
func (s *search) generation(ctx context.Context, g int, values [][]float64) ([]float64, error) {
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
			if err := s.note(steps[left[next]]); err != nil {
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

// note writes a step to the journal.
func (s *search) note(step Step) error {
	if s.o.Each != nil {
		s.o.Each(step)
	}
	if s.o.Append == nil {
		return nil
	}

	line, err := json.Marshal(step)
	if err != nil {
		return err
	}

	_, err = s.o.Append.Write(append(line, '\n'))
	return err
}

// readJournal reads the lines of an interrupted search; a line that was cut off at the end is left out.
func (s *search) readJournal() error {
	s.journal = map[[2]int]Step{}
	text := s.o.Journal
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[:i+1]
	} else {
		text = nil
	}

	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)

	for n := 1; lines.Scan(); n++ {
		var step Step
		if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
			return fmt.Errorf("%w: line %d: %w", ErrJournal, n, err)
		}
		s.journal[[2]int{step.Generation, step.Candidate}] = step
	}

	return lines.Err()
}
