package searchcmd

import (
	"cmp"
	"math"
	"slices"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/stats"
)

// What good formulas have in common: Pruner-Zero's publication looked at its candidates in this way too, and drew its
// principles from that. A search is no experiment: who has a symbol has its neighbours too, and parents' children were
// measured, so that a correlation says where to look and not why.

// Trait is something that a formula has or not, and what those that have it cost.
type Trait struct {
	Symbol   string  `json:"symbol"`
	Formulas int     `json:"formulas"` // that have it, of those measured in full
	With     float64 `json:"with"`     // their median cost
	Without  float64 `json:"without"`  // that of the others
	Spearman float64 `json:"spearman"` // of having it with the cost; negative: who has it costs less
	P        float64 `json:"p"`        // of its being none, adjusted for all symbols (Holm)
}

// leastTrait is how many formulas have to have a symbol, and how many not, for it to be reported.
const leastTrait = 3

// traits are the symbols of the grammar, those first that go along with low costs most clearly.
func traits(g gp.Grammar, climbs []Climbed) ([]Trait, error) {
	var formulas []*gp.Expr
	var costs []float64
	for _, c := range climbs {
		if c.Full == nil {
			continue
		}
		e, err := gp.Parse(c.Formula)
		if err != nil {
			return nil, err
		}
		formulas, costs = append(formulas, e), append(costs, *c.Full)
	}

	var out []Trait
	var ps []float64
	for _, s := range g.Symbols {
		has := make([]float64, len(formulas))
		var with, without []float64
		for i, e := range formulas {
			if e.Uses(s) {
				has[i], with = 1, append(with, costs[i])
			} else {
				without = append(without, costs[i])
			}
		}
		if len(with) < leastTrait || len(without) < leastTrait {
			continue
		}

		rho := stats.Spearman(has, costs)
		if math.IsNaN(rho) {
			continue
		}
		v := float64(len(costs) - 2)
		p := 0.0
		if rest := 1 - rho*rho; rest > 0 {
			p = stats.StudentP(rho*math.Sqrt(v/rest), v)
		}

		ps = append(ps, p)
		out = append(out, Trait{s.String(), len(with), stats.Median(with), stats.Median(without), rho, p})
	}

	for i, p := range stats.Holm(ps) {
		out[i].P = p
	}
	slices.SortStableFunc(out, func(a, b Trait) int {
		return cmp.Or(cmp.Compare(a.Spearman, b.Spearman), cmp.Compare(a.Symbol, b.Symbol))
	})
	return out, nil
}

// common shows them.
func (r *Report) common() report.Section {
	t := &report.Table{
		Title: "What formulas that were measured in full have in common",
		Columns: report.Columns("symbol", "formulas with it", "median cost with it|%.3f", "without|%.3f",
			"Spearman ρ|%+.2f", "p|%.2g"),
		Note: "ρ: of having the symbol with the cost, so that a symbol with a negative one goes along with low " +
			"costs; p is adjusted for all symbols (Holm). Candidates descend from each other, so this says where to " +
			"look, not why.",
	}
	for _, x := range r.Traits {
		t.Add(x.Symbol, x.Formulas, x.With, x.Without, x.Spearman, x.P)
	}
	return report.Section{Title: "What good formulas have in common", Tables: []*report.Table{t}}
}
