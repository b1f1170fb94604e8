package distil

import "slices"

// top writes the positions of the largest values of a row, largest first; of equal ones the lower position. ids is as
// long as there are to be.
func top(row []float32, ids []int32) {
	// A heap of what was found so far, the least of it on top: few values of a row get past it.
	less := func(a, b int32) bool { return row[a] < row[b] || row[a] == row[b] && a > b }
	down := func(i int) {
		for {
			least := i
			for _, c := range [...]int{2*i + 1, 2*i + 2} {
				if c < len(ids) && less(ids[c], ids[least]) {
					least = c
				}
			}
			if least == i {
				return
			}
			ids[i], ids[least] = ids[least], ids[i]
			i = least
		}
	}

	for i := range ids {
		ids[i] = int32(i)
	}
	for i := len(ids)/2 - 1; i >= 0; i-- {
		down(i)
	}

	// Later positions lose ties, so that only larger values matter.
	for j := len(ids); j < len(row); j++ {
		if row[j] > row[ids[0]] {
			ids[0] = int32(j)
			down(0)
		}
	}

	slices.SortFunc(ids, func(a, b int32) int {
		if less(b, a) {
			return -1
		}
		return 1
	})
}
