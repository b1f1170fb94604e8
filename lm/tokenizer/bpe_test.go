package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// randomBPE draws a model over a few letters with random merges, some of them across space marks.
func randomBPE(t *rapid.T) *bpe {
	vocab := []string{"a", "b", "c", spaceMark}
	var merges []string
	for range rapid.IntRange(0, 25).Draw(t, "merges") {
		l, r := rapid.SampledFrom(vocab).Draw(t, "left"), rapid.SampledFrom(vocab).Draw(t, "right")
		if len(l+r) > 12 {
			continue
		}
		if !slices.Contains(vocab, l+r) {
			vocab = append(vocab, l+r)
		}

		merges = append(merges, fmt.Sprintf("[%q,%q]", l, r))
	}

	var entries []string
	for id, s := range vocab {
		entries = append(entries, fmt.Sprintf("%q:%d", s, id))
	}

	tok, err := Parse(
		[]byte(`{"model":{"type":"BPE","vocab":{` + strings.Join(entries, ",") + `},"merges":[` + strings.Join(merges,
			",") + `]}}`))
	if err != nil {
		t.Fatal(err)
	}

	return tok.model.(*bpe)
}

// slowMerge is byte-pair encoding as it is defined: merge the leftmost pair of the lowest rank, again and again.
func slowMerge(m *bpe, text string) []int32 {
	var ids []int32
	for _, r := range text {
		ids = append(ids, m.ids[string(r)])
	}

	for {
		best := int32(noRank)
		into := int32(0)
		at := -1
		for i := 0; i+1 < len(ids); i++ {
			if rank, id := m.merges.get(ids[i], ids[i+1]); rank < best {
				best = rank
				into = id
				at = i
			}
		}

		if at < 0 {
			return ids
		}

		ids = slices.Replace(ids, at, at+2, into)
	}
}

// TestMerge holds both ways of merging, with and without cutting at space marks, to the definition.
func TestMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := randomBPE(t)
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", spaceMark}), 1, 60).Draw(t,
			"text"), "")

		want := slowMerge(m, text)
		for name, merge := range map[string]func(*encoder){"short": m.mergeShort, "long": m.mergeLong} {
			x := &encoder{}
			if err := m.symbols(x, text); err != nil {
				t.Fatal(err)
			}

			merge(x)
			var got []int32
			for _, s := range x.syms {
				if s.id >= 0 {
					got = append(got, s.id)
				}
			}

			if !slices.Equal(got, want) {
				t.Fatalf("%s: %q: got %v, want %v", name, text, got, want)
			}
		}

		x := &encoder{}
		if err := m.tokenize(x, prepare.Piece{Text: text}); err != nil || !slices.Equal(x.ids, want) {
			t.Fatalf("cut: %q: got %v, want %v", text, x.ids, want)
		}
	})
}

func TestPairTable(t *testing.T) {
	table := newPairTable(1000)
	for i := range int32(1000) {
		table.set(i, i*7%31, i, i+1)
	}

	for i := range int32(1000) {
		if rank, into := table.get(i, i*7%31); rank != i || into != i+1 {
			t.Fatalf("pair %d: got %d, %d", i, rank, into)
		}
		if rank, _ := table.get(i, 31); rank != noRank {
			t.Fatalf("pair %d, 31 has rank %d", i, rank)
		}
	}

	empty := newPairTable(0)
	if rank, _ := empty.get(0, 0); rank != noRank {
		t.Fatal("an empty table has a pair")
	}
}

func TestTrie(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOf(rapid.StringMatching(`[ab\xff]{1,6}`)).Draw(t, "words")
		var tree trie
		want := map[string]int32{}
		for i, w := range words {
			tree.insert(w, int32(i))
			want[w] = int32(i)
		}

		text := rapid.StringMatching(`[ab\xff]{0,8}`).Draw(t, "text")
		value, length := tree.longest(text)

		best := 0
		for w := range want {
			if strings.HasPrefix(text, w) {
				best = max(best, len(w))
			}
		}

		if length != best || best > 0 && value != want[text[:best]] {
			t.Fatalf("%q in %q: got %d, %d", text, words, value, length)
		}
	})
}

// TestUnigram compares the best segmentation with all segmentations of short texts.
func TestUnigram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := map[string]float64{"": 0}
		list := []string{`["<unk>",0]`}
		for range rapid.IntRange(1, 12).Draw(t, "pieces") {
			s := rapid.StringMatching(`[ab]{1,3}`).Draw(t, "piece")
			if _, ok := pieces[s]; ok {
				continue
			}
			pieces[s] = -float64(rapid.IntRange(1, 1000).Draw(t, "score")) / 64
			list = append(list, fmt.Sprintf("[%q,%g]", s, pieces[s]))
		}

		delete(pieces, "")
		tok, err := Parse([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[` + strings.Join(list, ",") + `]}}`))
		if err != nil {
			t.Fatal(err)
		}

		text := rapid.StringMatching(`[ab]{1,10}`).Draw(t, "text")
		m := tok.model.(*unigram)
		x := &encoder{}
		if err := m.forward(x, text); err != nil {
			t.Fatal(err)
		}
		if got, want := x.best[len(text)].score, bestScore(pieces, m.unkScore, text); got != want {
			t.Fatalf("%q: score %g, want %g", text, got, want)
		}
	})
}

// bestScore tries every segmentation. Scores are multiples of 1/64, so that sums are exact in any order.
func bestScore(pieces map[string]float64, unk float64, text string) float64 {
	best := make([]float64, len(text)+1)
	for end := 1; end <= len(text); end++ {
		best[end] = best[end-1] + unk
		if s, ok := pieces[text[end-1:end]]; ok {
			best[end] = best[end-1] + s
		}

		for start := range end {
			if s, ok := pieces[text[start:end]]; ok {
				best[end] = max(best[end], best[start]+s)
			}
		}
	}

	return best[len(text)]
}
