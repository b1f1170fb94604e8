package gp

import (
	"cmp"
	"slices"
)

// point is what two members are compared by; both figures are better when lower.
type point struct{ size, quality float64 }

// paretoLayers ranks points by non-dominated sorting: 0 for the front, 1 for the front of the rest, and so on; of
// equal points the later one comes one layer down. Within a layer, spread tells how far apart a point's
// neighbours are (crowding distance, Deb et al. 2002).
func paretoLayers(list []point) (layer []int, spread []float64) {
	layer, spread = make([]int, len(list)), make([]float64, len(list))
	left := make([]int, len(list))
	for i := range left {
		left[i] = i
	}

	slices.SortStableFunc(left, func(a, b int) int {
		return cmp.Or(cmp.Compare(list[a].size, list[b].size), cmp.Compare(list[a].quality, list[b].quality))
	})

	for n := 0; len(left) > 0; n++ {
		var here, rest []int
		for _, i := range left {
			// Sorted by size: whoever is better than all smaller ones is dominated by none.
			if len(here) == 0 || list[i].quality < list[here[len(here)-1]].quality {
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

// crowd sets the spread of the points of one layer, which are in order of size.
func crowd(list []point, here []int, spread []float64) {
	first, last := list[here[0]], list[here[len(here)-1]]
	for k, i := range here {
		if k == 0 || k == len(here)-1 {
			spread[i] = 2
			continue
		}
		a, b := list[here[k-1]], list[here[k+1]]
		spread[i] = (b.size-a.size)/(last.size-first.size) + (a.quality-b.quality)/(first.quality-last.quality)
	}
}
