package edit

import (
	"math"
	"strings"
	"unicode"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
)

// words cuts a text into words and punctuation marks, each mark a word of its own.
func words(text string) []string {
	var out []string
	for _, field := range strings.Fields(text) {
		start := 0
		for i, r := range field {
			if unicode.IsLetter(r) || unicode.IsDigit(r) || r == '\'' || r == '-' || unicode.IsMark(r) {
				continue
			}
			if i > start {
				out = append(out, field[start:i])
			}

			out = append(out, string(r))
			start = i + len(string(r))
		}

		if start < len(field) {
			out = append(out, field[start:])
		}
	}

	return out
}

// Fluency is the n-gram entropy of a text (ROME: eval_utils_counterfact.py): (2/3·H2 + 4/3·H3)/2 with H the
// entropy, in bits, of word bigrams and trigrams; 0 for a text without them. It falls when a model repeats
// itself.
func Fluency(text string) float64 {
	w := words(text)
	return (2.0/3*ngramEntropy(w, 2) + 4.0/3*ngramEntropy(w, 3)) / 2
}

// ngramEntropy is that of the n-grams of words, in bits.
func ngramEntropy(w []string, n int) float64 {
	counts := map[string]int{}
	total := len(w) - n + 1
	for i := range max(total, 0) {
		counts[strings.Join(w[i:i+n], "\x00")]++
	}

	h := 0.0
	for _, k := range site.Sorted(counts) {
		p := float64(counts[k]) / float64(total)
		h -= p * math.Log2(p)
	}

	return h
}

// Consistency is the cosine of the TF-IDF vectors of two texts; document frequencies are those of the given collection.
func Consistency(a, b string, collection []string) float64 {
	df := map[string]float64{}
	for _, text := range collection {
		seen := map[string]bool{}
		for _, w := range words(strings.ToLower(text)) {
			if !seen[w] {
				seen[w] = true
				df[w]++
			}
		}
	}

	// The smoothed inverse document frequency, ln((1+n)/(1+df)) + 1, is scikit-learn's default, which ROME's
	// evaluation uses.
	vector := func(text string) map[string]float64 {
		v := map[string]float64{}
		for _, w := range words(strings.ToLower(text)) {
			v[w] += math.Log((1+float64(len(collection)))/(1+df[w])) + 1
		}
		return v
	}

	x, y := vector(a), vector(b)
	xy := 0.0
	xx := 0.0
	yy := 0.0

	// In sorted order: sums over a map would differ in their last digits from run to run.
	for _, w := range site.Sorted(x) {
		xy += x[w] * y[w]
		xx += x[w] * x[w]
	}

	for _, w := range site.Sorted(y) {
		yy += y[w] * y[w]
	}
	if xx == 0 || yy == 0 {
		return 0
	}

	return xy / math.Sqrt(xx*yy)
}
