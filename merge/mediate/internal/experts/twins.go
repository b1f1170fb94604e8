package experts

import (
	"math"

	"github.com/modelcompress/compress/merge/internal/method"
)

// twins find experts that have the same tensor, bit for bit: what several share is stored once.
type twins [][]bool // [i][j], j < i: alike so far

func newTwins(n int) twins {
	t := make(twins, n)
	for i := range t {
		t[i] = make([]bool, i)
		for j := range t[i] {
			t[i][j] = true
		}
	}
	return t
}

// look compares a block of all experts. Most tensors differ in their first element.
func (t twins) look(b *method.Block) {
	for i := range t {
		for j, alike := range t[i] {
			t[i][j] = alike && same(b.X[i], b.X[j])
		}
	}
}

func same(a, b []float32) bool {
	for i, v := range a {
		if math.Float32bits(v) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

// join takes over what another has seen.
func (t twins) join(o twins) {
	for i := range t {
		for j := range t[i] {
			t[i][j] = t[i][j] && o[i][j]
		}
	}
}

// of is the first expert that the i-th is like; -1: none.
func (t twins) of(i int) int {
	for j, alike := range t[i] {
		if alike {
			return j
		}
	}
	return -1
}

// Share notes with the parts that are another expert's what is known of that one once it is written.
func Share(parts []*Part) {
	for _, p := range parts {
		if p.Encoding == Same {
			p.Lost = parts[p.twin].Lost
		}
	}
}
