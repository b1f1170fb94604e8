package lm

import (
	"context"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// Speculative generation (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023; Chen et
// al., "Accelerating Large Language Model Decoding with Speculative Sampling", 2023): somebody cheap proposes the next
// tokens, and the model computes its logits after all of them in one pass, which reads its weights once. Tokens are
// taken as long as they are what the model itself chooses; the first that is not is replaced by the model's choice, and
// the keys and values of those behind it are cut off.
//
// What is chosen does not depend on how tokens were proposed:
//
//   - The most likely token is taken from logits that are the same to the last bit for any number of rows in a pass
//     ([layer.Few]), so that near ties fall as they do without a draft; see [Session.step].
//   - A token that was proposed without chance (from the text, or as a draft's most likely one) is taken if the model's
//     own sampling, with the seed's number for that position, gives it. That is rejection sampling for a proposal that
//     has all the probability, and gives the text that the seed gives without a draft.
//   - A token x that a draft has sampled from its distribution q is taken with probability min(1, p(x)/q(x)), and
//     otherwise replaced by one of max(0, p-q), scaled to 1, p being the model's distribution. What comes out is
//     distributed as p. Both are what temperature, limits and penalty make of logits; see [accepted].

// Draft proposes how a text may go on; see [GenerateOptions].
type Draft interface {
	// Propose returns at most n tokens that may follow ids, none where it has no idea. The sampler is the one of the
	// generation, which has seen ids, and must not be changed.
	Propose(ctx context.Context, ids []int32, n int, s *Sampler) (Proposal, error)
	// Cost is what it costs to propose a token, as a fraction of the model's pass for one token.
	Cost() float64
}

// Proposal is what a [Draft] proposes.
type Proposal struct {
	IDs []int32 // tokens in the order in which they would follow

	from [][]candidate // the distributions that the tokens were sampled from; nil: they were not
}

// DraftReport says what came of a draft.
type DraftReport struct {
	Passes   int     `json:"passes"`          // of the model, after the one over the prompt
	Alone    int     `json:"passes_alone"`    // of these, without proposed tokens: there were none, or they did not pay
	Proposed int     `json:"proposed_tokens"` // by the draft
	Accepted int     `json:"accepted_tokens"` // of these
	PerPass  float64 `json:"tokens_per_pass"` // new tokens a pass; 1 without a draft
}

// defaultDraftTokens is how many tokens a draft proposes at most, if nobody says otherwise. With the token before them
// they are no more than kernels for few rows take at a time.
const defaultDraftTokens = 8

// Drafting asks a [Draft] for one text, for as many tokens as pay by what was taken before.
type Drafting struct {
	draft Draft
	plan  *draftPlan
}

// NewDrafting begins a text with the proposals of a draft, most tokens at a time at most; 0: 8.
func (m *Model) NewDrafting(d Draft, most int) *Drafting {
	if most == 0 {
		most = defaultDraftTokens
	}
	return &Drafting{d, newDraftPlan(d.Cost()+m.rowCost(), most)}
}

// Propose returns at most n tokens that may follow ids, none where they do not pay.
func (d *Drafting) Propose(ctx context.Context, ids []int32, n int, s *Sampler) (Proposal, error) {
	n = min(d.plan.tokens(), n)
	if n < 1 {
		return Proposal{}, nil
	}

	p, err := d.draft.Propose(ctx, ids, n, s)
	if err != nil {
		return Proposal{}, fmt.Errorf("draft: %w", err)
	}
	p.IDs = p.IDs[:min(len(p.IDs), n)]
	return p, nil
}

// Saw takes in that of some proposed tokens the first were taken.
func (d *Drafting) Saw(taken, proposed int) { d.plan.saw(taken, proposed) }

// generation is a text that is being continued.
type generation struct {
	m    *Model
	o    GenerateOptions
	s    *Session
	pick Sampler
	ids  []int32 // the prompt and what is new
	new  int     // tokens that are
}

// choose takes a token by the logits at a position.
func (g *generation) choose(logits []float32, position int) (more bool, err error) {
	id, ok := g.pick.s.next(logits, position)
	if !ok {
		return false, g.notFinite(position)
	}
	return g.add(id), nil
}

func (g *generation) notFinite(position int) error {
	return fmt.Errorf("logits at position %d: %w: %s", position-1, ErrNonFinite, g.m.blame())
}

// add takes a token, and reports whether the text goes on.
func (g *generation) add(id int32) bool {
	g.ids = append(g.ids, id)
	g.new++
	return (g.o.Each == nil || g.o.Each(id)) && !slices.Contains(g.o.Stop, id) && g.left() > 0
}

// left is how many more tokens there may be.
func (g *generation) left() int {
	left := g.o.MaxTokens - g.new
	// Only a table of positions ends: rotations go on. The last token has no keys and values.
	if g.m.positions != nil {
		left = min(left, g.m.config.MaxPositions-len(g.ids)+1)
	}
	return left
}

// plain goes on token by token.
func (g *generation) plain(ctx context.Context) error {
	for more := true; more; {
		next := g.ids[len(g.ids)-1:]
		logits, err := g.s.Append(ctx, next)
		if err != nil {
			return err
		}

		g.pick.See(next)
		if more, err = g.choose(logits, g.s.Len()); err != nil {
			return err
		}
	}
	return nil
}

// drafted goes on with the tokens that a draft proposes.
func (g *generation) drafted(ctx context.Context) error {
	r := DraftReport{}
	d := g.m.NewDrafting(g.o.Draft, g.o.DraftTokens)
	for more := true; more; {
		p, err := d.Propose(ctx, g.ids, g.left()-1, &g.pick)
		if err != nil {
			return err
		}

		before := g.new
		if more, err = g.verify(ctx, p); err != nil {
			return err
		}

		taken := g.new - before
		right := min(taken, len(p.IDs))
		if right > 0 && g.ids[len(g.ids)-taken+right-1] != p.IDs[right-1] {
			right--
		}

		d.Saw(right, len(p.IDs))
		r.Passes++
		r.Proposed += len(p.IDs)
		r.Accepted += right
		if len(p.IDs) == 0 {
			r.Alone++
		}
	}

	if r.Passes > 0 {
		r.PerPass = float64(g.new-1) / float64(r.Passes)
	}
	if g.o.Drafted != nil {
		*g.o.Drafted = r
	}
	return nil
}

// verify runs the last token and those that are proposed behind it, and takes what the model makes of them.
func (g *generation) verify(ctx context.Context, p Proposal) (more bool, err error) {
	start := len(g.ids)
	tokens := append([]int32{g.ids[start-1]}, p.IDs...)
	rows, err := g.s.step(ctx, tokens)
	if err != nil {
		return false, err
	}

	used := 0
	for i, logits := range rows {
		g.pick.See(tokens[i : i+1])
		if i < len(p.from) {
			more, err = g.weigh(logits, start+i, p.IDs[i], p.from[i])
		} else {
			more, err = g.choose(logits, start+i)
		}
		if err != nil {
			break
		}

		used++
		if !more || i < len(p.IDs) && g.ids[start+i] != p.IDs[i] {
			break
		}
	}

	// All but the latest token, whose keys and values the next pass computes.
	cut := g.s.Truncate(start - 1 + used)
	if err == nil {
		err = cut
	}
	return more, err
}

// weigh takes a token that was sampled from a draft's distribution, or another one.
func (g *generation) weigh(logits []float32, position int, id int32, from []candidate) (more bool, err error) {
	if _, ok := g.pick.s.shape(logits); !ok {
		return false, g.notFinite(position)
	}

	at := uint64(position)
	seed := g.o.Seed
	if !accepted(g.pick.s.order, from, id, rng.New(seed, "draft accepted").Float(at)) {
		id = draw(residual(g.pick.s.order, from), rng.New(seed, "draft replaced").Float(at))
	}
	return g.add(id), nil
}

// accepted reports whether a token that was sampled from q stands for one that is sampled from p: with probability
// min(1, p(id)/q(id)), by a number of [0, 1). The weights of either need not add up to 1.
func accepted(p, q []candidate, id int32, u float64) bool {
	return u*weightOf(q, id)*totalOf(p) < weightOf(p, id)*totalOf(q)
}

func weightOf(list []candidate, id int32) float64 {
	at := slices.IndexFunc(list, func(c candidate) bool { return c.id == id })
	if at < 0 {
		return 0
	}
	return list[at].p
}

// residual is what replaces a token of q that was not accepted: max(0, p-q), of both as probabilities. It is p itself
// where nothing is left of that by rounding.
func residual(p, q []candidate) []candidate {
	of := make(map[int32]float64, len(q))
	total := totalOf(q)
	for _, c := range q {
		of[c.id] = c.p / total
	}

	total = totalOf(p)
	var left []candidate
	for _, c := range p {
		if more := c.p/total - of[c.id]; more > 0 {
			left = append(left, candidate{c.id, more})
		}
	}

	if len(left) == 0 {
		return p
	}
	return left
}

// step runs more tokens, and gives the logits of each, valid until the next call. Their bits do not depend on how many
// tokens run together: products have the bits that they have in passes of few rows, and every token is a sequence of
// its own that continues the one before, so that attention, and rotary frequencies that depend on the length, are what
// they are token by token. After an error the session is as [Session.Append] leaves it.
func (s *Session) step(ctx context.Context, ids []int32) ([][]float32, error) {
	m, before := s.m, s.Len()
	if err := m.checkIDs(0, ids, before); err != nil {
		return nil, err
	}

	lens, parents := make([]int, len(ids)), make([]int, len(ids))
	for i := range ids {
		lens[i], parents[i] = 1, i-1
	}
	past, _, _ := layer.Branches(s.layers, before, lens, parents)

	logits, err := s.rows(ctx, ids, lens, past)
	if err != nil {
		s.restore(before)
		return nil, err
	}

	s.grown(ids)
	return logits, nil
}

// rows is [Session.step] without what is done to the session.
func (s *Session) rows(ctx context.Context, ids []int32, lens []int, past []layer.Past) ([][]float32, error) {
	m, v := s.m, s.m.config.Vocab
	if err := m.grow(&s.hidden, kernels.F32, len(ids)*m.config.Hidden); err != nil {
		return nil, err
	}
	if err := m.grow(&s.logits, kernels.F32, len(ids)*v); err != nil {
		return nil, fmt.Errorf("logits of %d tokens: %w", len(ids), err)
	}

	p, err := m.beginAfter(s.scratch, lens, nil, past)
	if err != nil {
		return nil, err
	}
	defer p.End()

	p.Company = layer.Few
	x := kernels.MatOf(s.hidden, len(ids), m.config.Hidden)
	if err := p.extend(ctx, x, ids, func(l int) error { return s.room(l, len(ids)) }); err != nil {
		return nil, err
	}

	out := kernels.MatOf(s.logits, len(ids), v)
	err = p.headChunks(ctx, x, layer.Rows(len(ids)),
		func(lo, hi int) kernels.Mat { return out.RowRange(lo, hi) },
		func(int, int, kernels.Mat) error { return nil })
	if err != nil {
		return nil, err
	}
	return s.onHost(out)
}

// onHost gives the rows of logits in host memory.
func (s *Session) onHost(out kernels.Mat) ([][]float32, error) {
	if !s.m.host {
		n := out.Rows * out.Cols
		s.host = slices.Grow(s.host[:0], n)[:n]
		if err := s.m.dev.Download(kernels.WrapF32(s.host).Bytes(), out.Buf, out.Off); err != nil {
			return nil, err
		}
		out = kernels.MatOf(kernels.WrapF32(s.host), out.Rows, out.Cols)
	}

	rows := make([][]float32, out.Rows)
	for i := range rows {
		rows[i] = out.RowF32(i)
	}
	return rows, nil
}
