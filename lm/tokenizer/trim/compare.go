package trim

import (
	"slices"
	"sort"
	"strings"

	"github.com/modelcompress/compress/lm/tokenizer"
)

// Change says how a trimmed tokenizer encodes texts, beside the one that it was made of.
type Change struct {
	Documents int64 `json:"documents"`         // records; of plain text its paragraphs, divided by blank lines
	Changed   int64 `json:"changed_documents"` // those that are encoded differently
	Tokens    int64 `json:"tokens"`            // of the tokenizer as it was
	Lost      int64 `json:"changed_tokens"`    // of these, those in whose place stand others
	After     int64 `json:"tokens_after"`      // of the trimmed one
	Bytes     int64 `json:"bytes"`             // of the texts
}

// Share is the fraction of documents that are encoded differently; 0 without documents.
func (c *Change) Share() float64 {
	if c.Documents == 0 {
		return 0
	}
	return float64(c.Changed) / float64(c.Documents)
}

// TokenShare is the fraction of tokens in whose place stand others; 0 without tokens.
func (c *Change) TokenShare() float64 { return float64(c.Lost) / float64(max(c.Tokens, 1)) }

// Compare encodes a text with both tokenizers, without the tokens of a template, and adds what it finds to c: as one
// document, or paragraph by paragraph. It returns the ids of both, and reports whether they are the same tokens.
func Compare(c *Change, s *Selection, was, is *tokenizer.Tokenizer, text string, paragraphs bool) (
	before, after []int32, same bool, err error,
) {
	o := tokenizer.EncodeOptions{NoSpecial: true}
	if before, err = was.Encode(text, o); err != nil {
		return nil, nil, false, err
	}
	if after, err = is.Encode(text, o); err != nil {
		return nil, nil, false, err
	}

	places := []int{0}
	if paragraphs {
		places = paragraphsOf(text)
	}
	c.Documents += int64(len(places))
	c.Tokens += int64(len(before))
	c.After += int64(len(after))
	c.Bytes += int64(len(text))

	mapped, whole := s.Map(before)
	if whole && slices.Equal(mapped, after) {
		return before, after, true, nil
	}

	lost, err := lostAt(s, was, is, text)
	if err != nil {
		return nil, nil, false, err
	}
	if len(lost) == 0 {
		lost = []int{0} // other tokens that stand in the place of none
	}
	c.Lost += int64(len(lost))

	last := -1
	for _, at := range lost {
		// The paragraph that a token begins in, or the first one for white space before it.
		i := max(sort.SearchInts(places, at+1)-1, 0)
		if len(places) > 0 && i != last {
			c.Changed++
			last = i
		}
	}

	return before, after, false, nil
}

// lostAt gives the places, in order, of the tokens of a text that the other tokenizer does not have there.
func lostAt(s *Selection, was, is *tokenizer.Tokenizer, text string) (at []int, err error) {
	o := tokenizer.EncodeOptions{NoSpecial: true}
	old, oldSpans, err := was.EncodeOffsets(text, o)
	if err != nil {
		return nil, err
	}
	ids, spans, err := is.EncodeOffsets(text, o)
	if err != nil {
		return nil, err
	}

	for i, j := 0, 0; i < len(old); {
		if j < len(ids) && s.id(old[i]) == ids[j] && oldSpans[i] == spans[j] {
			i++
			j++
			continue
		}

		// Whichever ends first is behind: the two meet again where tokens of both end at the same place.
		if j < len(ids) && spans[j].End < oldSpans[i].End {
			j++
			continue
		}
		at = append(at, oldSpans[i].Start)
		if j < len(ids) && spans[j].End == oldSpans[i].End {
			j++
		}
		i++
	}

	return at, nil
}

// paragraphsOf gives where the paragraphs of a text begin: runs of lines that are not blank.
func paragraphsOf(text string) (places []int) {
	at, inside := 0, false
	for line := range strings.Lines(text) {
		blank := strings.TrimSpace(line) == ""
		if !blank && !inside {
			places = append(places, at)
		}
		inside = !blank
		at += len(line)
	}
	return places
}
