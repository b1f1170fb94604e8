package gp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/modelcompress/compress/internal/failure"
)

// Fitness says how good an expression is as a pruning metric. Evaluate returns its quality, lower being better,
// for example the perplexity of the pruned model; it is called from several goroutines at once. An error that
// wraps [ErrRejected] removes the candidate and is counted; so is a quality that is not finite. Any other error
// ends the search.
type Fitness interface {
	Evaluate(ctx context.Context, e *Expr) (float64, error)
}

// Func makes a [Fitness] of a function.
type Func func(ctx context.Context, e *Expr) (float64, error)

// Evaluate calls the function.
func (f Func) Evaluate(ctx context.Context, e *Expr) (float64, error) { return f(ctx, e) }

// BatchFitness may be implemented by a [Fitness] that wants all new candidates of a generation at once, to
// compare them by cheaper means first or to send them elsewhere. The answers are in the order of the candidates
// and must not depend on how the work was divided. A search that is resumed asks anew for a batch of which its
// journal has a part.
type BatchFitness interface {
	EvaluateBatch(ctx context.Context, batch []*Expr) ([]Outcome, error)
}

// Outcome is the answer for one candidate.
type Outcome struct {
	Quality  float64 `json:"quality"`            // lower is better
	Rejected string  `json:"rejected,omitempty"` // why the candidate is out; "" if it isn't
	// what else the fitness wants to see again in a resumed search; kept in the journal
	Detail json.RawMessage `json:"detail,omitempty"`
}

// ErrRejected marks candidates that a [Fitness] refuses.
var ErrRejected = errors.New("candidate rejected")

// ErrOptions says that a search can't run as asked.
var ErrOptions = failure.Misuse("unusable search options", "")

// Mode says how a population is renewed.
type Mode string

// The modes.
const (
	Generational Mode = "generational" // all but the elite are replaced at once
	Steady       Mode = "steady"       // a few children at a time replace the worst
)

// Aim says what selection prefers.
type Aim string

// The aims.
const (
	Best   Aim = "best"   // quality, with Parsimony added for every node
	Pareto Aim = "pareto" // both quality and size: no better expression is as small, spread along the front
)

// Options of a search. The zero value is the paper's setting with our simplification and checks.
type Options struct {
	Seed        uint64  `json:"seed"`        // of every random choice
	Population  int     `json:"population"`  // default 100
	Generations int     `json:"generations"` // after the first; default 50, negative: none
	Mode        Mode    `json:"mode"`        // default Generational
	Aim         Aim     `json:"aim"`         // default Best
	Tournament  int     `json:"tournament"`  // members drawn, with replacement; default 5
	Crossover   float64 `json:"crossover"`   // probability; default 0.8, negative: never
	Mutation    float64 `json:"mutation"`    // probability; default 0.1, negative: never
	// share of the population that is kept; default 0.1, negative: none
	Elite     float64 `json:"elite"`
	Parsimony float64 `json:"parsimony"` // added to the quality per node in comparisons; default 0
	Batch     int     `json:"batch"`     // children at a time in mode Steady; default 8
	// generations without a better expression before the search ends; default 0: never
	Patience int `json:"patience"`
	// evaluations after which no generation is begun; default 0: no bound
	MaxEvals int `json:"max_evals"`
	// choose nodes and mutate as the published code does, compare formulas and not masks
	Compat bool    `json:"paper_compat"`
	Seeds  []*Expr `json:"seeds,omitempty"` // members of the first generation
	// what the fitness depends on: hashes of models and data; a journal with another is refused
	FitnessID string `json:"fitness_id,omitempty"`

	Probe   *Probe `json:"-"` // default SyntheticProbe(0)
	Workers int    `json:"-"` // candidates measured at the same time; 0: one for each processor. Does not change the result
	Journal string `json:"-"` // file that every evaluation is written to; default none
	Resume  bool   `json:"-"` // go on with the journal, which must be of the same search
	Events  Events `json:"-"` // told how the search goes
}

// Events tells about progress; nil functions are off. They are called one at a time.
type Events struct {
	Evaluated  func(e *Expr, o Outcome, c Counts) // in the order of the journal, replayed ones included
	Generation func(s Generation)
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		p *int
		v int
	}{
		{&o.Population, 100},
		{&o.Generations, 50},
		{&o.Tournament, 5},
		{&o.Batch, 8},
		{&o.Workers, runtime.GOMAXPROCS(0)},
	} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}

	for _, d := range []struct {
		p *float64
		v float64
	}{{&o.Crossover, 0.8}, {&o.Mutation, 0.1}, {&o.Elite, 0.1}} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}

	if o.Mode == "" {
		o.Mode = Generational
	}
	if o.Aim == "" {
		o.Aim = Best
	}

	// A fixed probe, so that a search is the same in every run.
	if o.Probe == nil {
		o.Probe = SyntheticProbe(0)
	}

	return o
}

// Validate returns every fault.
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
		}
	}

	need(o.Population >= 2 && o.Population <= 1<<20, "population %d, not within 2 and %d", o.Population, 1<<20)
	need(o.Mode == Generational || o.Mode == Steady, "mode %q; known: %s, %s", o.Mode, Generational, Steady)
	need(o.Aim == Best || o.Aim == Pareto, "aim %q; known: %s, %s", o.Aim, Best, Pareto)
	need(o.Tournament >= 1, "tournament of %d", o.Tournament)
	need(o.Crossover <= 1, "crossover probability %g", o.Crossover)
	need(o.Mutation <= 1, "mutation probability %g", o.Mutation)
	need(o.Elite < 1, "elite share %g", o.Elite)
	// Sums, so that one test catches a NaN in any of them: comparisons above are false for it.
	need(!math.IsNaN(o.Crossover+o.Mutation+o.Elite+o.Parsimony) && !math.IsInf(o.Parsimony, 0),
		"a probability or the parsimony is not a number")
	need(o.Batch >= 1, "batch of %d", o.Batch)
	need(o.Patience >= 0 && o.MaxEvals >= 0 && o.Workers >= 1, "negative patience, evaluations or workers")
	need(!o.Resume || o.Journal != "", "resuming needs a journal")

	for i, e := range o.Seeds {
		if err := e.valid(); err != nil {
			faults = append(faults, fmt.Errorf("%w: seed expression %d: %w", ErrOptions, i, err))
		}
	}

	return failure.Join(faults...)
}

// hash identifies what, besides the fitness and the grammar, decides the course of a search.
func (o Options) hash() (string, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
