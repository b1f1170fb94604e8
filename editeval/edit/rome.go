package edit

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/lm/arch"
)

// ROME (Meng et al., 2022, arXiv:2202.05262): one fact as a change of rank one of one down-projection W. With k the key
// of the subject (over several prefixes), C the covariance of keys over ordinary text and v* the value that was
// searched for,
//
//	min ‖ΔW·C^½‖  with  (W + ΔW)·k = v*      ΔW = (v* - W·k)·(C⁻¹k)ᵀ / (kᵀC⁻¹k)
//
// so that of all changes that give k its new value, the one is taken that changes the values of ordinary keys least.

// places are all prompts of some requests at the subject's last token, one request after another.
func places(reqs []Encoded) []site.Place {
	var out []site.Place
	for i := range reqs {
		out = append(out, reqs[i].places()...)
	}
	return out
}

// searched runs the search for values and returns which requests are left.
func searched(goals []*optimize.Goal, reqs []Encoded) ([]*optimize.Goal, []Encoded, error) {
	var ok []*optimize.Goal
	var left []Encoded
	for i, g := range goals {
		if !g.Failed {
			ok, left = append(ok, g), append(left, reqs[i])
		}
	}
	if len(ok) == 0 {
		return nil, nil, fmt.Errorf("%w: no value for the target was found", ErrDiverged)
	}

	return ok, left, nil
}

// rome writes one fact as a rank-one change (ROME: rome_main.py, compute_u.py, compute_v.py; R-ROME: arXiv
// 2403.07175): u = C⁻¹k̄/‖·‖, r = (v* - o0)/(k0·u), W + r·uᵀ. R-ROME takes the same key in both places: the
// mean one, or the bare one.
func rome(ctx context.Context, e *Editing, reqs []Encoded) (*change, error) {
	block := e.hp.Layers[0]
	l, err := site.Linear(e.m, block, arch.Down)
	if err != nil {
		return nil, err
	}

	s, err := site.Look(ctx, e.m, places(reqs), []int{block})
	if err != nil {
		return nil, err
	}

	d := optimize.Descent{Params: e.hp.search(), Sites: []optimize.Site{{Linear: l.Name, Block: block}}}
	goals, err := d.Run(ctx, e.m, searchable(reqs))
	if err != nil {
		return nil, err
	}

	if _, _, err := searched(goals, reqs); err != nil {
		return nil, err
	}

	c := &change{goals: goals, past: newPast()}
	if e.hp.Anchor {
		if err := e.anchor(ctx, c, d, reqs); err != nil {
			return nil, err
		}
	}

	// ROME takes the mean key for the direction but the bare prompt's for the length of the step, as published; the two
	// differ, so the new value is not quite reached, and after many edits the model breaks down. R-ROME takes one key.
	keys, values := s.Keys[block], s.Values[block]
	bare, out := site.Row(keys, 0), site.Row(values, 0)
	mean := site.GroupMean(site.Vectors(keys, 0, keys.Rows), []int{keys.Rows})
	query := bare
	if e.method.name == "r-rome" && !e.hp.BareKey {
		query, out = mean, site.GroupMean(site.Vectors(values, 0, values.Rows), []int{values.Rows})
	}
	if e.method.name == "r-rome" && e.hp.BareKey {
		mean = bare
	}

	u, err := e.direction(block, mean)
	if err != nil {
		return nil, err
	}

	along := site.Dot(query, u)
	if math.Abs(along) < 1e-12*site.Norm(query) {
		return nil, fmt.Errorf("%w: the key is orthogonal to its direction", ErrStatistics)
	}

	r := site.Scaled(1/along, site.Minus(goals[0].Value(), out))
	delta, err := e.masked(Delta{Linear: l.Name, left: column(r), right: column(u)})
	c.deltas = []Delta{delta}
	return c, err
}

// direction is C⁻¹·k, or k, of length 1.
func (e *Editing) direction(block int, k []float64) ([]float64, error) {
	u := append([]float64(nil), k...)
	if e.hp.Statistics {
		x, err := e.cov.Solve(block, linalg.Of(u, 1, len(u)))
		if err != nil {
			return nil, err
		}
		u = x.Row(0)
	}

	n := site.Norm(u)
	if n == 0 {
		return nil, fmt.Errorf("%w: the key is zero", ErrStatistics)
	}

	return site.Scaled(1/n, u), nil
}

// column views a vector as a matrix with one column.
func column(v []float64) linalg.Matrix { return linalg.Of(v, len(v), 1) }
