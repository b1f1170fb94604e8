package engine

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

const nano = "../../../../testdata/nano/base"

func model(t *testing.T) *lm.Model {
	t.Helper()
	m, err := lm.Load(context.Background(), nano, cpu.New(cpu.Options{}), lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// sequences are requests with much in common, and some alone.
func sequences(t *testing.T, e *Encoder) []Sequence {
	t.Helper()
	head := strings.Repeat("The swan and the miller went to the fair. ", 6)
	var list []Sequence
	for _, q := range [][2]string{
		{head + "Who went?", " The swan"},
		{head + "Who went?", " The miller"},
		{head + "Who went?", " No"},
		{head, "Where?"},
		{"A fox", " ran"},
		{"A fox", " ran away"},
		{"", "Once upon a time"},
		{"Wanda", " was"},
	} {
		ctx, cont, err := e.Pair(q[0], q[1])
		if err != nil {
			t.Fatal(err)
		}
		s, err := Fit(ctx, cont, 512)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	return list
}

// direct scores a sequence by a pass of its own.
func direct(t *testing.T, m *lm.Model, s Sequence) Score {
	t.Helper()
	h, err := m.Embed([][]int32{s.IDs})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Free()

	for b := range m.Blocks() {
		if err := m.RunBlock(t.Context(), b, h, nil); err != nil {
			t.Fatal(err)
		}
	}

	var rows []int32
	var want [][]int32
	for k, id := range s.Target {
		rows = append(rows, int32(len(s.IDs)-len(s.Target)+k))
		want = append(want, []int32{id})
	}

	losses, best, err := m.Score(t.Context(), h, rows, want)
	if err != nil {
		t.Fatal(err)
	}

	out := Score{Greedy: true}
	for k, id := range s.Target {
		out.LL -= losses[k][0]
		out.Greedy = out.Greedy && best[k] == id
	}
	return out
}

// TestLikelihoods: whatever shares a pass or the beginning of one, a sequence has the likelihood that it has alone, and
// those that are known are not asked.
func TestLikelihoods(t *testing.T) {
	m, seqs := model(t), sequences(t, encoder(t))
	want := make([]Score, len(seqs))
	for i, s := range seqs {
		want[i] = direct(t, m, s)
	}

	for _, budget := range []int{0, 16, 100} {
		done := 0
		e := &Engine{Model: m, Limit: 512, Budget: budget, Done: func(n int) { done += n }}
		got := map[int]Score{}
		err := e.Likelihoods(t.Context(), seqs, func(i int) bool { return i == 4 }, func(at []int, s []Score) error {
			for k, i := range at {
				if _, twice := got[i]; twice || i == 4 {
					t.Errorf("budget %d: sequence %d is asked again", budget, i)
				}
				got[i] = s[k]
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}

		tokens := 0
		for i, s := range seqs {
			if i == 4 {
				continue
			}
			tokens += len(s.IDs)
			// attention over kept keys sums in another order: 2^-24 of values of up to 10, over layers and tokens
			if g := got[i]; math.Abs(g.LL-want[i].LL) > 1e-4 || g.Greedy != want[i].Greedy {
				t.Errorf("budget %d, sequence %d: %+v, alone %+v", budget, i, g, want[i])
			}
		}
		if done != tokens {
			t.Errorf("budget %d: told of %d tokens, not %d", budget, done, tokens)
		}
	}

	stop := errors.New("stop")
	e := &Engine{Model: m, Limit: 512}
	err := e.Likelihoods(t.Context(), seqs, func(int) bool { return false }, func([]int, []Score) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("an error of the one who is told: %v", err)
	}
}

// TestGenerate: texts that are made side by side are those that each prompt has alone, whatever the memory; a stop text
// ends and is cut off, the length ends, what is known is not made.
func TestGenerate(t *testing.T) {
	m := model(t)
	enc := encoder(t)
	tok := enc.Tok.(*tokenizer.Tokenizer)
	head := strings.Repeat("The swan and the miller went to the fair. ", 5)
	var prompts []Prompt
	for _, text := range []string{head + "The", head + "A fox", head + "Wanda", head} {
		ids, before, err := enc.Prompt(text, 400)
		if err != nil || before != len(ids) {
			t.Fatal(before, err)
		}
		prompts = append(prompts, Prompt{IDs: ids, Max: 12})
	}

	var want []string
	for _, p := range prompts {
		ids, err := m.Generate(t.Context(), p.IDs, lm.GenerateOptions{MaxTokens: p.Max, Stop: []int32{}})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, tok.Decode(ids, true))
	}

	for _, e := range []*Engine{
		{Model: m, Limit: 512},
		{Model: m, Limit: 512, Slots: 1},
		{Model: m, Limit: 512, Memory: 1},
		{Model: m, Limit: 512, Slots: 3},
	} {
		got := map[int]Text{}
		known := func(i int) bool { return i == 1 }
		err := e.Generate(t.Context(), tok, prompts, known, func(i int, text Text) error {
			got[i] = text
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}

		if _, made := got[1]; made || len(got) != len(prompts)-1 {
			t.Errorf("%d slots: %d texts", e.Slots, len(got))
		}
		for i, text := range got {
			if text.Ended == EndLength && (text.Text != want[i] || text.Tokens != prompts[i].Max) {
				t.Errorf("%d slots, prompt %d: %+v, want %q", e.Slots, i, text, want[i])
			}
		}
	}

	// A piece of the text as its stop.
	words := strings.Fields(want[0])
	if len(words) < 3 {
		t.Fatalf("only %q", want[0])
	}
	stopped := prompts[0]
	stopped.End = []string{words[1]}
	e := &Engine{Model: m, Limit: 512}
	none := func(int) bool { return false }
	err := e.Generate(t.Context(), tok, []Prompt{stopped}, none, func(_ int, text Text) error {
		if text.Ended != EndStop || strings.Contains(text.Text, words[1]) || !strings.HasPrefix(want[0], text.Text) {
			t.Errorf("%+v, stop %q of %q", text, words[1], want[0])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	if err := e.Generate(t.Context(), tok, nil, nil, nil); err != nil {
		t.Errorf("no prompts: %v", err)
	}
}

// TestPrompt: the last tokens of a long prompt stay, an empty one is the start token, and without room there is none.
func TestPrompt(t *testing.T) {
	e := encoder(t)
	whole, before, err := e.Prompt("The swan and the miller went", 100)
	if err != nil || before != len(whole) {
		t.Fatal(before, err)
	}

	cut, before, err := e.Prompt("The swan and the miller went", 3)
	if err != nil || before != len(whole) || !slices.Equal(cut, whole[len(whole)-3:]) {
		t.Errorf("%v of %v, %d before: %v", cut, whole, before, err)
	}
	if ids, _, err := e.Prompt("", 3); err != nil || len(ids) != 1 {
		t.Errorf("%v %v", ids, err)
	}
	if _, _, err := e.Prompt("x", 0); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}

// TestShare: sequences of which the model sees the same share memory, others do not.
func TestShare(t *testing.T) {
	a := Sequence{IDs: []int32{1, 2}}
	b := Sequence{IDs: []int32{1, 2}}
	c := Sequence{IDs: []int32{1, 3}}
	b.Share(&a)
	c.Share(&a)
	a.IDs[0] = 9
	if b.IDs[0] != 9 || c.IDs[0] != 1 {
		t.Errorf("%v %v", b.IDs, c.IDs)
	}
}
