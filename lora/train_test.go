package lora

import (
	"bytes"
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
)

var nano = filepath.Join("..", "testdata", "nano", "base")

// sequences makes some data with structure: counting in steps.
func sequences(vocab, n, length int) corpus.Windows {
	ids := make([][]int32, n)
	for i := range ids {
		for t := range length + i%3 {
			ids[i] = append(ids[i], int32((3+i*7+t*(1+i%4))%vocab))
		}
	}
	return corpus.New(ids, "counting")
}

// variants are options of every kind and switch, small enough for the nano model.
var variants = map[string]Options{
	"mos":          {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2},
	"mos balanced": {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2, Sampling: "balanced"},
	"mos pure":     {Kind: "mos", Rank: 8, EquivalentRank: 2, Sampling: "pure", Shards: 2},
	"mos paired":   {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2, Paired: true},
	"mos whole":    {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 1},
	"mos public":   {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2, Private: -1},
	"lora":         {Kind: "lora", Rank: 3, Bias: "all"},
	"rslora":       {Kind: "lora", Rank: 3, RSLoRA: true, OutputBias: true},
	"dora":         {Kind: "lora", Rank: 3, DoRA: true},
	"vera":         {Kind: "vera", Rank: 6},
	"prolora":      {Kind: "prolora", Rank: 5, Unshared: 2, InParts: 3, OutParts: 2},
	"rasa":         {Kind: "rasa", Rank: 4},
	"rasa pool":    {Kind: "rasa", Rank: 2, SharedRank: 2},
	"share a":      {Kind: "share", Rank: 3},
	"share b":      {Kind: "share", Rank: 3, Share: "b", RSLoRA: true},
	"share ab":     {Kind: "share", Rank: 3, Share: "ab"},
	"dropout":      {Kind: "lora", Rank: 3, Dropout: 0.3, Targets: []string{"q", "down"}},
}

// TestKinds: every kind starts as the base exactly, learns, and survives being written and read.
func TestKinds(t *testing.T) {
	ctx := context.Background()
	for name, o := range variants {
		t.Run(name, func(t *testing.T) {
			m := openModel(t, little, "cpu", lm.Options{})
			if name == "mos pure" {
				o.Rank = 2 * m.Blocks()
			}

			data := sequences(m.Config().Vocab, 6, 20)
			plain, err := m.Forward(ctx, data.IDs, lm.ForwardOptions{Logits: true})
			if err != nil {
				t.Fatal(err)
			}

			o.Steps, o.Batch = 1, 6
			fresh := o
			fresh.LR = 1e-30 // 0 means the default
			a, err := Train(ctx, m, data, fresh)
			if err != nil {
				t.Fatal(err)
			}

			// DoRA divides by the norms it starts from, so it equals the base up to rounding only.
			compareLogits(t, m, a, data, flat(plain.Logits), map[bool]float64{false: 0, true: 1e-4}[o.DoRA])
			o.Steps, o.LR = 6, 0.02
			if a, err = Train(ctx, m, data, o); err != nil {
				t.Fatal(err)
			}

			r := a.Report()
			if last := r.Steps[len(r.Steps)-1].Loss; !(last < r.Steps[0].Loss) {
				t.Errorf("loss %v → %v", r.Steps[0].Loss, last)
			}

			dir := filepath.Join(t.TempDir(), "out")
			if err := a.Save(dir, false); err != nil {
				t.Fatal(err)
			}

			back, err := Open(dir, m)
			if err != nil {
				t.Fatal(err)
			}

			if back.Trainable() != a.Trainable() {
				t.Errorf("%d parameters come back as %d", a.Trainable(), back.Trainable())
			}

			compareLogits(t, m, back, data, adaptedLogits(t, m, a, data), 0)
			if err := a.Save(dir, false); !errors.Is(err, ErrExists) {
				t.Errorf("saved twice: %v", err)
			}
		})
	}
}

func adaptedLogits(t *testing.T, m *lm.Model, a *Adapter, data corpus.Windows) []float32 {
	t.Helper()
	undo, err := a.Attach(m)
	if err != nil {
		t.Fatal(err)
	}
	defer undo()

	r, err := m.Forward(context.Background(), data.IDs, lm.ForwardOptions{Logits: true})
	if err != nil {
		t.Fatal(err)
	}

	return flat(r.Logits)
}

func compareLogits(t *testing.T, m *lm.Model, a *Adapter, data corpus.Windows, want []float32, most float64) {
	t.Helper()
	if gap, _ := farthest(adaptedLogits(t, m, a, data), want); gap > most {
		t.Errorf("logits differ by %g", gap)
	}
}

// TestLoRAIsMoS: with private rank, equivalent rank and rank equal, a Mixture of Shards whose pools hold LoRA's
// factors has the same losses, bit by bit, in every step.
func TestLoRAIsMoS(t *testing.T) {
	ctx := context.Background()
	m := openModel(t, nano, "cpu", lm.Options{})
	data := sequences(m.Config().Vocab, 8, 24)

	run := Options{Steps: 8, LR: 0.01, Batch: 4}
	lora := run
	lora.Kind, lora.Rank = "lora", 4
	fresh := lora
	fresh.LR, fresh.Steps = 1e-30, 1
	first, err := Train(ctx, m, data, fresh)
	if err != nil {
		t.Fatal(err)
	}

	shards := fresh
	shards.Kind = "mos"
	shards.EquivalentRank = 4
	shards.Private = 4
	shards.Shards = 2
	second, err := Train(ctx, m, data, shards)
	if err != nil {
		t.Fatal(err)
	}

	for i, l := range second.inner.Low {
		p := l.Factors.(mos.Part)
		from := first.inner.Low[i].Factors.(adapter.Plain).A.Value
		for j := range p.Rank {
			for s := range p.Shards {
				row := p.IndexA[(p.Block*p.Rank+j)*p.Shards+s]
				copy(p.A.Value.RowF32(int(row)), from.RowF32(j)[s*p.A.Value.Cols:])
			}
		}

		clear(p.B.Data())
		clear(first.inner.Low[i].Factors.(adapter.Plain).B.Data())
	}

	run.Init = first
	x, err := Train(ctx, m, data, run)
	if err != nil {
		t.Fatal(err)
	}

	run.Init = second
	y, err := Train(ctx, m, data, run)
	if err != nil {
		t.Fatal(err)
	}

	for i := range x.Report().Steps {
		if a, b := x.Report().Steps[i].Loss, y.Report().Steps[i].Loss; a != b {
			t.Fatalf("step %d: %v and %v", i, a, b)
		}
	}

	if x.Trainable() != y.Trainable() {
		t.Errorf("%d and %d parameters", x.Trainable(), y.Trainable())
	}
}

// TestFiniteDifference checks the gradient of a pool row that several blocks use against differences of the loss.
func TestFiniteDifference(t *testing.T) {
	ctx := context.Background()
	m := openModel(t, nano, "cpu", lm.Options{})
	data := sequences(m.Config().Vocab, 3, 24)
	a, err := Train(ctx, m, data, Options{Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2, Steps: 6, LR: 0.05})
	if err != nil {
		t.Fatal(err)
	}

	_, grads, err := a.Gradients(ctx, m, data.IDs, nil)
	if err != nil {
		t.Fatal(err)
	}

	loss := func() float64 {
		undo, err := a.Attach(m)
		if err != nil {
			t.Fatal(err)
		}
		defer undo()

		r, err := m.Forward(ctx, data.IDs, lm.ForwardOptions{})
		if err != nil {
			t.Fatal(err)
		}

		return r.Loss
	}

	for _, p := range mos.Pools(a.inner) {
		for _, param := range []*adapter.Param{p.A, p.B} {
			var g []float32
			for _, x := range grads {
				if x.Name == param.Name {
					g = flat(x.Value)
				}
			}

			at, v := largest(g), param.Data()
			was := v[at]
			diff := slope(func(x float32) float64 {
				v[at] = x
				defer func() { v[at] = was }()
				return loss()
			}, was, 4e-3)

			// As in checkDifference.
			if math.Abs(diff-float64(g[at])) > 0.06*math.Abs(float64(g[at]))+5e-4 {
				t.Errorf("%s[%d]: gradient %v, difference %v", param.Name, at, g[at], diff)
			}
		}
	}
}

func largest(g []float32) int {
	at := 0
	for i, v := range g {
		if math.Abs(float64(v)) > math.Abs(float64(g[at])) {
			at = i
		}
	}
	return at
}

// TestResume: a run that is interrupted after any step goes on to the same bytes, for adapters and whole
// models, with dropout, evaluation, micro-batches and the best kept.
func TestResume(t *testing.T) {
	ctx := context.Background()
	data := func(m *lm.Model) corpus.Windows { return sequences(m.Config().Vocab, 9, 16) }
	for name, o := range map[string]Options{
		"mos":     {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2, Dropout: 0.1, MicroBatch: 1},
		"dora":    {Kind: "lora", Rank: 2, DoRA: true, KeepBest: true},
		"sets":    {Kind: "lora", Rank: 2, Sets: []Set{{6, 1}, {3, 3}}},
		"adamw":   {Kind: "full"},
		"adalomo": {Kind: "full", Optimizer: "adalomo"},
	} {
		t.Run(name, func(t *testing.T) {
			o.Steps = 7
			o.Batch = 3
			o.LR = 0.01

			o.Schedule = "cosine"
			o.Warmup = 2
			o.SaveEvery = 2
			o.EvalEvery = 3
			finish := func(dir string, stop int) []byte {
				m := openModel(t, little, "cpu", lm.Options{})
				held := sequences(m.Config().Vocab, 2, 12)
				o := o
				o.StateDir = dir
				o.Eval = &held

				o.Resume = true
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()

				o.Each = func(s Step) {
					if s.Step == stop {
						cancel()
					}
				}
				return trained(t, ctx, m, data(m), o, stop >= 0)
			}

			want := finish(filepath.Join(t.TempDir(), "state"), -1)
			for _, stop := range []int{0, 2, 5} {
				dir := filepath.Join(t.TempDir(), "state")
				finish(dir, stop)
				if got := finish(dir, -1); !bytes.Equal(got, want) {
					t.Errorf("stopped after step %d: other bytes", stop)
				}
			}
		})
	}
}

// trained runs a training and gives the values that come out.
func trained(t *testing.T, ctx context.Context, m *lm.Model, data corpus.Windows, o Options, stops bool) []byte {
	t.Helper()
	var out bytes.Buffer
	if o.Kind == "full" {
		_, err := Tune(ctx, m, data, o)
		if errors.Is(err, context.Canceled) != stops || err != nil && !stops {
			t.Fatal(err)
		}

		for _, n := range m.Tensors() {
			p, err := m.Param(n)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(p.Buf.Bytes())
		}

		return out.Bytes()
	}

	a, err := Train(ctx, m, data, o)
	if errors.Is(err, context.Canceled) != stops || err != nil && !stops {
		t.Fatal(err)
	}

	if stops {
		return nil
	}
	for _, p := range a.inner.Trainable() {
		out.Write(p.Value.Buf.Bytes())
	}

	return out.Bytes()
}

// TestOtherRun: state of other settings or data is refused.
func TestOtherRun(t *testing.T) {
	m := openModel(t, nano, "cpu", lm.Options{})
	o := Options{Kind: "lora", Rank: 2, Steps: 2, SaveEvery: 1, StateDir: filepath.Join(t.TempDir(), "state")}
	if _, err := Train(context.Background(), m, sequences(50, 4, 8), o); err != nil {
		t.Fatal(err)
	}

	o.Resume = true
	if _, err := Train(context.Background(), m, sequences(50, 5, 8), o); !errors.Is(err, ErrOtherRun) {
		t.Error(err)
	}

	o.LR = 0.5
	if _, err := Train(context.Background(), m, sequences(50, 4, 8), o); !errors.Is(err, ErrOtherRun) {
		t.Error(err)
	}
}

// TestMemoryChangesNothing: how much is kept of the activations changes no bit.
func TestMemoryChangesNothing(t *testing.T) {
	var want []byte
	for _, memory := range []int64{-1, 200 << 10, 1 << 30} {
		m := openModel(t, nano, "cpu", lm.Options{})
		got := trained(t, context.Background(), m, sequences(m.Config().Vocab, 6, 20),
			Options{Kind: "lora", Rank: 3, Dropout: 0.1, Steps: 4, LR: 0.01, Memory: memory}, false)
		if want == nil {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes kept: other values", memory)
		}
	}
}

// TestBadInput: each fault has its error, and messages name what is wrong.
func TestBadInput(t *testing.T) {
	ctx := context.Background()
	m := openModel(t, nano, "cpu", lm.Options{})

	good := sequences(m.Config().Vocab, 4, 10)
	masked := good
	masked.Labels = make([][]int32, len(good.IDs))
	for i, ids := range good.IDs {
		masked.Labels[i] = make([]int32, len(ids))
		for k := range ids {
			masked.Labels[i][k] = corpus.Ignore
		}
	}

	foreign := corpus.New([][]int32{{1, 2, 1 << 20}}, "foreign")
	for name, c := range map[string]struct {
		data corpus.Windows
		o    Options
		want error
		says string
	}{
		"shards that do not divide": {good, Options{Kind: "mos", Shards: 7}, ErrConfig, "7 shards"},
		"private beyond equivalent": {
			good,
			Options{Kind: "mos", Private: 3, EquivalentRank: 2},
			ErrConfig, "private rank 3",
		},
		"private beyond rank": {
			good,
			Options{Kind: "mos", Rank: 1, Private: 2, EquivalentRank: 3},
			ErrConfig,
			"private rank 2",
		},
		"rank beyond the pool": {good, Options{Kind: "mos", Rank: 99}, ErrConfig, "rank 99"},
		"pure of another rank": {good, Options{Kind: "mos", Rank: 3, Sampling: "pure"}, ErrConfig, "pure"},
		"no such target": {
			good,
			Options{Kind: "lora", Targets: []string{"nonesuch"}},
			ErrTarget,
			"nonesuch",
		},
		"all excluded": {
			good,
			Options{Kind: "lora", Targets: []string{"q"}, Exclude: []string{"/.*/"}},
			ErrTarget, "no module",
		},
		"nothing excluded": {
			good,
			Options{Kind: "lora", Exclude: []string{"k_proj", "nonesuch"}},
			ErrTarget,
			"nonesuch",
		},
		"nothing excluded by regex": {
			good,
			Options{Kind: "lora", Exclude: []string{"/nonesuch.*/"}},
			ErrTarget,
			"nonesuch",
		},
		"no such block": {good, Options{Kind: "lora", Layers: []int{0, 99}}, ErrTarget, "block 99"},
		"rank for no module": {
			good,
			Options{Kind: "lora", RankPattern: []Pattern{{"q_proj", 3}, {"w_proj", 2}}},
			ErrTarget, "w_proj",
		},
		"alpha for no module": {
			good,
			Options{Kind: "lora", Targets: []string{"q"}, AlphaPattern: []Pattern{{"v_proj", 3}}},
			ErrTarget, "v_proj",
		},
		"evaluation without tokens": {
			good,
			Options{Kind: "lora", Steps: 1, Eval: &masked},
			ErrNothingToLearn,
			"evaluation data",
		},
		"no such module to save": {good, Options{Kind: "lora", Whole: []string{"nonesuch"}}, ErrTarget, "nonesuch"},
		"unknown kind":           {good, Options{Kind: "magic"}, ErrConfig, "known: lora"},
		"shards of a LoRA":       {good, Options{Shards: 4}, ErrConfig, "of kind mos"},
		"unknown sampling":       {good, Options{Kind: "mos", Sampling: "magic"}, ErrConfig, "official"},
		"nothing to learn":       {masked, Options{Kind: "lora"}, ErrNothingToLearn, ""},
		"empty":                  {corpus.New(nil, ""), Options{Kind: "lora"}, ErrNothingToLearn, ""},
		"outside the vocabulary": {foreign, Options{Kind: "lora"}, corpus.ErrVocabulary, ""},
		"negative":               {good, Options{Rank: -1, LR: -1, Clip: math.NaN()}, ErrConfig, "clip NaN"},
		"adalomo for an adapter": {good, Options{Optimizer: "adalomo"}, ErrConfig, "full"},
		"negative weight":        {good, Options{Sets: []Set{{3, 1}, {1, -1}}}, ErrConfig, "weight -1"},
		"weight of no number":    {good, Options{Sets: []Set{{4, math.NaN()}}}, ErrConfig, "weight NaN"},
		"no weight":              {good, Options{Sets: []Set{{3, 0}, {1, 0}}}, ErrConfig, "all 2 sets"},
		"sets of other data":     {good, Options{Sets: []Set{{3, 1}, {2, 1}}}, ErrConfig, "5 sequences, the data 4"},
		"infinite rate":          {good, Options{LR: math.Inf(1)}, ErrConfig, "learning rate"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := Train(ctx, m, c.data, c.o)
			if !errors.Is(err, c.want) || a != nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestNonFinite: a loss that is not finite ends the run, names the step, and leaves the newest state with which
// a step has succeeded, from which the run goes on with another rate, but not with other settings.
func TestNonFinite(t *testing.T) {
	m := openModel(t, nano, "cpu", lm.Options{})
	dir := filepath.Join(t.TempDir(), "state")
	data := sequences(m.Config().Vocab, 6, 10)
	o := Options{Kind: "lora", Rank: 2, Steps: 30, LR: 1e36, StateDir: dir, SaveEvery: 1}
	_, err := Train(context.Background(), m, data, o)
	if !errors.Is(err, lm.ErrNonFinite) || !strings.Contains(err.Error(), "step 1: ") ||
		!strings.Contains(err.Error(), "no earlier state") {
		t.Fatal(err)
	}

	o.Warmup = 1 // the first step has the rate 0: its state is good, that of the second is not

	if _, err = Train(context.Background(), m, data, o); !errors.Is(err, lm.ErrNonFinite) ||
		!strings.Contains(err.Error(), "step 2: ") || !strings.Contains(err.Error(), "after 1 steps is kept") {
		t.Fatal(err)
	}

	if n, err := Unfinished(dir); n != 1 || err != nil {
		t.Error(n, err)
	}

	o.Resume = true
	o.LR = 1e-3
	o.WeightDecay = 0.1
	if _, err := Train(context.Background(), m, data, o); !errors.Is(err, ErrOtherRun) {
		t.Error(err)
	}

	o.WeightDecay, o.Clip = 0, 1
	a, err := Train(context.Background(), m, data, o)
	if err != nil {
		t.Fatal(err)
	}

	if steps := a.Report().Steps; len(steps) != 30 || steps[0].LR != 0 || steps[1].LR != 1e-3 {
		t.Errorf("%d steps", len(steps))
	}
}

// TestBank: sequences of one pass get their own adapters, as each alone would.
func TestBank(t *testing.T) {
	ctx := context.Background()
	m := openModel(t, nano, "cpu", lm.Options{})
	data := sequences(m.Config().Vocab, 5, 12)
	adapters := map[string]*Adapter{}
	var want [][]float64
	names := []string{"a", "b", "", "b", "c"}

	for name, o := range map[string]Options{
		"a": {Kind: "mos", Rank: 5, EquivalentRank: 3, Shards: 2}, "b": {Kind: "lora", Rank: 3, OutputBias: true},
		"c": {Kind: "prolora", Rank: 4},
	} {
		o.Steps, o.LR = 4, 0.02
		var err error
		if adapters[name], err = Train(ctx, m, data, o); err != nil {
			t.Fatal(err)
		}
	}

	for i, name := range names {
		undo := func() {}
		if name != "" {
			var err error
			if undo, err = adapters[name].Attach(m); err != nil {
				t.Fatal(err)
			}
		}

		r, err := m.Forward(ctx, data.IDs[i:i+1], lm.ForwardOptions{})
		if err != nil {
			t.Fatal(err)
		}

		undo()
		want = append(want, r.LossPerToken[0])
	}

	bank, err := NewBank(m)
	if err != nil {
		t.Fatal(err)
	}
	defer bank.Close()

	for name, a := range adapters {
		if err := bank.Add(name, a); err != nil {
			t.Fatal(err)
		}
	}

	r, err := bank.Forward(ctx, data.IDs, names, lm.ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for i := range names {
		for k, v := range want[i] {
			if math.Abs(v-r.LossPerToken[i][k]) > 1e-5 { // sums of other lengths round differently
				t.Fatalf("sequence %d, token %d: %v alone, %v in the bank", i, k, v, r.LossPerToken[i][k])
			}
		}
	}

	for _, x := range bank.Memory() {
		if less := x.Bytes < x.LoRA; less != (x.Kind != "lora") {
			t.Errorf("%+v", x)
		}
	}

	if _, err := bank.Forward(ctx, data.IDs, []string{"a", "nobody", "", "", ""}, lm.ForwardOptions{}); !errors.Is(err,
		ErrConfig) {
		t.Error(err)
	}

	if err := bank.Add("a", adapters["b"]); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}
