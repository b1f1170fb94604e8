package fitness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/prune"
)

// The ladder is successive halving (Karnin et al., 2013; Jamieson and Talwalkar, 2016): all candidates of a generation
// are measured by the cheapest means, the best of them by the next, the best of those by pruning the whole model: 30 %
// at first, then as many as the rungs' agreement asks for (steer.go). The package comment says what the rungs measure
// and how well each orders candidates.
//
// Two things have to be settled for a genetic search to work with that.
//
// Qualities of different rungs must be comparable. Each is relative: 0 is the dense model, 1 is Wanda's metric under
// the same conditions, q = (loss - dense)/(wanda - dense), averaged over models and sparsities (reference.quality). A
// case in which Wanda costs next to nothing would divide by next to nothing, and is refused (ErrEasy).
//
// A candidate that stopped at a low rung must not beat one that climbed further, whatever the low rung says of it:
// cheap rungs flatter. So the qualities of a generation are settled from the top rung down; who was left behind gets
// the worst quality of those that went on, plus the distance by which it missed them (settle).

// Wanda is the metric that qualities are relative to, unless the options name another.
const Wanda = prune.FormulaPrefix + "W * sqrt(X)"

// ErrEasy says that pruning by Wanda's metric costs next to nothing, so that there is nothing to search for.
var ErrEasy = errors.New("pruning costs too little to tell metrics apart")

// leastCost is how much Wanda's metric has to raise the loss of a case, in nats a token.
const leastCost = 1e-3

// Ask has tasks done, somewhere, and returns the answers in their order. [Judge.All] is one.
type Ask func(ctx context.Context, tasks []Task) ([]Measure, error)

// LadderOptions say how many candidates climb on.
type LadderOptions struct {
	// share of a batch that goes on to the next rung until [Ladder.Steer] knows how rungs agree, then between half of
	// it and its double; 1: everybody, always; default 0.3
	Keep  float64 `json:"keep"`
	Least int     `json:"least"` // that go on in any case; default 4
	// Reference is the metric that qualities are relative to; "": [Wanda]
	Reference string `json:"reference,omitempty"`
}

// reference is the metric that qualities are relative to.
func (o *LadderOptions) reference() string { return cmp.Or(o.Reference, Wanda) }

// Ladder is a fitness for gp.Search, by successive halving; see the package documentation.
type Ladder struct {
	judge string
	ask   Ask
	o     LadderOptions
	base  map[Rung]reference
	trust map[Rung]float64 // correlation with the rung above, NaN: not known
}

// reference is what qualities of a rung are relative to, for each case.
type reference struct{ dense, wanda []float64 }

// Climb is what a candidate's way up the ladder was: its qualities on the rungs that it reached. It is the note
// beside its quality in the search's journal.
type Climb struct {
	Layers *float64 `json:"layers,omitempty"`
	Few    *float64 `json:"few,omitempty"`
	Full   *float64 `json:"full,omitempty"`
}

// rungs of the search, in order.
var rungs = []Rung{Layers, Few, Full}

// NewLadder measures the references of the search's rungs. judge is the ID of the judge that does the tasks. It
// returns [ErrEasy] if there is nothing to gain.
func NewLadder(ctx context.Context, judge string, ask Ask, o LadderOptions) (*Ladder, error) {
	if o.Keep == 0 {
		o.Keep = 0.3
	}
	if o.Least == 0 {
		o.Least = 4
	}
	if !(o.Keep > 0 && o.Keep <= 1) || o.Least < 1 {
		return nil, fmt.Errorf("%w: %g of a batch go on, at least %d", ErrOptions, o.Keep, o.Least)
	}

	l := &Ladder{judge: judge, ask: ask, o: o, base: map[Rung]reference{}, trust: map[Rung]float64{}}
	for _, r := range rungs {
		if err := l.refer(ctx, r); err != nil {
			return nil, err
		}
	}

	return l, nil
}

// refer measures the references of a rung, once.
func (l *Ladder) refer(ctx context.Context, r Rung) error {
	if _, done := l.base[r]; done {
		return nil
	}

	names := []string{l.o.reference(), Dense}
	if r == Layers {
		names = names[:1]
	}

	got, err := l.Measure(ctx, r, names)
	if err != nil {
		return fmt.Errorf("references: %w", err)
	}

	for i, m := range got {
		if m.Rejected != "" {
			return fmt.Errorf("references: %w: %s on the rung %s: %s", ErrSubject, names[i], r, m.Rejected)
		}
	}

	ref := reference{wanda: got[0].Values, dense: make([]float64, len(got[0].Values))}
	if r != Layers {
		ref.dense = got[1].Values
	}

	for i, w := range ref.wanda {
		switch cost := w - ref.dense[i]; {
		case r == Layers && !(cost > 0):
			return fmt.Errorf("case %d: %w: %s leaves the outputs of the sampled blocks as they were; "+
				"raise the sparsity", i+1, ErrEasy, names[0])
		case r != Layers && !(cost >= leastCost):
			return fmt.Errorf("case %d: %w: rung %s: %.4f nats a token with %s, %.4f dense; raise "+
				"the sparsity", i+1, ErrEasy, r, w, names[0], ref.dense[i])
		}
	}

	l.base[r] = ref
	return nil
}

// Measure has metrics measured on a rung.
func (l *Ladder) Measure(ctx context.Context, r Rung, metrics []string) ([]Measure, error) {
	tasks := make([]Task, len(metrics))
	for i, m := range metrics {
		tasks[i] = Task{Judge: l.judge, Rung: r, Metric: m}
	}
	got, err := l.ask(ctx, tasks)
	if err == nil && len(got) != len(tasks) {
		err = fmt.Errorf("%w: %d answers to %d tasks", ErrTask, len(got), len(tasks))
	}
	return got, err
}

// Quality is that of a measurement on a rung, relative to Wanda's metric; the references of the rungs select
// and test are measured when they are first asked for.
func (l *Ladder) Quality(ctx context.Context, r Rung, m Measure) (float64, error) {
	if err := l.refer(ctx, r); err != nil {
		return 0, err
	}
	return l.base[r].quality(m), nil
}

func (b reference) quality(m Measure) (q float64) {
	for i, v := range m.Values {
		q += (v - b.dense[i]) / (b.wanda[i] - b.dense[i]) / float64(len(m.Values))
	}
	return q
}

// Evaluate judges one expression, on all rungs.
func (l *Ladder) Evaluate(ctx context.Context, e *gp.Expr) (float64, error) {
	out, err := l.EvaluateBatch(ctx, []*gp.Expr{e})
	switch {
	case err != nil:
		return 0, err
	case out[0].Rejected != "":
		return 0, fmt.Errorf("%w: %s", gp.ErrRejected, out[0].Rejected)
	}
	return out[0].Quality, nil
}

// candidate is an expression on its way up.
type candidate struct {
	at      int // in the batch
	metric  string
	q       []float64 // on the rungs so far
	quality float64
}

// EvaluateBatch judges the new expressions of a generation. The quality of one depends on the others of its
// batch; see the package documentation.
func (l *Ladder) EvaluateBatch(ctx context.Context, batch []*gp.Expr) ([]gp.Outcome, error) {
	out := make([]gp.Outcome, len(batch))
	climbing := make([]*candidate, len(batch))
	for i, e := range batch {
		climbing[i] = &candidate{at: i, metric: prune.FormulaPrefix + e.String()}
	}

	var fallen [][]*candidate // by the rung that stopped them, with those that climbed on from it before them
	for n, r := range rungs {
		var err error
		if climbing, err = l.climb(ctx, r, climbing, out); err != nil {
			return nil, err
		}

		fallen = append(fallen, climbing)
		if n+1 < len(rungs) {
			climbing = climbing[:l.kept(r, len(climbing))]
		}
	}

	settle(fallen)

	// Everybody who was not refused on the first rung; those refused further up keep the qualities that they had as a
	// note.
	for _, c := range fallen[0] {
		o := &out[c.at]
		if o.Rejected == "" {
			o.Quality = c.quality
		}

		var err error
		if o.Detail, err = c.detail(); err != nil {
			return nil, err
		}
	}

	return out, nil
}

// kept is how many of n go on from a rung.
func (l *Ladder) kept(r Rung, n int) int {
	return min(n, max(l.o.Least, int(math.Ceil(l.share(r, n)*float64(n)))))
}

// climb measures candidates on a rung and returns those that are still in, best first.
func (l *Ladder) climb(ctx context.Context, r Rung, list []*candidate, out []gp.Outcome) ([]*candidate, error) {
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.metric
	}

	got, err := l.Measure(ctx, r, names)
	if err != nil {
		return nil, err
	}

	var left []*candidate
	for i, c := range list {
		q := math.NaN()
		if out[c.at].Rejected = got[i].Rejected; got[i].Rejected == "" {
			q = l.base[r].quality(got[i])
		}

		if math.IsNaN(q) || math.IsInf(q, 0) {
			out[c.at].Rejected = cmp.Or(got[i].Rejected, "the quality is not finite") + " (rung " + string(r) + ")"
			continue
		}

		c.q = append(c.q, q)
		left = append(left, c)
	}

	slices.SortStableFunc(left, func(a, b *candidate) int { return cmp.Compare(a.q[len(a.q)-1], b.q[len(b.q)-1]) })
	return left, nil
}

// settle gives everybody a quality, from the top rung down: list n holds those that were measured on rung n,
// best first.
func settle(lists [][]*candidate) {
	for n := len(lists) - 1; n >= 0; n-- {
		// Of those that were measured on the next rung: the worst quality, which they have already, and the worst on
		// this rung. They stand before the others, since the list is in the order of this rung.
		worst, edge := math.Inf(-1), math.Inf(-1)
		for _, c := range lists[n] {
			switch {
			case n == len(rungs)-1:
				c.quality = c.q[n]
			case len(c.q) > n+1:
				worst, edge = max(worst, c.quality), max(edge, c.q[n])
			case math.IsInf(worst, -1): // all that went on were rejected there
				c.quality = c.q[n]
			default:
				c.quality = worst + max(0, c.q[n]-edge)
			}
		}
	}
}

// detail is the note for the journal.
func (c *candidate) detail() (json.RawMessage, error) {
	var n Climb
	for i, to := range []**float64{&n.Layers, &n.Few, &n.Full} {
		if i < len(c.q) {
			*to = &c.q[i]
		}
	}
	return json.Marshal(n)
}
