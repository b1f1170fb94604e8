//go:build (amd64 || arm64) && !noasm

package cpu

// groups does vectors of whole groups. A store covers all lanes, so the last one must end inside the mask. Groups that
// need two vectors go one by one.
func (a *selectAsm) groups(mask []uint8, keys []int32, p *groupPlan, ahead uintptr) (done int) {
	_ = keys[: len(mask) : len(mask)+keyPad]

	switch {
	case p.step > 0 && len(mask) >= a.lanes:
		n := (len(mask)-a.lanes)/p.step + 1
		a.rank(&mask[0], &keys[0], n, p.step, len(p.turn), &p.turn[0], int32(p.n), ahead)
		return n * p.step
	case p.step == 0 && len(mask) >= 16:
		n := (len(mask)-16)/p.m + 1
		a.wide(&mask[0], &keys[0], n, p.m, &leftOf[0], int32(p.n))
		return n * p.m
	}

	return 0
}

// leftOf[j] is -1 in the lanes to the right of j, whose keys lose a tie against key j.
var leftOf = func() (t [countedGroup][16]int32) {
	for j := range t {
		for i := j + 1; i < 16; i++ {
			t[j][i] = -1
		}
	}
	return t
}()
