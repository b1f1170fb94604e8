package gp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/rng"
)

// The search is genetic programming as Pruner-Zero does it (Dong et al., 2024, arXiv:2406.02924): a population of
// expressions, each a formula that scores the weights of a matrix; a fitness that prunes a model by the formula and
// measures the damage; and generations in which tournaments choose parents and crossover and mutation make children.
//
//	first generation   seeds, then random trees                                begin
//	each further one   children of tournament winners, replacing all but the   advance, children, child (breed.go)
//	                   elite (or, in mode Steady, the worst, a few at a time)
//	end                Generations, Patience or MaxEvals reached               run
//
// A fitness costs minutes, everything else microseconds, so a candidate passes three sieves before it is evaluated
// (candidate): its canonical form (simplify.go) has to be legal; if that form was evaluated before, the quality is
// known; and so it is if another formula gives the same masks on a small probe, because two formulas with the same
// order of scores prune the same weights. A place in the generation whose child fails, or is a member already, tries
// again with a child that is changed more, up to maxAttempts.
//
// What is kept: known, a record for every canonical formula ever met; prints, one for every set of masks; archive, the
// best expressions of each size over the whole search, from which the result comes, so that a good expression is not
// lost with its generation.
//
// Invariants. Every random decision is drawn from a stream that is named by its place (seed, generation, step, place,
// attempt), never from one that goes on, and answers are taken in the order of the questions: so the result depends
// neither on the workers nor on who answers first. The journal holds the answers in that order; a resumed search makes
// the same candidates again and takes the journal's answers until it ends (replay).

// Search evolves expressions of a grammar towards the lowest fitness. The result is the same for any number of
// workers, and for a search that was interrupted and resumed from its journal. It returns [ErrGrammar] or
// [ErrOptions] for what can't work, [ErrJournal] for a journal of another search, and the fitness's own errors.
func Search(ctx context.Context, g Grammar, fit Fitness, o Options) (_ *Result, err error) {
	g, o = g.withDefaults(), o.withDefaults()
	if err := errors.Join(g.Validate(), o.Validate()); err != nil {
		return nil, err
	}

	s := &search{
		g: g, o: o, fit: fit, known: map[string]*record{}, prints: map[Fingerprint]*record{},
		counts: Counts{Reasons: map[string]int{}},
	}

	if s.journal, err = openJournal(g, o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.journal.Close()) }()

	if err := s.run(ctx); err != nil {
		return nil, err
	}

	// Steps that are left over show that the journal's search went another way, though its header agrees.
	if left := s.journal.Left(); left > 0 {
		return nil, fmt.Errorf("%s: %w: %d evaluations more than this search makes", o.Journal, ErrJournal, left)
	}

	return s.result(), nil
}

// search is the state of a run.
type search struct {
	g       Grammar
	o       Options
	fit     Fitness
	journal *replay[entry]

	known      map[string]*record // by canonical formula
	prints     map[Fingerprint]*record
	population []Individual
	layer      []int     // of the population, with aim Pareto
	spread     []float64 // the same
	archive    []Individual
	history    []Generation
	counts     Counts
	stopped    string
}

// record is what is known of a canonical expression. Those with the same masks share one.
type record struct {
	expr    *Expr
	origin  string
	gen     int
	done    bool
	refused bool // by the checks or by the fitness
	quality float64
}

func (s *search) run(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}

	s.note(0)
	best, since := s.archive[s.bestAt()].Quality, 0
	for gen := 1; gen <= s.o.Generations; gen++ {
		if s.o.MaxEvals > 0 && s.counts.Evaluated >= s.o.MaxEvals {
			s.stopped = "evaluations"
			return nil
		}

		if err := s.advance(ctx, gen); err != nil {
			return err
		}

		s.note(gen)
		since++
		if s.archive[s.bestAt()].Quality < best {
			best, since = s.archive[s.bestAt()].Quality, 0
		}

		if s.o.Patience > 0 && since >= s.o.Patience {
			s.stopped = "patience"
			return nil
		}
	}

	s.stopped = "generations"
	return nil
}

// begin makes the first generation: the seeds, then random trees until there are enough members that rank differently.
func (s *search) begin(ctx context.Context) error {
	var brood []*record
	for _, e := range s.o.Seeds {
		brood = s.propose(brood, e, "seed")
	}

	// In rounds, for the fitness may refuse some of a round. The limit ends it for grammars in which hardly anything
	// is legal.
	var members []Individual
	limit := 200 * s.o.Population
	for i := 0; ; {
		for ; len(members)+len(brood) < s.o.Population && i < limit && ctx.Err() == nil; i++ {
			brood = s.propose(brood, s.g.ramped(rng.NewStream(s.o.Seed, 0, i), i), "random")
		}

		more, err := s.evaluate(ctx, brood)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if members = append(members, more...); len(members) >= s.o.Population || i == limit {
			break
		}

		brood = nil
	}

	if len(members) == 0 {
		return fmt.Errorf("%w: none of %d random expressions is legal, %d refused by the fitness: %s", ErrGrammar,
			limit, s.counts.Rejected, s.reasons())
	}

	s.settle(members, s.o.Population)
	return nil
}

// reasons lists why candidates were refused, the most frequent reason first.
func (s *search) reasons() string {
	list := slices.Sorted(maps.Keys(s.counts.Reasons))
	slices.SortStableFunc(list, func(a, b string) int { return s.counts.Reasons[b] - s.counts.Reasons[a] })

	text := ""
	for i, r := range list {
		if i > 0 {
			text += "; "
		}
		text += fmt.Sprintf("%s (%d)", r, s.counts.Reasons[r])
	}

	return text
}

// advance makes one generation.
func (s *search) advance(ctx context.Context, gen int) error {
	if s.o.Mode == Steady {
		for made, step := 0, 0; made < s.o.Population; made, step = made+s.o.Batch, step+1 {
			members, err := s.children(ctx, gen, step, min(s.o.Batch, s.o.Population-made), s.population)
			if err != nil {
				return err
			}
			s.settle(append(slices.Clone(s.population), members...), s.o.Population)
		}

		return nil
	}

	elite := min(len(s.population), int(math.Ceil(max(0, s.o.Elite)*float64(s.o.Population))))
	keep, n := s.population[:elite], s.o.Population-elite
	if s.o.Aim == Pareto { // parents and children compete
		keep, n = s.population, s.o.Population
	}

	members, err := s.children(ctx, gen, 0, n, keep)
	if err != nil {
		return err
	}

	if members = append(slices.Clone(keep), members...); len(members) == 0 {
		return nil // nothing new can be made; the old generation stays
	}

	s.settle(members, s.o.Population)
	return nil
}

// children makes and evaluates n members that differ from each other and from those that stay.
func (s *search) children(ctx context.Context, gen, step, n int, stay []Individual) ([]Individual, error) {
	taken := map[*record]bool{}
	for _, m := range stay {
		taken[s.known[m.Formula]] = true
	}

	var brood []*record
	for place := range n {
		for attempt := range maxAttempts {
			r := rng.NewStream(s.o.Seed, gen, step, place, attempt)
			e, origin := s.child(r, attempt)
			if rec := s.candidate(e, origin, gen); rec != nil && !rec.refused && !taken[rec] {
				taken[rec] = true
				brood = append(brood, rec)
				break
			}
		}
	}

	return s.evaluate(ctx, brood)
}

// propose adds a candidate of the first generation to a brood if it is legal and new.
func (s *search) propose(brood []*record, e *Expr, origin string) []*record {
	rec := s.candidate(e, origin, 0)
	if rec == nil || rec.refused || rec.done || slices.Contains(brood, rec) {
		return brood
	}
	return append(brood, rec)
}

// candidate finds the record of an expression, a new one if it is unlike all before. It is nil for illegal ones.
func (s *search) candidate(e *Expr, origin string, gen int) *record {
	s.counts.Generated++
	canonical := Simplify(e)
	if canonical.Size() < e.Size() {
		s.counts.Simplified++
	}

	if err := s.g.check(canonical); err != nil {
		s.counts.Illegal++
		s.counts.Reasons[kind(err)]++
		return nil
	}

	key := canonical.String()
	if rec := s.known[key]; rec != nil {
		s.counts.Repeated++
		return rec
	}

	rec := &record{expr: canonical, origin: origin, gen: gen}
	s.known[key] = rec
	print, err := s.o.Probe.Fingerprint(canonical)
	if err != nil {
		rec.refused = true
		s.counts.Unusable++
		s.counts.Reasons[kind(err)]++
		return rec
	}

	same := s.prints[print]
	if same == nil || s.o.Compat {
		s.prints[print] = rec
		return rec
	}

	// The same masks, so the same quality: nothing is evaluated. The shorter of two such formulas is worth keeping.
	s.counts.SameMasks++
	if same.done && !same.refused && canonical.Size() < same.expr.Size() {
		rec.done, rec.quality = true, same.quality
		s.prints[print] = rec
		s.archive = append(s.archive, rec.individual())
		return rec
	}

	s.known[key] = same
	return same
}

// kind is the named error of a refused candidate.
func kind(err error) string {
	for _, k := range []error{
		ErrTooLarge, ErrForbidden, ErrNoWeight, ErrOnlyW, ErrShape, ErrParts, ErrInverted,
		ErrConstant, ErrNonFinite, ErrInput,
	} {
		if errors.Is(err, k) {
			return k.Error()
		}
	}
	return err.Error()
}

// evaluate finds the fitness of those that have none yet, and returns the members that have one.
func (s *search) evaluate(ctx context.Context, brood []*record) ([]Individual, error) {
	var fresh []*record
	for _, r := range brood {
		if !r.done {
			fresh = append(fresh, r)
		}
	}

	// A batch fitness compares the candidates of a batch with each other, so a batch of which the journal has only a
	// part is asked for again as a whole (settleOutcome then compares).
	todo, err := fresh, error(nil)
	if _, whole := s.fit.(BatchFitness); !whole || s.journal.Left() >= len(fresh) {
		todo, err = s.replay(fresh)
	}
	if err == nil && len(todo) > 0 {
		err = s.measure(ctx, todo)
	}
	if err == nil {
		err = s.journal.Sync()
	}
	if err != nil {
		return nil, err
	}

	var members []Individual
	for _, r := range brood {
		if !r.refused {
			members = append(members, r.individual())
		}
	}

	return members, nil
}

// replay takes what the journal knows, in its order, and returns the rest.
func (s *search) replay(fresh []*record) ([]*record, error) {
	for i, r := range fresh {
		line, ok := s.journal.Next()
		if !ok {
			return fresh[i:], nil
		}

		if want := r.expr.String(); line.Formula != want {
			return nil, fmt.Errorf("%s: %w: it holds %s where this search evaluates %s", s.o.Journal, ErrJournal,
				line.Formula, want)
		}

		s.take(r, line.Outcome)
	}

	return nil, nil
}

// measure asks the fitness, and writes the answers to the journal in order.
func (s *search) measure(ctx context.Context, todo []*record) error {
	// A fitness that shares a pass over the model between candidates wants all at once.
	if b, ok := s.fit.(BatchFitness); ok {
		batch := make([]*Expr, len(todo))
		for i, r := range todo {
			batch[i] = r.expr
		}

		out, err := b.EvaluateBatch(ctx, batch)
		if err != nil {
			return err
		}

		if len(out) != len(todo) {
			return fmt.Errorf("the fitness answered for %d of %d candidates", len(out), len(todo))
		}

		// In the order of the candidates, whatever order they finished in: resuming reads them so.
		for i, r := range todo {
			if err := s.settleOutcome(r, out[i]); err != nil {
				return err
			}
		}

		return nil
	}

	return s.measureApart(ctx, todo)
}

// measureApart evaluates one by one with the workers; answers are taken in order.
func (s *search) measureApart(ctx context.Context, todo []*record) error {
	ctx, cancel := context.WithCancel(ctx)
	type answer struct {
		o   Outcome
		err error
	}

	// With room for its answer, so that a worker never waits for those before it to be taken.
	answers := make([]chan answer, len(todo))
	for i := range answers {
		answers[i] = make(chan answer, 1)
	}

	work := make(chan int)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	for range min(s.o.Workers, len(todo)) {
		wg.Go(func() {
			for i := range work {
				o, err := ask(ctx, s.fit, todo[i].expr)
				answers[i] <- answer{o, err}
			}
		})
	}

	wg.Go(func() {
		defer close(work)
		for i := range todo {
			select {
			case work <- i:
			case <-ctx.Done():
				return
			}
		}
	})

	for i, r := range todo {
		select {
		case a := <-answers[i]:
			if a.err != nil {
				return fmt.Errorf("%s: %w", r.expr, a.err)
			}
			if err := s.settleOutcome(r, a.o); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}

	return nil
}

// ask evaluates one expression.
func ask(ctx context.Context, fit Fitness, e *Expr) (Outcome, error) {
	var q float64
	err := mmapsafe.Do(func() (err error) { q, err = fit.Evaluate(ctx, e); return err })
	if errors.Is(err, ErrRejected) {
		return Outcome{Rejected: err.Error()}, nil
	}
	return Outcome{Quality: q}, err
}

// settleOutcome writes an answer to the journal and takes it. What the journal has of a batch that was cut off
// must be the same.
func (s *search) settleOutcome(r *record, o Outcome) error {
	if o.Rejected == "" && (math.IsNaN(o.Quality) || math.IsInf(o.Quality, 0)) {
		o = Outcome{Rejected: fmt.Sprintf("quality is %g", o.Quality)}
	}

	line := entry{r.expr.String(), o}
	if found, ok := s.journal.Next(); ok {
		if !reflect.DeepEqual(found, line) {
			return fmt.Errorf("%s: %w: it holds %+v where the fitness now gives %+v", s.o.Journal, ErrJournal, found,
				line)
		}
	} else if err := s.journal.Append(line); err != nil {
		return err
	}

	s.take(r, o)
	return nil
}

func (s *search) take(r *record, o Outcome) {
	s.counts.Evaluated++
	r.done, r.quality = true, o.Quality

	if o.Rejected != "" {
		r.refused = true
		s.counts.Rejected++
	} else {
		s.archive = append(s.archive, r.individual())
	}

	if s.o.Events.Evaluated != nil {
		s.o.Events.Evaluated(r.expr, o, s.counts.clone())
	}
}

func (r *record) individual() Individual {
	return Individual{r.expr.String(), r.expr, r.quality, r.expr.Size(), r.gen, r.origin}
}

// settle makes the best n of a list the population, best first.
func (s *search) settle(list []Individual, n int) {
	at := make([]int, len(list))
	for i := range at {
		at[i] = i
	}

	s.population = list // beats looks at it
	s.layer, s.spread = layers(list)
	slices.SortStableFunc(at, func(a, b int) int {
		switch {
		case s.beats(a, b):
			return -1
		case s.beats(b, a):
			return 1
		}
		return 0
	})

	next := make([]Individual, 0, min(n, len(at)))
	for _, i := range at[:min(n, len(at))] {
		next = append(next, list[i])
	}

	s.population = next
	s.layer, s.spread = layers(next)
}

// bestAt is the place of the best expression in the archive.
func (s *search) bestAt() (at int) {
	for i := range s.archive {
		if s.o.order(s.archive[i], s.archive[at]) < 0 {
			at = i
		}
	}
	return at
}

// note records a generation.
func (s *search) note(gen int) {
	best := s.archive[s.bestAt()]
	g := Generation{
		Number: gen, Best: best.Formula, BestQuality: best.Quality, Members: len(s.population),
		Counts: s.counts.clone(),
	}

	var q []float64
	for _, m := range s.population {
		q = append(q, m.Quality)
		g.MeanSize += float64(m.Size) / float64(len(s.population))
	}

	slices.Sort(q)
	g.Median = q[len(q)/2]

	// With parsimony the best is not always on the front of quality and size.
	s.archive = append(front(s.archive), best)
	g.Front = len(s.archive) - 1
	s.history = append(s.history, g)
	if s.o.Events.Generation != nil {
		s.o.Events.Generation(g)
	}
}

func (s *search) result() *Result {
	return &Result{
		Options: s.o, Grammar: s.g, Best: s.archive[s.bestAt()], Front: front(s.archive), Population: s.population,
		History: s.history, Counts: s.counts, Stopped: s.stopped,
	}
}
