package fitness

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"

	"github.com/modelcompress/compress/lm/corpus"
)

// Divide deals windows out to search, selection and test, so many to each, drawn by a seed; the windows of each
// set stay in the order of the text. The error wraps [ErrOptions] if there are too few.
func Divide(w corpus.Windows, search, choose, test int, seed uint64) (sets [3]corpus.Windows, err error) {
	counts := [3]int{search, choose, test}

	if need := search + choose + test; search < 1 || choose < 1 || test < 1 || need > len(w.IDs) {
		return sets, fmt.Errorf("%s: %w: %d windows of %d tokens for search, %d for selection and %d for the test; "+
			"the text has %d",
			w.Source, ErrOptions, search, w.SeqLen, choose, test, len(w.IDs))
	}

	// The text is cut into as many even runs as windows are taken; one window of each run is dealt.
	owner := make([]int, 0, search+choose+test)
	for k, n := range counts {
		for range n {
			owner = append(owner, k)
		}
	}

	draw := rand.New(rand.NewPCG(seed, 0x6461746173657473))
	draw.Shuffle(len(owner), func(i, j int) { owner[i], owner[j] = owner[j], owner[i] })
	var ids [3][][]int32
	for i, k := range owner {
		ids[k] = append(ids[k], w.IDs[i*len(w.IDs)/len(owner)])
	}
	for k := range sets {
		sets[k] = corpus.New(ids[k], w.Source)
	}

	return sets, nil
}

// Sharing is how much of one set of windows another one contains.
type Sharing struct {
	Windows int     `json:"windows"` // that are in the other set as they are
	Share   float64 `json:"share"`   // of the runs of Run tokens, those that are in the other set
	Run     int     `json:"run"`
}

// run is the length of the token runs that are looked for; shorter windows are looked for whole.
const run = 64

// Overlap looks for what of a is in b, wherever the windows begin.
func Overlap(a, b corpus.Windows) Sharing {
	s := Sharing{Run: min(run, a.SeqLen, b.SeqLen)}
	if s.Run == 0 {
		return s
	}

	there, whole := map[string]bool{}, map[string]bool{}
	for _, ids := range b.IDs {
		whole[key(ids)] = true
		for i := 0; i+s.Run <= len(ids); i++ {
			there[key(ids[i:i+s.Run])] = true
		}
	}

	found, n := 0, 0
	for _, ids := range a.IDs {
		if whole[key(ids)] {
			s.Windows++
		}

		for i := 0; i+s.Run <= len(ids); i++ {
			n++
			if there[key(ids[i:i+s.Run])] {
				found++
			}
		}
	}

	if n > 0 {
		s.Share = float64(found) / float64(n)
	}

	return s
}

// key makes tokens comparable: 16 bytes of their hash.
func key(ids []int32) string {
	raw := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		raw = append(raw, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	sum := sha256.Sum256(raw)
	return string(sum[:16])
}
