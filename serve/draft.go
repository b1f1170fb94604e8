package serve

import (
	"context"
	"slices"

	"github.com/modelcompress/compress/lm"
)

// Proposed tokens are computed in the same pass as the token before them, and taken as long as they are what the choice
// chooses by the logits of each: the same bits, the same numbers of the seed, the same penalties as token by token.
// What a draft proposes is its most probable token, also for sampled text, so that no answer depends on it, nor on
// whether there was time to ask it.

// draftRows is how many rows of a pass answers with drafts may have together: kernels for few rows take no more at a
// time, and where many generate there is nothing left to gain.
const draftRows = 16

// draft is what proposes tokens of a choice. The zero value has not begun.
type draft struct {
	of     *lm.Drafting
	greedy *lm.Sampler
	end    func()
	ids    []int32 // the prompt, and what was chosen
}

// draftMemory is how many bytes the keys and values of all drafts of a model may take, beside its own.
func (o *Options) draftMemory() int64 { return o.Memory / 4 }

// mayDraft reports whether there is memory for the draft of a choice beside those that are open. Where there is none it
// is let go of: answers are the same without, and who comes later does not wait.
func (e *engine) mayDraft(c *choice) bool {
	size := func(c *choice) int64 {
		n := len(c.of.prompt) + len(c.ids) + draftRows
		return int64(n) * c.of.model().DraftBytes
	}

	total := size(c)
	for _, t := range e.tasks {
		for _, o := range t.choices {
			if o != c && o.draft.of != nil {
				total += size(o)
			}
		}
	}
	if total <= e.options.draftMemory() || c.of.model().DraftBytes == 0 {
		return true
	}
	c.draft.stop()
	return false
}

// propose gives tokens that may follow those of a choice, at most n.
func (c *choice) propose(ctx context.Context, n int) (ids []int32, err error) {
	t, d := c.of, &c.draft
	if d.of == nil {
		of, end, err := t.model().Draft()
		if err != nil {
			return nil, err
		}
		d.end = end
		if d.greedy, err = lm.NewSampler(lm.GenerateOptions{}); err != nil {
			return nil, err
		}
		d.of = t.model().LM.NewDrafting(of, t.model().engine.options.DraftTokens)
		d.ids = slices.Clone(t.prompt)
	}

	d.ids = append(d.ids, c.ids[len(d.ids)-len(t.prompt):]...)
	p, err := d.of.Propose(ctx, d.ids, min(n, t.max-len(c.ids)-1), d.greedy)
	return p.IDs, err
}

// stop lets go of it.
func (d *draft) stop() {
	if d.end != nil {
		d.end()
	}
	*d = draft{}
}

// draftShare is how many tokens each choice of a pass may have proposed.
func (e *engine) draftShare(s *served) int {
	if r := e.m.Config().Rope; r != nil && !r.Static() {
		return 0 // every token is a pass of its own
	}

	n := 0
	for _, t := range e.tasks {
		if t.model().alone() != s || !t.done {
			continue
		}
		for _, c := range t.choices {
			if c.finish == "" && c.err == nil {
				n++
			}
		}
	}

	// Nobody gives up keys and values for tokens that may be wrong.
	use := e.batch.Use()
	if n == 0 || use.Positions-use.Used < 2*e.page*n {
		return 0
	}
	return draftRows/n - 1
}
