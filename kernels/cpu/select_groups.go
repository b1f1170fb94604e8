package cpu

// countedGroup is the longest group whose ranks are found by comparing every pair.
const countedGroup = 16

// groupPlan says how N:M groups lie in a vector, for kernels that rank all lanes at once: as many whole groups as the
// lanes hold.
type groupPlan struct {
	n, m int // of every m keys n go
	step int // lanes in use; 0 if a group does not fit
	turn []rotation
}

// rotation compares every lane of a vector with another lane of its group: lane i with lane from[i], whose key
// counts as one less (less[i] = -1) when it stands to the left, so that of equal keys the left one is lower.
type rotation struct {
	from, less [16]int32
}

// newGroupPlan lays groups of m, of which n go, over vectors of the given number of lanes.
func newGroupPlan(n, m, lanes int) *groupPlan {
	p := &groupPlan{n: n, m: m}
	if m < 2 || m > lanes {
		return p
	}

	p.step = lanes / m * m
	p.turn = make([]rotation, m-1)
	for r := range p.turn {
		for i := range 16 {
			j := i
			if i < p.step {
				j = i/m*m + (i%m+r+1)%m
			}
			p.turn[r].from[i], p.turn[r].less[i] = int32(j), -int32(b2i(j < i))
		}
	}

	return p
}

// chunk is how many columns are worked on at a time: whole groups.
func (p *groupPlan) chunk() int { return max(p.m, keyChunk/p.m*p.m) }

// groups writes the keep mask of a run of groups, the last of which may be short. The weights used next lie at address
// ahead. a and b are scratch.
func (s selector) groups(mask []uint8, keys []int32, p *groupPlan, ahead uintptr, a, b []int32) {
	at := 0
	switch {
	case p.n == 0:
		fillMask(mask, 1)
		return
	case p.n >= p.m:
		fillMask(mask, 0)
		return
	case p.m <= countedGroup:
		at = s.k.groups(mask, keys, p, ahead)
	}

	// What the kernel left: groups that do not fill a vector, the short one at the end of a row, long groups.
	for ; at < len(keys); at += p.m {
		end := min(at+p.m, len(keys))
		if g := keys[at:end]; p.n >= len(g) {
			fillMask(mask[at:end], 0)
		} else if p.m <= countedGroup {
			rankGroup(mask[at:end], g, p.n)
		} else {
			s.dropLowest(mask[at:end], g, p.n, a, b)
		}
	}
}

// rankGroup drops the n lowest keys of a group by counting, for each, how many are lower.
func rankGroup(mask []uint8, keys []int32, n int) {
	for i, k := range keys {
		lower := 0
		for _, o := range keys[:i] {
			lower += b2i(o <= k)
		}
		for _, o := range keys[i+1:] {
			lower += b2i(o < k)
		}

		mask[i] = uint8(b2i(lower >= n))
	}
}
