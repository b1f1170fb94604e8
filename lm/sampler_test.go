package lm

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
)

// TestSamplerLimits: the limits cut the distribution where they say.
func TestSamplerLimits(t *testing.T) {
	logits := []float32{1, 3, 2, 3, -1}
	counts := map[int32]int{}
	for seed := range uint64(400) {
		s := sampler{temperature: 1, topP: 0.85, seed: seed}
		id, ok := s.next(logits, 7)
		if !ok {
			t.Fatal("no token")
		}
		counts[id]++
	}

	// p = .40 .40 .15 .05 in the order 1, 3, 2, 0: the first three reach 0.85
	if counts[0]+counts[4] != 0 || counts[1] < 120 || counts[3] < 120 || counts[2] < 20 {
		t.Errorf("%v", counts)
	}
	if _, ok := (&sampler{}).next([]float32{1, float32(math.NaN())}, 1); !ok {
		t.Error("a NaN that is not the largest ends everything")
	}
	if _, ok := (&sampler{}).next([]float32{float32(math.NaN())}, 1); ok {
		t.Error("a token of nothing but NaN")
	}
}

// kept are the tokens that a sampler leaves, with their probabilities.
func kept(s sampler, seen []int32, logits []float32) map[int32]float64 {
	s.see(seen)
	scaled := s.penalised(logits)
	top := scaled[0]
	for _, v := range scaled {
		top = max(top, v)
	}

	s.weigh(scaled, float64(top))
	s.cut()
	sum := 0.0
	for _, c := range s.order {
		sum += c.p
	}

	left := map[int32]float64{}
	for _, c := range s.order {
		left[c.id] = c.p / sum
	}
	return left
}

// TestSamplerDefinitions: each limit and their order by cases that can be computed by hand, with logits that are
// logarithms of simple fractions.
func TestSamplerDefinitions(t *testing.T) {
	logs := func(p ...float64) (list []float32) {
		for _, x := range p {
			list = append(list, float32(math.Log(x)))
		}
		return list
	}
	five := logs(.4, .3, .15, .1, .05)

	for name, c := range map[string]struct {
		s      sampler
		seen   []int32
		logits []float32
		want   map[int32]float64
	}{
		"all": {sampler{temperature: 1}, nil, five, map[int32]float64{0: .4, 1: .3, 2: .15, 3: .1, 4: .05}},
		// squares
		"temperature": {
			sampler{temperature: .5}, nil, logs(.5, .25, .25), map[int32]float64{0: 4. / 6, 1: 1. / 6, 2: 1. / 6},
		},
		"top-k": {sampler{temperature: 1, topK: 2}, nil, five, map[int32]float64{0: 4. / 7, 1: 3. / 7}},
		"top-k with a tie": {
			sampler{temperature: 1, topK: 2}, nil, logs(.2, .4, .2, .2), map[int32]float64{0: .2, 1: .4, 2: .2, 3: .2},
		},
		"top-p reached by the first": {sampler{temperature: 1, topP: .39}, nil, five, map[int32]float64{0: 1}},
		"top-p": {
			sampler{temperature: 1, topP: .71}, nil, five, map[int32]float64{0: 8. / 17, 1: 6. / 17, 2: 3. / 17},
		},
		// .4 of .85 is .47, with .3 it is .82
		"top-p of what top-k leaves": {
			sampler{temperature: 1, topK: 3, topP: .82}, nil, five, map[int32]float64{0: 4. / 7, 1: 3. / 7},
		},
		"min-p": {sampler{temperature: 1, minP: .3}, nil, five, map[int32]float64{0: 8. / 17, 1: 6. / 17, 2: 3. / 17}},
		// the squares .16 and .09 are farther apart than .4 and .3
		"min-p after the temperature": {sampler{temperature: .5, minP: .6}, nil, five, map[int32]float64{0: 1}},
		// ln .25 · 2 = ln .0625 for a token that was there, twice or once
		"penalty of a negative logit": {
			sampler{temperature: 1, penalty: 2},
			[]int32{0, 0},
			logs(.25, .25),
			map[int32]float64{0: .2, 1: .8},
		},
		// ln 4 / 2 = ln 2
		"penalty of a positive logit": {
			sampler{temperature: 1, penalty: 2}, []int32{1}, logs(2, 4), map[int32]float64{0: .5, 1: .5},
		},
		// before the temperature: (ln 4 / 2) · 2 = ln 4, and ln 2 · 2 = ln 4
		"penalty and temperature": {
			sampler{temperature: .5, penalty: 2}, []int32{1}, logs(2, 4), map[int32]float64{0: .5, 1: .5},
		},
		"penalty before top-k": {
			sampler{temperature: 1, penalty: 4, topK: 1}, []int32{1}, logs(2, 4), map[int32]float64{0: 1},
		},
	} {
		got := kept(c.s, c.seen, c.logits)
		if len(got) != len(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		for id, p := range c.want {
			if math.Abs(got[id]-p) > 1e-6 { // the logits are float32
				t.Errorf("%s: token %d has %g, want %g", name, id, got[id], p)
			}
		}
	}

	// Without sampling the penalty acts too, and what is passed stays as it was.
	s := sampler{penalty: 4}
	s.see([]int32{1})
	logits := logs(2, 4)
	if id, _ := s.next(logits, 1); id != 0 || logits[1] != float32(math.Log(4)) {
		t.Errorf("token %d of %v", id, logits)
	}
}

// TestSamplerOracle: what transformers' logits processors leave of random logits, with the same probabilities. The
// cases are made by testdata/sampling.py.
func TestSamplerOracle(t *testing.T) {
	text, err := os.ReadFile("testdata/sampling.json")
	if err != nil {
		t.Fatal(err)
	}

	var cases []struct {
		Penalty, Temperature float64
		TopP                 float64 `json:"top_p"`
		MinP                 float64 `json:"min_p"`
		TopK                 int     `json:"top_k"`
		Seen                 []int32
		Logits               []float32
		Left                 map[int32]float64
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 60 {
		t.Fatal(len(cases), err)
	}

	for i, c := range cases {
		s := sampler{penalty: c.Penalty, temperature: c.Temperature, topK: c.TopK, topP: c.TopP, minP: c.MinP}
		got := kept(s, c.Seen, c.Logits)
		if len(got) != len(c.Left) {
			t.Errorf("case %d (%+v): %d tokens are left, want %d", i, s, len(got), len(c.Left))
		}
		for id, p := range c.Left {
			if math.Abs(got[id]-p) > 1e-6 { // theirs are computed in float32
				t.Errorf("case %d: token %d has %g, want %g", i, id, got[id], p)
			}
		}
	}
}

// A sampler of one's own chooses what a generation does.
func TestSamplerGenerates(t *testing.T) {
	r := recipe{config: tiny()["llama"], seed: 3, std: 0.3}
	m := load(t, r.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	prompt := tokens(8, 37, 6)[0]
	o := GenerateOptions{MaxTokens: 12, Temperature: 0.9, TopP: 0.9, RepetitionPenalty: 1.2, Seed: 4, Stop: []int32{}}
	want, err := m.Generate(ctx, prompt, o)
	if err != nil {
		t.Fatal(err)
	}

	pick, err := NewSampler(o)
	if err != nil {
		t.Fatal(err)
	}
	s := session(t, m, SessionOptions{})
	next := prompt
	for i, id := range want {
		logits, err := s.Append(ctx, next)
		if err != nil {
			t.Fatal(err)
		}
		pick.See(next)
		got, err := pick.Next(logits, s.Len())
		if err != nil || got != id {
			t.Fatalf("token %d is %d (%v), not %d", i, got, err, id)
		}
		next = []int32{got}
	}

	if _, err := NewSampler(GenerateOptions{TopP: 2}); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	plain, err := NewSampler(GenerateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Next([]float32{float32(math.NaN())}, 1); !errors.Is(err, ErrNonFinite) {
		t.Error(err)
	}
}
