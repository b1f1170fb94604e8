package pyrandom

import (
	"slices"
	"testing"
)

// TestTorchPermutation: as torch 2.15 gives it on a CPU: g = torch.Generator(); g.manual_seed(seed);
// torch.randperm(n, generator=g)[:k].
func TestTorchPermutation(t *testing.T) {
	for _, c := range []struct {
		n, k int
		seed uint64
		want []int
	}{
		{20, 20, 7, []int{15, 17, 9, 12, 7, 1, 19, 3, 4, 11, 18, 8, 2, 14, 16, 0, 10, 13, 6, 5}},
		{1000, 5, 7, []int{615, 284, 599, 580, 347}},
		{1, 1, 3, []int{0}},
		{5, 5, 1<<33 + 1, []int{0, 4, 2, 3, 1}},
		{220_000_000, 5, 7, []int{93268064, 63068233, 165770247, 155513421, 157420379}},
		{3, 0, 0, []int{}},
	} {
		if got := NewTorch(c.seed).Permutation(c.n, c.k); !slices.Equal(got, c.want) {
			t.Errorf("%d of %d, seed %d: %v, torch has %v", c.k, c.n, c.seed, got, c.want)
		}
	}
}

// TestInsideOut: the other shuffle gives every element once, and its beginning does not depend on how much is wanted.
func TestInsideOut(t *testing.T) {
	all := NewTorch(3).insideOut(50, 50)
	if got := NewTorch(3).insideOut(50, 7); !slices.Equal(got, all[:7]) {
		t.Errorf("%v, of all %v", got, all)
	}
	slices.Sort(all)
	for i, v := range all {
		if v != i {
			t.Fatalf("element %d of the sorted permutation is %d", i, v)
		}
	}
}
