package lm

import "github.com/modelcompress/compress/kernels"

// draftPlan says how many tokens a draft proposes, by how many of the latest ones were taken.
//
// With a chance a that a token is taken, a pass over n proposed tokens yields (1-aⁿ⁺¹)/(1-a) tokens, and costs
// 1 + n·cost passes of one token, cost being the draft's and that of one more row (Leviathan et al., 2023, theorem
// 3.8). The plan takes the n for which the ratio is largest. Where that is not above 1, drafting does not pay: the text
// goes on without it for some tokens, twice as many each time, and then it is tried again.
//
// Nothing of this depends on the time that passes take, so that the same generation proposes the same tokens.
type draftPlan struct {
	cost float64 // of a proposed token: what proposes it, and its row in the pass
	most int

	taken, tried float64 // of the latest tokens, weighted; a token behind one that was not taken was not tried
	rest         int     // tokens until the next try
	pause        int     // of the next rest
}

const (
	// planMemory is what is left of the weight of what was seen before, with every pass.
	planMemory  = 0.9
	firstPause  = 8
	longestRest = 256
)

// The chance that is assumed before anything was seen, as tokens taken and tried.
const priorTaken, priorTried = 1.4, 2

func newDraftPlan(cost float64, most int) *draftPlan {
	return &draftPlan{cost: cost, most: most, taken: priorTaken, tried: priorTried, pause: firstPause}
}

// tokens is how many the draft may propose now.
func (d *draftPlan) tokens() int {
	if d.rest > 0 {
		d.rest--
		return 0
	}

	best, gain := 0, 1.0
	chance := d.taken / d.tried
	yield, power := 1.0, 1.0
	for n := 1; n <= d.most; n++ {
		power *= chance
		yield += power
		if g := yield / (1 + float64(n)*d.cost); g > gain {
			best, gain = n, g
		}
	}

	if best == 0 {
		// What comes after the rest may be another kind of text, so what was seen counts no more than a guess.
		d.rest = d.pause - 1
		d.pause = min(2*d.pause, longestRest)
		d.taken, d.tried = priorTaken/2, priorTried/2
	}
	return best
}

// saw takes in that of some proposed tokens the first were taken.
func (d *draftPlan) saw(taken, proposed int) {
	if proposed == 0 {
		return
	}

	d.taken = d.taken*planMemory + float64(taken)
	d.tried = d.tried*planMemory + float64(min(taken+1, proposed))
	if taken == proposed {
		d.pause = firstPause
	}
}

// What one more row costs in a pass over few rows, as a fraction of a pass over one, measured on SmolLM2-135M; see
// docs/models.md. Numbers of weights that are read once serve many rows; of few bits, what they are made into serves
// four.
const (
	denseRowCost     = 0.06
	sparseRowCost    = 0.6
	quantisedRowCost = 0.5
	byteRowCost      = 0.65
)

// rowCost is what one more row costs in a pass of the model over few rows.
func (m *Model) rowCost() float64 {
	cost := denseRowCost
	for _, b := range m.blocks {
		for _, l := range b.Linears() {
			switch {
			case !l.W.Coded.IsZero() && m.opts.Precision == kernels.Fast:
				cost = max(cost, byteRowCost)
			case !l.W.Coded.IsZero():
				cost = max(cost, quantisedRowCost)
			case !l.W.Sparse.IsZero():
				cost = max(cost, sparseRowCost)
			}
		}
	}
	return cost
}
