package edit

import (
	"context"
	"slices"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
)

// Norm anchors (NAS, arXiv 2602.02543): optimised values are longer than those that the model has, and grow as edits
// follow each other, until they drown what else flows there. So every value is brought to one length, the mean over
// many facts on the model before the first edit, the longest twentieth of which is left out. A value of more than twice
// that length is a search that went astray: its fact is left alone.
//
// The value is what the MLP's down-projection gives, v = v₀ + d: also where d was searched for in the stream.

const (
	astray  = 2    // times the anchor
	longest = 0.05 // fraction of the values that the mean leaves out
)

// AnchorFacts is how many facts give a good mean: whoever has more, leaves the others out of [Options].Anchors.
const AnchorFacts = 100

// anchor brings the values of a batch to their length.
func (e *Editing) anchor(ctx context.Context, c *change, d optimize.Descent, reqs []Encoded) error {
	length := e.past.anchor
	if length == 0 {
		var err error
		if length, err = e.length(ctx, c, d, reqs); err != nil {
			return err
		}
		c.past.anchor = length
	}

	v0, scale, err := e.bare(ctx, d, c.goals, reqs)
	if err != nil {
		return err
	}

	for i, g := range c.goals {
		if g.Failed {
			continue
		}

		v := site.Plus(v0[i], 1/scale, g.D[0])
		norm := site.Norm(v)
		switch {
		case norm > astray*length:
			clear(g.D[0])
			c.skipped = append(c.skipped, i)
		case norm > 0:
			g.D[0] = site.Scaled(scale, site.Minus(site.Scaled(length/norm, v), v0[i]))
		}
	}

	return nil
}

// length is that of values: what the hyper-parameters say, or the mean over facts.
func (e *Editing) length(ctx context.Context, c *change, d optimize.Descent, reqs []Encoded) (float64, error) {
	if e.hp.AnchorNorm > 0 {
		return e.hp.AnchorNorm, nil
	}

	goals := c.goals
	if len(e.anchors) > 0 {
		var err error
		reqs = e.anchors
		if goals, err = d.Run(ctx, e.m, searchable(reqs)); err != nil {
			return 0, err
		}
		if _, _, err = searched(goals, reqs); err != nil {
			return 0, err
		}
	}

	v0, scale, err := e.bare(ctx, d, goals, reqs)
	if err != nil {
		return 0, err
	}

	var norms []float64
	for i, g := range goals {
		if !g.Failed {
			norms = append(norms, site.Norm(site.Plus(v0[i], 1/scale, g.D[0])))
		}
	}
	slices.Sort(norms)
	norms = norms[:len(norms)-int(longest*float64(len(norms)))]

	sum := 0.0
	for _, n := range norms {
		sum += n
	}
	return sum / float64(len(norms)), nil
}

// bare is what the down-projection gives at the bare prompts of requests, and how many times that the site of their
// search gets of it.
func (e *Editing) bare(ctx context.Context, d optimize.Descent, goals []*optimize.Goal, reqs []Encoded,
) (v0 [][]float64, scale float64, err error) {
	if d.Sites[0].Linear != "" { // the search was for this very value
		for _, g := range goals {
			v0 = append(v0, g.V0[0])
		}
		return v0, 1, nil
	}

	var bare []site.Place
	for i := range reqs {
		bare = append(bare, reqs[i].places()[0])
	}
	block := d.Sites[0].Block
	s, err := site.Look(ctx, e.m, bare, []int{block})
	if err != nil {
		return nil, 0, err
	}

	// Where a norm follows the MLP, what reaches the stream is not a multiple of the value; it is read as one.
	return site.Vectors(s.Values[block], 0, len(reqs)), float64(e.m.Config().ResidualScale), nil
}
