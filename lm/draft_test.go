package lm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/safetensors"
)

// silent proposes nothing: the text is that of the verifying products, token by token.
type silent struct{}

func (silent) Propose(context.Context, []int32, int, *Sampler) (Proposal, error) {
	return Proposal{}, nil
}
func (silent) Cost() float64 { return 0 }

// prompter proposes what a text will be, with errors.
type prompter struct {
	text []int32
	r    *rand.Rand
}

func (p prompter) Propose(_ context.Context, ids []int32, n int, _ *Sampler) (Proposal, error) {
	if len(ids) >= len(p.text) {
		return Proposal{}, nil
	}
	list := slices.Clone(p.text[len(ids):min(len(p.text), len(ids)+n)])
	for i := range list {
		if p.r.IntN(4) == 0 {
			list[i] = int32(p.r.IntN(37))
		}
	}
	return Proposal{IDs: list}, nil
}
func (prompter) Cost() float64 { return 0 }

// TestStepBits: however many tokens run together, and whatever was there and cut off again, the logits of each are the
// same to the last bit.
func TestStepBits(t *testing.T) {
	check := func(t *testing.T, dir string, o Options) {
		t.Helper()
		prompt, tail := tokens(3, 37, 18)[0], tokens(4, 37, 24)[0]
		var want [][]float32
		for threads := range 3 {
			m := load(t, dir, cpuDevice(t, max(threads, 1)), o)
			r := rand.New(rand.NewPCG(uint64(threads), 1))
			s := session(t, m, SessionOptions{})
			if _, err := s.Append(ctx, prompt); err != nil {
				t.Fatal(err)
			}

			for at := 0; at < len(tail); {
				n := 1
				if threads > 0 {
					n = min(1+r.IntN(7), len(tail)-at)
				}
				wrong := tokens(r.Uint64(), 37, 3)[0][:r.IntN(4)]
				if threads == 0 {
					wrong = nil
				}
				rows, err := s.step(ctx, slices.Concat(tail[at:at+n], wrong))
				if err != nil {
					t.Fatal(err)
				}
				for i, row := range rows[:n] {
					if threads == 0 {
						want = append(want, slices.Clone(row))
					} else if !slices.Equal(row, want[at+i]) {
						t.Fatalf("other bits after token %d, one of %d", at+i, len(rows))
					}
				}
				at += n
				if err := s.Truncate(len(prompt) + at); err != nil {
					t.Fatal(err)
				}
			}
		}
	}

	for _, dtype := range []safetensors.DType{safetensors.F32, safetensors.BF16} {
		for name, config := range everyTiny() {
			if dtype == safetensors.BF16 && name != "llama" && name != "mixtral" {
				continue // the kinds of products are the same, and TestBatchBits has them all
			}
			t.Run(fmt.Sprint(name, "-", dtype), func(t *testing.T) {
				check(t, recipe{config: config, seed: 9, dtype: dtype}.write(t, t.TempDir()), Options{})
			})
		}
	}
	for _, f := range forms(t) {
		for _, p := range []kernels.Precision{kernels.Exact, kernels.Fast} {
			t.Run(fmt.Sprint(f.name, "-", p), func(t *testing.T) { check(t, f.path, Options{Precision: p}) })
		}
	}
}

// TestDraftsChangeNothing: the most likely tokens, and those that are sampled with proposals made without chance, are
// those without a draft; the session has all but the last one.
func TestDraftsChangeNothing(t *testing.T) {
	for name, config := range everyTiny() {
		t.Run(name, func(t *testing.T) {
			r := recipe{config: config, seed: 9, std: 0.3}
			m := load(t, r.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
			r.seed = 10
			other := load(t, r.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
			model, err := m.NewDraft(other)
			if err != nil {
				t.Fatal(err)
			}
			defer model.Close()
			model.cost = 0 // so that it is asked
			self, err := m.NewDraft(m)
			if err != nil {
				t.Fatal(err)
			}
			defer self.Close()
			self.cost = 0

			prompt := tokens(8, 37, 9)[0]
			for _, o := range []GenerateOptions{
				{}, {RepetitionPenalty: 1.3}, {Temperature: 0.8, TopK: 12, RepetitionPenalty: 1.1, Seed: 5},
			} {
				o.Stop = []int32{}
				o.MaxTokens = 48
				o.Draft = silent{}
				want, err := m.Generate(ctx, prompt, o)
				if err != nil {
					t.Fatal(err)
				}

				drafts := map[string]Draft{
					"lookup": PromptLookup{Shortest: 1},
					"right":  prompter{slices.Concat(prompt, want), rand.New(rand.NewPCG(1, 2))},
				}
				if o.Temperature == 0 {
					drafts["model"], drafts["self"] = model, self
				}
				for what, d := range drafts {
					o.Draft = d
					o.Drafted = &DraftReport{}
					o.Session = session(t, m, SessionOptions{})
					got, err := m.Generate(ctx, prompt, o)
					if err != nil || !slices.Equal(got, want) {
						t.Errorf("%s: %v (%v), want %v", what, got, err, want)
					}
					if n := o.Session.Len(); n != len(prompt)+len(got)-1 {
						t.Errorf("%s: the session has %d tokens of %d", what, n, len(prompt)+len(got))
					}
					if what == "right" && (o.Drafted.Accepted < 10 || o.Drafted.PerPass <= 1) ||
						o.Drafted.Proposed < o.Drafted.Accepted {
						t.Errorf("%s: %+v", what, *o.Drafted)
					}
				}
			}
		})
	}
}

// A text ends where it would without a draft: at its stop token, where nobody wants more, and at the last position.
func TestDraftEnds(t *testing.T) {
	m := load(t, recipe{config: tiny()["gpt2"], seed: 3, std: 0.3}.write(t, t.TempDir()), cpu.New(cpu.Options{}),
		Options{})
	prompt := tokens(8, 37, 9)[0]
	all, err := m.Generate(ctx, prompt, GenerateOptions{MaxTokens: 1000, Stop: []int32{}, Draft: silent{}})
	if err != nil || len(prompt)+len(all) != m.Config().MaxPositions+1 {
		t.Fatal(len(all), err)
	}

	d := prompter{slices.Concat(prompt, all), rand.New(rand.NewPCG(1, 2))}
	o := GenerateOptions{MaxTokens: 1000, Stop: []int32{}, Draft: d}
	if got, err := m.Generate(ctx, prompt, o); err != nil || !slices.Equal(got, all) {
		t.Error(got, err)
	}

	o.Stop = []int32{all[20]}
	end := slices.Index(all, all[20]) + 1
	if got, err := m.Generate(ctx, prompt, o); err != nil || !slices.Equal(got, all[:end]) {
		t.Error(got, err)
	}

	o.Stop, o.MaxTokens = []int32{}, 17
	if got, err := m.Generate(ctx, prompt, o); err != nil || !slices.Equal(got, all[:17]) {
		t.Error(got, err)
	}
	left := 5
	o.Each = func(int32) bool { left--; return left > 0 }
	if got, err := m.Generate(ctx, prompt, o); err != nil || !slices.Equal(got, all[:5]) {
		t.Error(got, err)
	}
}

// TestResidual: by hand. p = (.5, .3, .2), q = (.2, .7, .1): p-q = (.3, -.4, .1), so that what replaces is
// (.75, 0, .25), and token 1 is accepted with 3/7.
func TestResidual(t *testing.T) {
	p := []candidate{{0, 5}, {1, 3}, {2, 2}} // weights need not add up to 1
	q := []candidate{{1, .35}, {0, .1}, {2, .05}}
	got := residual(p, q)
	total := totalOf(got)
	if len(got) != 2 || got[0].id != 0 || got[1].id != 2 || math.Abs(got[0].p/total-.75) > 1e-12 {
		t.Errorf("%v", got)
	}

	for id, want := range []float64{1, 3. / 7, 1} {
		low, high := accepted(p, q, int32(id), want-1e-9), accepted(p, q, int32(id), want+1e-9)
		if !low || want < 1 && high {
			t.Errorf("token %d: accepted below %g: %v, above: %v", id, want, low, high)
		}
	}
	if accepted(p, []candidate{{5, 1}}, 5, 0) {
		t.Error("a token that the model rules out was accepted")
	}
	if got := residual(p, p); !slices.Equal(got, p) {
		t.Errorf("nothing is left of equal distributions: %v", got)
	}
}

// chiSquare is the statistic of counts against expected ones, and its degrees of freedom.
func chiSquare(counts, want []float64) (sum float64, free int) {
	free = -1
	for i, e := range want {
		if e == 0 {
			if counts[i] > 0 {
				return math.Inf(1), 1
			}
			continue
		}
		sum += (counts[i] - e) * (counts[i] - e) / e
		free++
	}
	return sum, free
}

// TestRejectionSampling: tokens of a draft's distribution, accepted or replaced, are distributed as the model's own,
// with all limits on both.
func TestRejectionSampling(t *testing.T) {
	const vocab, draws = 12, 60000
	r := rand.New(rand.NewPCG(5, 6))
	for i, shape := range []sampler{
		{temperature: 1},
		{temperature: 0.6, topK: 5},
		{temperature: 1.2, topP: 0.8},
		{temperature: 1, minP: 0.2},
		{temperature: 0.9, topK: 8, topP: 0.9, minP: 0.05, penalty: 1.4},
	} {
		var logits [2][]float32
		for k := range logits {
			for range vocab {
				logits[k] = append(logits[k], float32(2*r.NormFloat64()))
			}
		}

		var of [2][]candidate
		for k := range of {
			s := shape
			s.see([]int32{1, 4, 7})
			if _, ok := s.shape(logits[k]); !ok {
				t.Fatal("no distribution")
			}
			of[k] = s.order
		}

		counts, want := make([]float64, vocab), make([]float64, vocab)
		for range draws {
			id := draw(of[1], r.Float64())
			if !accepted(of[0], of[1], id, r.Float64()) {
				id = draw(residual(of[0], of[1]), r.Float64())
			}
			counts[id]++
		}
		for _, c := range of[0] {
			want[c.id] = c.p / totalOf(of[0]) * draws
		}
		// Six standard deviations of a chi-square of so many degrees, and the seed is fixed.
		if x, free := chiSquare(counts, want); x > float64(free)+6*math.Sqrt(2*float64(max(free, 1))) {
			t.Errorf("case %d: chi-square %.1f of %d degrees", i, x, free)
		}
	}
}

// hotter is a draft whose distribution is flatter than the model's.
type hotter struct{ *ModelDraft }

func (h hotter) Propose(ctx context.Context, ids []int32, n int, s *Sampler) (Proposal, error) {
	hot := *s
	hot.s.temperature, hot.s.topK = 2, 9
	return h.ModelDraft.Propose(ctx, ids, n, &hot)
}

// TestDraftDistribution: what a model generates with a draft that samples has the distribution of what it generates
// alone, token by token and as pairs.
func TestDraftDistribution(t *testing.T) {
	r := recipe{config: tiny()["llama"], seed: 9, std: 0.4}
	m := load(t, r.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	d, err := m.NewDraft(m)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.cost = 0

	const texts, length = 1500, 4
	counts := [2][length][]float64{}
	accepted := 0
	s := session(t, m, SessionOptions{KeepAll: true})
	for k := range counts {
		for i := range counts[k] {
			counts[k][i] = make([]float64, 37)
		}
		for seed := range uint64(texts) {
			var report DraftReport
			o := GenerateOptions{
				MaxTokens: length, Temperature: 1, TopK: 6, Stop: []int32{}, Session: s, Seed: seed + uint64(k)*texts,
			}
			if k == 1 {
				o.DraftTokens = 3
				o.Draft = hotter{d}
				o.Drafted = &report
			}
			ids, err := m.Generate(ctx, []int32{3, 1, 4}, o)
			if err != nil {
				t.Fatal(err)
			}
			accepted += report.Accepted
			for i, id := range ids {
				counts[k][i][id]++
			}
		}
	}
	if accepted < texts/4 || accepted > texts*2 {
		t.Errorf("%d tokens were accepted: the test shows little", accepted)
	}

	for i := range length {
		// Two samples of equal size: Σ (a-b)²/(a+b) is a chi-square.
		x, free := 0.0, -1
		for id := range 37 {
			a, b := counts[0][i][id], counts[1][i][id]
			if a+b > 0 {
				x += (a - b) * (a - b) / (a + b)
				free++
			}
		}
		if x > float64(free)+6*math.Sqrt(2*float64(max(free, 1))) {
			t.Errorf("token %d: chi-square %.1f of %d degrees", i, x, free)
		}
	}
}

func TestPromptLookup(t *testing.T) {
	for _, c := range []struct {
		l    PromptLookup
		ids  []int32
		n    int
		want []int32
	}{
		{PromptLookup{}, []int32{1, 2, 3, 4, 9, 1, 2}, 3, []int32{3, 4, 9}},
		{PromptLookup{}, []int32{1, 2, 3, 1, 2, 4, 1, 2}, 1, []int32{4}},                    // the latest
		{PromptLookup{}, []int32{7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2}, 2, []int32{3, 8}},        // the longest
		{PromptLookup{}, []int32{5, 1, 2, 1, 2}, 5, []int32{1, 2, 1, 2, 1}},                 // a period
		{PromptLookup{}, []int32{1, 2, 3}, 4, nil},                                          // nothing
		{PromptLookup{}, []int32{1, 2, 1}, 4, nil},                                          // too short
		{PromptLookup{Shortest: 1}, []int32{1, 2, 1}, 2, []int32{2, 1}},                     // as asked for
		{PromptLookup{Longest: 2}, []int32{7, 1, 2, 3, 1, 2, 4, 7, 1, 2}, 2, []int32{4, 7}}, // no longer ones
		{PromptLookup{}, nil, 4, nil},
		{PromptLookup{Shortest: 1}, []int32{1}, 4, nil},                                     // no text
		{PromptLookup{Shortest: 1}, []int32{1, 1}, 3, []int32{1, 1, 1}},                     // overlapping
		{PromptLookup{}, []int32{1, 2, 3, 4, 9, 1, 2}, 0, nil},                              // nothing is wanted
		{PromptLookup{Longest: 1, Shortest: 1}, []int32{6, 5, 6, 8, 6}, 2, []int32{8, 6}},   // one token
		{PromptLookup{Longest: 9}, []int32{1, 2, 3, 4, 5, 1, 2, 3, 4, 5}, 2, []int32{1, 2}}, // the whole
		{PromptLookup{Longest: 100}, []int32{1, 2, 3, 4, 1, 2, 3, 4}, 2, []int32{1, 2}},     // longer than it
	} {
		p, err := c.l.Propose(ctx, c.ids, c.n, nil)
		if err != nil || !slices.Equal(p.IDs, c.want) {
			t.Errorf("%+v %v: %v (%v), want %v", c.l, c.ids, p.IDs, err, c.want)
		}
	}
}

// The plan proposes the more the more is taken, and rests where it does not pay.
func TestDraftPlan(t *testing.T) {
	d := newDraftPlan(0.06, 8)
	for range 20 {
		n := d.tokens()
		d.saw(n, n)
	}
	if n := d.tokens(); n != 8 {
		t.Errorf("%d tokens where all are taken", n)
	}

	// Half of them taken: (1-.5ⁿ⁺¹)/.5/(1+.06n) is largest for 3.
	d = newDraftPlan(0.06, 8)
	d.taken, d.tried = 5, 10
	if n := d.tokens(); n != 3 {
		t.Errorf("%d tokens where half are taken", n)
	}

	tries, passes := 0, 600
	for range passes {
		if n := d.tokens(); n > 0 {
			tries++
			d.saw(0, n)
		}
	}
	if tries < 10 || tries > 120 {
		t.Errorf("%d tries of %d where none is taken", tries, passes)
	}

	d = newDraftPlan(1, 8)
	for range 1000 {
		if d.tokens() > 0 {
			t.Fatal("what costs as much as it saves was asked")
		}
	}
}

// A draft must have the model's tokens.
func TestDraftRefuses(t *testing.T) {
	write := func(vocab int) *Model {
		config := tiny()["llama"]
		config["vocab_size"] = vocab
		return load(t, recipe{config: config, seed: 2}.write(t, t.TempDir()), cpu.New(cpu.Options{}), Options{})
	}
	if _, err := write(37).NewDraft(write(36)); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	if _, err := write(37).Generate(ctx, []int32{1}, GenerateOptions{DraftTokens: -1}); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
}
