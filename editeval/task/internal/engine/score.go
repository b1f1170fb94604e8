// Package engine runs the requests of tasks on a model: likelihoods of continuations and greedy generation.
// What requests have in common is computed once, and passes are laid out by the requests alone, so that answers
// depend neither on a batch size nor on where an interrupted run stopped.
package engine

import (
	"context"
	"math"

	"github.com/modelcompress/compress/lm"
)

// Engine runs requests on a model.
type Engine struct {
	Model  *lm.Model
	Limit  int // tokens of a sequence at most
	Budget int // tokens of a pass, about; 0: 2048
	Slots  int // texts generated at a time at most; 0: 16
	Memory int64
	// Done is told of work as it is finished, in tokens.
	Done func(tokens int)
}

// Score is the answer to a likelihood request.
type Score struct {
	LL     float64
	Greedy bool
}

// defaultBudget is how many tokens a pass has, about: enough to keep processors busy, few enough to stay in
// their caches.
const defaultBudget = 2048

func (e *Engine) budget() int {
	if e.Budget > 0 {
		return e.Budget
	}
	return defaultBudget
}

// shares reports whether a sequence's keys may be used for another: not where rotary frequencies depend on the length.
func (e *Engine) shares() bool {
	for _, r := range e.Model.Config().Ropes {
		if !r.Static() && (r.Original == 0 || e.Limit >= r.Original || e.Limit >= r.MaxPositions) {
			return false
		}
	}
	return true
}

// Likelihoods scores sequences. known[i] says that the answer to sequence i is there already; flush is called
// after every pass with the answers that are new. Where logits are not finite, the likelihood is NaN and the
// continuation is not greedy.
func (e *Engine) Likelihoods(ctx context.Context, seqs []Sequence, known func(i int) bool,
	flush func(i []int, s []Score) error,
) error {
	jobs := make([]job, len(seqs))
	for i, s := range seqs {
		jobs[i] = job{Sequence: s, index: i}
	}

	share := e.shares()
	s, err := e.Model.NewSession(lm.SessionOptions{KeepAll: true})
	if err != nil {
		return err
	}
	defer s.Close()

	r := &scorer{e: e, s: s, share: share}
	for _, b := range plan(jobs, e.budget(), share) {
		if b = missing(b, known); len(b.jobs) == 0 {
			continue
		}

		scores, err := r.run(ctx, b)
		if err != nil {
			return err
		}

		at, tokens := make([]int, len(b.jobs)), 0
		for i := range b.jobs {
			at[i], tokens = b.jobs[i].index, tokens+len(b.jobs[i].IDs)
		}
		if err := flush(at, scores); err != nil {
			return err
		}
		if e.Done != nil {
			e.Done(tokens)
		}
	}

	return nil
}

// missing leaves out what is known.
func missing(b batch, known func(i int) bool) batch {
	var kept []job
	lcp := math.MaxInt // with the job that was kept last
	for _, j := range b.jobs {
		lcp = min(lcp, j.lcp)
		if !known(j.index) {
			j.lcp, lcp = lcp, math.MaxInt
			kept = append(kept, j)
		}
	}

	b.jobs = kept
	return b
}

// scorer runs batches one after another; its session keeps the beginning that they share.
type scorer struct {
	e     *Engine
	s     *lm.Session
	share bool
	ids   []int32 // of the session
}

// run scores a batch.
func (r *scorer) run(ctx context.Context, b batch) ([]Score, error) {
	if err := r.root(ctx, b.jobs[0].IDs[:b.shared]); err != nil {
		return nil, err
	}

	t := grow(b, r.share)
	h, err := r.s.Branches(ctx, t.branches)
	if err != nil {
		return nil, err
	}
	defer h.Free()

	rows, want, places := gather(b, t)
	losses, best, err := r.e.Model.Score(ctx, h, rows, want)
	if err != nil {
		return nil, err
	}

	scores := make([]Score, len(b.jobs))
	for i, j := range b.jobs {
		s := Score{Greedy: true}
		for k, target := range j.Target {
			p := places[i][k]
			s.LL -= losses[p.row][p.at]
			s.Greedy = s.Greedy && best[p.row] == target
		}

		if math.IsInf(s.LL, 0) {
			s.LL = math.NaN()
		}

		s.Greedy = s.Greedy && !math.IsNaN(s.LL)
		scores[i] = s
	}

	return scores, nil
}

// root makes the session hold a sequence.
func (r *scorer) root(ctx context.Context, ids []int32) error {
	keep := common(r.ids, ids)
	if err := r.s.Truncate(keep); err != nil {
		return err
	}

	r.ids = append(r.ids[:keep], ids[keep:]...)
	if keep == len(ids) {
		return nil
	}

	_, err := r.e.read(ctx, r.s, ids[keep:])
	return err
}

// read appends tokens to a session, in passes of the engine's size, and gives the most likely next one; see
// [lm.Model.Score].
func (e *Engine) read(ctx context.Context, s *lm.Session, ids []int32) (int32, error) {
	for {
		n := min(len(ids), e.budget())
		h, err := e.Model.Step(ctx, []*lm.Session{s}, [][]int32{ids[:n]})
		if err != nil {
			return 0, err
		}

		if ids = ids[n:]; len(ids) > 0 {
			h.Free()
			continue
		}

		_, best, err := e.Model.Score(ctx, h, []int32{int32(n - 1)}, [][]int32{nil})
		h.Free()
		if err != nil {
			return 0, err
		}

		return best[0], nil
	}
}

// place is where the loss of a target is: among those of a row.
type place struct{ row, at int }

// gather lists the rows that are scored, each once, and the tokens that are wanted there.
func gather(b batch, t *tree) (rows []int32, want [][]int32, places [][]place) {
	at := map[int32]int{}
	places = make([][]place, len(b.jobs))
	for i, j := range b.jobs {
		for k, row := range t.rows[i] {
			n, ok := at[row]
			if !ok {
				n = len(rows)
				at[row] = n
				rows, want = append(rows, row), append(want, nil)
			}

			places[i] = append(places[i], place{n, len(want[n])})
			want[n] = append(want[n], j.Target[k])
		}
	}

	return rows, want, places
}
