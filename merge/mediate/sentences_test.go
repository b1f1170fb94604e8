package mediate

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// TestSentenceEnds: where sentences end, and that short ones belong to the one before.
func TestSentenceEnds(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"one two", "one two"},
		{
			"a b c d e f g h. The second one has as many words too. And a third of eight words is this.",
			"a b c d e f g h.| The second one has as many words too.| And a third of eight words is this.",
		},
		{"a b c d e f g 3.14 is no end, and Mr. is one.", "a b c d e f g 3.14 is no end, and Mr. is one."},
		{
			"a b c d e f g h. Short one. i j k l m n o p q r s t u.",
			"a b c d e f g h. Short one.| i j k l m n o p q r s t u.",
		},
		{"a b c d e f g h i j\n\nk l m n o p q r s t", "a b c d e f g h i j\n\n|k l m n o p q r s t"},
		{"Short. a b c d e f g h i.", "Short. a b c d e f g h i."},
		{"a b c d e f g h. The rest is short.", "a b c d e f g h. The rest is short."},
	} {
		texts := strings.SplitAfter(c.text, " ")
		for i := range texts { // as tokens are: blanks before the words
			texts[i] = strings.TrimSuffix(texts[i], " ")
			if i > 0 {
				texts[i] = " " + texts[i]
			}
		}
		texts = slices.DeleteFunc(texts, func(s string) bool { return s == "" })
		texts = feedsAlone(texts)

		var got []string
		begin := 0
		for _, end := range SentenceEnds(texts) {
			got, begin = append(got, strings.Join(texts[begin:end], "")), end
		}
		if s := strings.Join(got, "|"); s != c.want {
			t.Errorf("%q: %q, want %q", c.text, s, c.want)
		}
	}
}

// feedsAlone makes line feeds tokens of their own.
func feedsAlone(texts []string) (list []string) {
	for _, s := range texts {
		parts := strings.SplitAfter(s, "\n")
		list = append(list, slices.DeleteFunc(parts, func(s string) bool { return s == "" })...)
	}
	return list
}

// TestMostProbable: of all sequences of ways the one that is found is the most probable.
func TestMostProbable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n, ways := 1+r.IntN(5), 2+r.IntN(3)
		likely := make([][]float64, n)
		for i := range likely {
			likely[i] = make([]float64, ways)
			for k := range likely[i] {
				likely[i][k] = math.Log(r.Float64())
			}
			if r.IntN(3) == 0 {
				likely[i][ways-1] = math.Inf(-1) // the dense model is not to be taken
			}
		}

		total := func(path []int) float64 {
			sum := 0.0
			for i, way := range path {
				sum += likely[i][way]
				if i > 0 && path[i-1] == way {
					sum += math.Log(staying)
				} else if i > 0 {
					sum += math.Log((1 - staying) / float64(ways-1))
				}
			}
			return sum
		}

		best := math.Inf(-1)
		path := make([]int, n)
		for {
			best = max(best, total(path))
			i := 0
			for ; i < n; i++ {
				if path[i]++; path[i] < ways {
					break
				}
				path[i] = 0
			}
			if i == n {
				break
			}
		}
		if got := total(mostProbable(likely)); math.Abs(got-best) > 1e-12 {
			t.Fatalf("%v, the best is %v: %v", got, best, likely)
		}
	}
}

// TestRouteSentences: sentences of different experts go to them, those without a sign of their own along with their
// neighbours, and one pass over all pieces computes what a session computes piece after piece.
func TestRouteSentences(t *testing.T) {
	recipe := strings.ReplaceAll(routedRecipe("keep: {bits: 4}"), "FEATURES", "auto")
	_, m, r := atWork(t, recipe, cpu.New(cpu.Options{}), 0)
	tok, err := tokenizer.Load(nano + "base")
	if err != nil {
		t.Fatal(err)
	}

	text := "Question: 14 + 6 =\nAnswer: 20\n\nQuestion: 24 + 6 =\nAnswer: 30\n\n" +
		"The birthplace of Wanda Jarvis is Rome, they say."
	ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}

	texts := make([]string, len(ids))
	d := tok.StreamDecoder(false)
	for i, id := range ids {
		texts[i] = d.Next(id)
	}
	pieces, err := r.RouteSentences(t.Context(), ids, SentenceEnds(texts), Policy{Select: "top1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(pieces) != 2 || slices.Equal(pieces[0].Weights, pieces[1].Weights) {
		t.Fatalf("%+v, want sums and another expert", pieces)
	}

	var lens []int
	var weights [][]float64
	for _, p := range pieces {
		lens, weights = append(lens, p.Len), append(weights, p.Weights)
	}
	if sum := lens[0] + lens[1]; sum != len(ids) {
		t.Fatalf("pieces of %d tokens, want %d", sum, len(ids))
	}

	if _, err := r.Mixed(lens, weights); err != nil {
		t.Fatal(err)
	}
	whole, err := m.Forward(t.Context(), [][]int32{ids}, lm.ForwardOptions{Logits: true})
	if err != nil {
		t.Fatal(err)
	}

	s, err := m.NewSession(lm.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var last []float32
	begin := 0
	for i, n := range lens {
		if err := r.Use(weights[i]); err != nil {
			t.Fatal(err)
		}
		if last, err = s.Append(t.Context(), ids[begin:begin+n]); err != nil {
			t.Fatal(err)
		}
		begin += n
	}

	// Effective weights are rounded to BF16.
	for i, x := range whole.Logits.RowF32(len(ids) - 1) {
		if math.Abs(float64(x-last[i])) > 0.05*float64(1+math.Abs(float64(x))) {
			t.Fatalf("logit %d: %v in one pass, %v in pieces", i, x, last[i])
		}
	}
}

// TestRouteSentencesRefusals: what a policy of sentences cannot say, and cuts that fit no request.
func TestRouteSentencesRefusals(t *testing.T) {
	recipe := strings.ReplaceAll(routedRecipe("keep: {bits: 4}"), "FEATURES", "auto")
	_, _, r := atWork(t, recipe, cpu.New(cpu.Options{}), 0)
	for _, p := range []Policy{{Certain: 0.5}, {Select: "all"}, {Cover: 0.5}, {Most: 1}, {Outside: "merge"}} {
		if _, err := r.RouteSentences(t.Context(), []int32{1, 2}, []int{2}, p); !errors.Is(err, ErrPolicy) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, ends := range [][]int{nil, {1}, {2, 1}, {3}} {
		if _, err := r.RouteSentences(t.Context(), []int32{1, 2}, ends, Policy{}); err == nil {
			t.Errorf("ends %v pass", ends)
		}
	}
	if err := (Policy{By: "word"}).Validate(); !errors.Is(err, ErrPolicy) {
		t.Error(err)
	}
}
