package lm

import (
	"context"
	"slices"
)

// PromptLookup is a [Draft] that copies from the text itself: what followed the latest tokens where they were there
// before. It looks for the longest run of tokens, and of equally long ones for the latest. It costs nothing, and pays
// where a text repeats what it was given: summaries, corrections, code (Saxena, "Prompt Lookup Decoding", 2023; Yang
// et al., "Inference with Reference", 2023).
type PromptLookup struct {
	Longest  int // tokens that are looked for, at most; 0: 4
	Shortest int // and at least; 0: 2
}

// Propose implements [Draft].
func (l PromptLookup) Propose(_ context.Context, ids []int32, n int, _ *Sampler) (Proposal, error) {
	longest, shortest := l.Longest, l.Shortest
	if longest == 0 {
		longest = 4
	}
	if shortest == 0 {
		shortest = 2
	}

	at := -1 // behind the best place
	for size := min(longest, len(ids)-1); size >= max(shortest, 1) && at < 0; size-- {
		last := ids[len(ids)-size:]
		for start := len(ids) - size - 1; start >= 0; start-- {
			if slices.Equal(ids[start:start+size], last) {
				at = start + size
				break
			}
		}
	}
	if at < 0 {
		return Proposal{}, nil
	}

	// What is copied may run into its own beginning: a period repeats.
	p := Proposal{}
	for i := range n {
		if at+i < len(ids) {
			p.IDs = append(p.IDs, ids[at+i])
		} else {
			p.IDs = append(p.IDs, p.IDs[at+i-len(ids)])
		}
	}
	return p, nil
}

// Cost implements [Draft].
func (PromptLookup) Cost() float64 { return 0 }
