package mediate

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/modelcompress/compress/merge/internal/output"
)

// BySentence is the value of [Policy].By that routes every sentence of a request for itself.
const BySentence = "sentence"

// shortest is how many tokens a sentence has at least: a shorter one says too little about who should answer it, and
// belongs to the one before it.
const shortest = 8

// What the way of a sentence says about that of the next, and how far a verdict of [Verdict.Outside] is believed. A
// sentence without a sign of its own so goes the way of its neighbours.
const (
	staying = 0.5
	trusted = 0.9
)

// Piece is a part of a request that is computed in one way.
type Piece struct {
	Len     int // tokens
	Weights []float64
}

// SentenceEnds cuts a request into sentences: it returns behind which token each of them ends, the last one at their
// number. texts are what the tokens stand for, one after another. A sentence ends at a line feed, and at a full stop,
// question or exclamation mark that is followed by white space; one of fewer than 8 tokens does not stand alone.
func SentenceEnds(texts []string) (ends []int) {
	begin := 0
	for i := range len(texts) - 1 {
		if endsSentence(texts[i], texts[i+1]) {
			ends, begin = sentence(ends, begin, i+1)
		}
	}
	if len(texts) > 0 {
		ends, begin = sentence(ends, begin, len(texts))
		if begin < len(texts) { // all of it is short
			ends = append(ends, len(texts))
		}
	}
	return ends
}

// sentence adds a sentence to those that end at ends, or makes the last one longer by a short one. A short one at the
// very beginning waits for the next; where it begins is returned as well.
func sentence(ends []int, begin, end int) ([]int, int) {
	switch n := len(ends); {
	case end-begin >= shortest:
		return append(ends, end), end
	case n > 0:
		ends[n-1] = end
		return ends, end
	}
	return ends, begin
}

// endsSentence reports whether a token ends a sentence before the next one. Of several line feeds the last one does.
func endsSentence(token, next string) bool {
	trimmed := strings.TrimRightFunc(token, unicode.IsSpace)
	if strings.Contains(token[len(trimmed):], "\n") {
		return strings.TrimLeft(next, "\n") == next
	}

	trimmed = strings.TrimRight(trimmed, `"'”’)`)
	stop := strings.HasSuffix(trimmed, ".") || strings.HasSuffix(trimmed, "!") || strings.HasSuffix(trimmed, "?")
	first, _ := utf8.DecodeRuneInString(next)
	return stop && unicode.IsSpace(first) && first != '\n' // a line feed that follows belongs to this sentence
}

// RouteSentences gives every sentence of a request, which ends cuts as [SentenceEnds] does, its way: an expert alone,
// or the dense model for what is like no expert's. The ways are the most probable ones together, where a sentence most
// often goes the way of the one before it. Neighbours that go the same way are one piece. Errors are those of Route.
func (r *Routed) RouteSentences(ctx context.Context, ids []int32, ends []int, p Policy) ([]Piece, error) {
	if len(ends) == 0 || ends[len(ends)-1] != len(ids) || !slices.IsSorted(ends) {
		return nil, fmt.Errorf("sentences end at %v of %d tokens: %w", ends, len(ids), output.ErrOption)
	}
	p.By = BySentence

	experts := len(r.e.members)
	likely := make([][]float64, len(ends)) // log-likelihoods of the ways, the dense model last
	begin := 0
	for i, end := range ends {
		_, v, err := r.Route(ctx, ids[begin:end], p)
		if err != nil {
			return nil, err
		}
		likely[i] = ways(v, p)
		begin = end
	}

	var pieces []Piece
	begin = 0
	for i, way := range mostProbable(likely) {
		w := make([]float64, experts)
		if way < experts {
			w[way] = 1
		}
		if k := len(pieces) - 1; k >= 0 && slices.Equal(pieces[k].Weights, w) {
			pieces[k].Len += ends[i] - begin
		} else {
			pieces = append(pieces, Piece{ends[i] - begin, w})
		}
		begin = ends[i]
	}
	return pieces, nil
}

// ways are the logarithms of how probable each expert and, last, the dense model are for a sentence.
func ways(v Verdict, p Policy) []float64 {
	probability := v.P
	if p.Soften != 0 && p.Soften != 1 {
		probability, _ = softened(v.P, p.Soften)
	}

	foreign := 1 - trusted
	switch {
	case p.Select == "top1" || p.Outside == "ignore":
		foreign = 0
	case v.Outside:
		foreign = trusted
	}

	out := make([]float64, len(probability), len(probability)+1)
	for i, x := range probability {
		out[i] = math.Log(x * (1 - foreign))
	}
	return append(out, math.Log(foreign))
}

// mostProbable is the sequence of ways with the highest probability (Viterbi's); of equal ones that with the lower
// ways.
func mostProbable(likely [][]float64) []int {
	n := len(likely[0])
	stay, change := math.Log(staying), math.Log((1-staying)/float64(max(1, n-1)))
	best := slices.Clone(likely[0])
	from := make([][]int, len(likely))

	for i := 1; i < len(likely); i++ {
		next := make([]float64, n)
		from[i] = make([]int, n)
		for to := range n {
			next[to] = math.Inf(-1)
			for way, b := range best {
				step := change
				if way == to {
					step = stay
				}
				if b+step > next[to] {
					next[to], from[i][to] = b+step, way
				}
			}
			next[to] += likely[i][to]
		}
		best = next
	}

	path := make([]int, len(likely))
	last := len(likely) - 1
	for way, b := range best {
		if b > best[path[last]] {
			path[last] = way
		}
	}
	for i := last; i > 0; i-- {
		path[i-1] = from[i][path[i]]
	}
	return path
}
