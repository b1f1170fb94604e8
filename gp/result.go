package gp

import (
	"cmp"
	"slices"
)

// Individual is an evaluated expression.
type Individual struct {
	Formula    string  `json:"formula"`
	Tree       *Expr   `json:"tree"`
	Quality    float64 `json:"quality"` // lower is better
	Size       int     `json:"size"`    // nodes
	Generation int     `json:"generation"`
	Origin     string  `json:"origin"` // seed, random, crossover, subtree, node or hoist, joined by +
}

// Result is the outcome of a search. It depends on the grammar, the fitness and the options alone, not on
// workers, time or interruptions.
type Result struct {
	Options    Options      `json:"options"`
	Grammar    Grammar      `json:"grammar"`
	Best       Individual   `json:"best"`
	Front      []Individual `json:"front"`      // of all expressions, those that no smaller one equals; by size
	Population []Individual `json:"population"` // the last, best first
	History    []Generation `json:"history"`
	Counts     Counts       `json:"counts"`
	Stopped    string       `json:"stopped"` // why the search ended
}

// Generation is the state after one generation; the first is number 0.
type Generation struct {
	Number      int     `json:"generation"`     // counted from 0
	Best        string  `json:"best"`           // formula of the best so far
	BestQuality float64 `json:"best_quality"`   // lower is better
	Median      float64 `json:"median_quality"` // of the members
	MeanSize    float64 `json:"mean_size"`      // of the members, in nodes
	Members     int     `json:"members"`        // expressions in the population
	Front       int     `json:"front"`          // expressions that no smaller one equals
	Counts      Counts  `json:"counts"`         // so far
}

// Counts says what became of the candidates. Each of Illegal to Evaluated counts candidates that went no
// further, so these add up to Generated.
type Counts struct {
	Generated  int            `json:"generated"`
	Simplified int            `json:"simplified"` // of all, those whose canonical form has fewer nodes
	Illegal    int            `json:"illegal"`    // refused by their structure
	Unusable   int            `json:"unusable"`   // refused on the probe
	Repeated   int            `json:"repeated"`   // the same canonical form as an earlier one
	SameMasks  int            `json:"same_masks"` // the same masks on the probe as an earlier one
	Evaluated  int            `json:"evaluated"`  // given to the fitness
	Rejected   int            `json:"rejected"`   // of those evaluated, refused by the fitness
	Reasons    map[string]int `json:"reasons"`    // of Illegal and Unusable
}

func (c Counts) clone() Counts {
	reasons := make(map[string]int, len(c.Reasons))
	for k, v := range c.Reasons {
		reasons[k] = v
	}
	c.Reasons = reasons
	return c
}

// order sorts by what a search minimises; ties go to the smaller expression, then by name.
func (o *Options) order(a, b Individual) int {
	return cmp.Or(
		cmp.Compare(a.Quality+o.Parsimony*float64(a.Size), b.Quality+o.Parsimony*float64(b.Size)),
		cmp.Compare(a.Size, b.Size), cmp.Compare(a.Formula, b.Formula),
	)
}

// front keeps the members that no other one beats in both quality and size, by size.
func front(list []Individual) []Individual {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Individual) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Quality, b.Quality), cmp.Compare(a.Formula, b.Formula))
	})

	out := list[:0]
	for _, x := range list {
		if len(out) == 0 || x.Quality < out[len(out)-1].Quality {
			out = append(out, x)
		}
	}

	return out
}

// layers ranks members by size and quality; see [paretoLayers].
func layers(list []Individual) (layer []int, spread []float64) {
	points := make([]point, len(list))
	for i, m := range list {
		points[i] = point{size: float64(m.Size), quality: m.Quality}
	}
	return paretoLayers(points)
}
