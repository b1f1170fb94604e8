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

// Result is the outcome of a search. It depends on the grammar, the fitness and the options alone, not on workers, time or
// interruptions.
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
	Number      int     `json:"generation"`
	Best        string  `json:"best"`
	BestQuality float64 `json:"best_quality"`
	Median      float64 `json:"median_quality"`
	MeanSize    float64 `json:"mean_size"`
	Members     int     `json:"members"`
	Front       int     `json:"front"`
	Counts      Counts  `json:"counts"` // so far
}

// Counts says what became of the candidates. Each of Illegal to Evaluated counts candidates that went no further, so these
// add up to Generated.
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

// layers ranks members by non-dominated sorting over quality and size: 0 for the front, 1 for the front of the rest, and
// so on. Within a layer, spread tells how far apart a member's neighbours are (crowding distance, Deb et al. 2002).
func layers(list []Individual) (layer []int, spread []float64) {
	layer, spread = make([]int, len(list)), make([]float64, len(list))
	left := make([]int, len(list))
	for i := range left {
		left[i] = i
	}
	bySize := func(a, b int) int {
		return cmp.Or(cmp.Compare(list[a].Size, list[b].Size), cmp.Compare(list[a].Quality, list[b].Quality), cmp.Compare(list[a].Formula, list[b].Formula))
	}
	slices.SortFunc(left, bySize)
	for n := 0; len(left) > 0; n++ {
		var here, rest []int
		for _, i := range left {
			if len(here) == 0 || list[i].Quality < list[here[len(here)-1]].Quality {
				layer[i] = n
				here = append(here, i)
			} else {
				rest = append(rest, i)
			}
		}
		crowd(list, here, spread)
		left = rest
	}
	return layer, spread
}

// crowd sets the spread of the members of one layer, which are in order of size.
func crowd(list []Individual, here []int, spread []float64) {
	first, last := list[here[0]], list[here[len(here)-1]]
	sizes, qualities := float64(last.Size-first.Size), first.Quality-last.Quality
	for k, i := range here {
		if k == 0 || k == len(here)-1 {
			spread[i] = 2
			continue
		}
		a, b := list[here[k-1]], list[here[k+1]]
		spread[i] = float64(b.Size-a.Size)/sizes + (a.Quality-b.Quality)/qualities
	}
}
