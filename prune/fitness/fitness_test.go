package fitness

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/prune"
)

const nano = "../../testdata/nano"

// cpu opens the host as a device of so many threads.
func cpu(t testing.TB, threads int) kernels.Device {
	t.Helper()
	dev, err := device.Open("cpu", device.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

// open makes an opener of a nano model on a device of its own.
func open(t testing.TB, name string, threads int) func(ctx context.Context) (*lm.Model, error) {
	t.Helper()
	dev := cpu(t, threads)
	return func(ctx context.Context) (*lm.Model, error) {
		return lm.Load(ctx, filepath.Join(nano, name), dev, lm.Options{})
	}
}

// subjectOf is a nano model with small sets of data.
func subjectOf(t testing.TB, name string, threads int) Subject {
	t.Helper()
	tok, err := tokenizer.Load(filepath.Join(nano, name, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}

	cut := func(file string, n int) corpus.Windows {
		w, err := corpus.Cut(t.Context(), filepath.Join(nano, "text", file), tok,
			corpus.CutOptions{SeqLen: 64, Limit: n})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}

	return Subject{
		Name: name, Open: open(t, name, threads), Calib: cut("calib.txt", 8), Search: cut("valid.txt", 6),
		Select: corpus.New(cut("valid.txt", 12).IDs[6:], "valid.txt"), Test: cut("test.txt", 6),
		TestCalib: corpus.New(cut("calib.txt", 14).IDs[8:], "calib.txt"),
	}
}

// shorter keeps so many windows of every set, and so many tokens of each: enough where no quality is looked at.
func shorter(s Subject, windows, tokens int) Subject {
	for _, w := range []*corpus.Windows{&s.Calib, &s.Search, &s.Select, &s.Test, &s.TestCalib} {
		var ids [][]int32
		for _, row := range w.IDs[:windows] {
			ids = append(ids, row[:tokens])
		}
		*w = corpus.New(ids, w.Source)
	}
	return s
}

func judge(t testing.TB, o Options, subjects ...Subject) *Judge {
	t.Helper()
	j, err := NewJudge(t.Context(), subjects, o)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func settings() []Setting {
	return []Setting{{Sparsity: 0.5}, {Sparsity: 0.6}, {Pattern: prune.Pattern{N: 2, M: 4}}}
}

func measure(t testing.TB, j *Judge, r Rung, metric string) Measure {
	t.Helper()
	m, err := j.Measure(t.Context(), Task{j.ID(), r, metric})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWhole: the upper rungs give the losses of what prune.Model makes, to the last bit, also of a model that
// was used before.
func TestWhole(t *testing.T) {
	s := shorter(subjectOf(t, "base", 2), 4, 32)
	j := judge(t, Options{Settings: settings()[1:], Windows: 2}, s)
	sets := map[Rung]set{Full: {s.Calib, s.Search}, Select: {s.Calib, s.Select}, Test: {s.TestCalib, s.Test}}
	for _, name := range []string{"wanda", "pruner-zero", "expr:sqrt(W) * G + X", Dense} {
		got := map[Rung]Measure{}
		for rung := range sets {
			got[rung] = measure(t, j, rung, name)
		}

		for i, setting := range settings()[1:] {
			for rung, set := range sets {
				want := plainly(t, s, name, setting, set)
				if g := got[rung]; g.Values[i] != mean(want) || rung != Full && !reflect.DeepEqual(g.Windows[i], want) {
					t.Errorf("%s, rung %s, %s: %v, want %v", setting, rung, name, g, want)
				}
			}
		}
	}
}

// plainly prunes a model that is opened anew and gives the losses of its windows.
func plainly(t *testing.T, s Subject, name string, setting Setting, set set) []float64 {
	t.Helper()
	m, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	if name != Dense {
		o := prune.Options{Sparsity: setting.Sparsity, Pattern: setting.Pattern}
		if o.Metric, err = prune.MetricByName(name); err == nil {
			_, err = prune.Model(t.Context(), m, set.calib, o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	v, err := losses(t.Context(), m, set.data.IDs)
	if err != nil {
		t.Fatal(err)
	}

	return v
}

// TestLayers compares the error of the sampled blocks with that of models in which a single block is pruned, by
// Wanda's scores from float64 sums: ‖Δ‖²/‖Y‖² of what leaves the block, in a pass over the whole model. A
// weight at the edge of a mask may change places with its neighbour: 1e-3.
func TestLayers(t *testing.T) {
	s := subjectOf(t, "base", 2)
	j := judge(t, Options{Settings: settings(), Blocks: 2, Windows: 2}, s)
	got := measure(t, j, Layers, "expr:W * sqrt(X)")
	dense, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer dense.Close()

	inputs, outputs := map[string][]float32{}, map[int][]float32{}
	if _, err := dense.Forward(t.Context(), s.Calib.IDs, lm.ForwardOptions{Hooks: &lm.Hooks{
		LinearInput: func(l lm.Linear, x kernels.Mat) {
			for i := range x.Rows {
				inputs[l.Name] = append(inputs[l.Name], x.RowF32(i)...)
			}
		},
		BlockOutput: func(l int, x kernels.Mat) { outputs[l] = append(outputs[l], flat(x)...) },
	}}); err != nil {
		t.Fatal(err)
	}

	for k, setting := range settings() {
		logs := 0.0
		for _, block := range []int{0, dense.Blocks() - 2} {
			logs += math.Log(plainError(t, s, block, inputs, outputs[block], setting))
		}
		if want := math.Exp(logs / 2); math.Abs(got.Values[k]-want) > 1e-3*want {
			t.Errorf("%s: %g, want %g", setting, got.Values[k], want)
		}
	}
}

func flat(x kernels.Mat) (list []float32) {
	for i := range x.Rows {
		list = append(list, x.RowF32(i)...)
	}
	return list
}

// plainError prunes one block by Wanda and measures what leaves it, in float64.
func plainError(t *testing.T, s Subject, block int, inputs map[string][]float32, dense []float32,
	setting Setting,
) float64 {
	t.Helper()
	m, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	for _, l := range m.Linears(block) {
		w, err := m.MutableParam(l.Name)
		if err != nil {
			t.Fatal(err)
		}

		score := kernels.MatOf(kernels.NewHost(kernels.F32, w.Len()), l.Out, l.In)
		x := inputs[l.Name]
		for j := range l.In {
			sq := 0.0
			for i := j; i < len(x); i += l.In {
				sq += float64(x[i]) * float64(x[i])
			}

			for i := range l.Out {
				score.RowF32(i)[j] = float32(
					math.Abs(float64(kernels.FromBF16(w.RowU16(i)[j]))) * math.Sqrt(sq/float64(len(s.Calib.IDs))))
			}
		}

		keep := kernels.MatOf(kernels.NewHost(kernels.U8, w.Len()), l.Out, l.In)
		if err := setting.choose(m.Device(), keep, score); err != nil {
			t.Fatal(err)
		}

		for i := range l.Out {
			for j := range l.In {
				if keep.RowU8(i)[j] == 0 {
					w.RowU16(i)[j] = 0
				}
			}
		}

		w.Buf.Changed()
	}

	var pruned []float32
	if _, err := m.Forward(t.Context(), s.Calib.IDs,
		lm.ForwardOptions{Hooks: &lm.Hooks{BlockOutput: func(l int, x kernels.Mat) {
			if l == block {
				pruned = append(pruned, flat(x)...)
			}
		}}}); err != nil {
		t.Fatal(err)
	}

	var lost, all float64
	for i, y := range dense {
		lost += math.Pow(float64(pruned[i])-float64(y), 2)
		all += float64(y) * float64(y)
	}

	return lost / all
}

// TestSampled: blocks spread from the first one on, the last one only if all are taken.
func TestSampled(t *testing.T) {
	for _, c := range []struct {
		blocks, n int
		want      []int
	}{
		{4, 3, []int{0, 1, 2}},
		{6, 3, []int{0, 2, 4}},
		{4, 9, []int{0, 1, 2, 3}},
		{1, 3, []int{0}},
		{2, 1, []int{0}},
		{12, 1, []int{5}},
		{3, 2, []int{0, 1}},
	} {
		if got := sampled(c.blocks, c.n); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%d of %d: %v, want %v", c.n, c.blocks, got, c.want)
		}
	}
}

// TestFew: with a single block left to prune nothing lies upstream, so that statistics of the dense model give
// prune.Model's masks: the losses of the two ways agree for a metric of the weights alone, which needs no
// statistics, on every block.
func TestFew(t *testing.T) {
	s := subjectOf(t, "base", 2)
	j := judge(t, Options{Settings: settings(), Windows: 6}, s)
	few, full := measure(t, j, Few, "expr:W * Wr1"), measure(t, j, Full, "expr:W * Wr1")
	if !reflect.DeepEqual(few.Values, full.Values) {
		t.Errorf("%v, want %v", few.Values, full.Values)
	}
	if dense := measure(t, j, Few, Dense); dense.Values[0] >= few.Values[0] {
		t.Errorf("pruned %v, dense %v", few.Values, dense.Values)
	}
}

// TestRungsRank: over random legal trees, which nothing has sorted out, the first rung orders as the loss does.
// 0.98 was measured with more data; 0.9 is for the few windows here.
func TestRungsRank(t *testing.T) {
	j := judge(t, Options{Settings: settings()[1:2], Symbols: gp.FullGrammar().Symbols, Windows: 2},
		subjectOf(t, "base", 2))
	var mu sync.Mutex
	var low, high []float64
	measured := gp.Func(func(ctx context.Context, e *gp.Expr) (float64, error) {
		name := prune.FormulaPrefix + e.String()
		a, err := j.Measure(ctx, Task{j.ID(), Layers, name})
		if err != nil || a.Rejected != "" {
			return math.NaN(), err
		}

		b, err := j.Measure(ctx, Task{j.ID(), Few, name})
		if err != nil || b.Rejected != "" {
			return math.NaN(), err
		}

		mu.Lock()
		defer mu.Unlock()

		low, high = append(low, a.Values[0]), append(high, b.Values[0])
		return b.Values[0], nil
	})

	o := gp.Options{Seed: 3, Population: 60, Generations: 1, MaxEvals: 60, Probe: j.Probe(), Workers: 1}
	if _, err := gp.Search(t.Context(), gp.FullGrammar(), measured, o); err != nil {
		t.Fatal(err)
	}
	if rho := stats.Spearman(low, high); len(low) < 60 || !(rho > 0.9) {
		t.Errorf("%d candidates, rank correlation %.3f", len(low), rho)
	}
}

// TestIndependence: measurements depend neither on what was measured before nor on how much at the same time,
// nor on threads.
func TestIndependence(t *testing.T) {
	var tasks []Task
	subject := func(name string, threads int) Subject { return shorter(subjectOf(t, name, threads), 4, 32) }
	one := judge(t, Options{Settings: settings()[1:], Windows: 2}, subject("base", 1), subject("tales", 1))
	two := judge(t, Options{Settings: settings()[1:], Windows: 2, Benches: 3, Dir: t.TempDir()},
		subject("base", 2), subject("tales", 2))
	if one.ID() != two.ID() {
		t.Fatal("another judge")
	}

	for _, r := range rungs {
		for _, m := range []string{
			"expr:W * sqrt(X)", "expr:W * G", "expr:W * W * mms(G)", "expr:W * sqrt(X)",
			"expr:W * log(X)",
		} {
			tasks = append(tasks, Task{one.ID(), r, m})
		}
	}

	a, err := one.All(t.Context(), tasks)
	if err != nil {
		t.Fatal(err)
	}

	b, err := two.All(t.Context(), tasks)
	if err != nil {
		t.Fatal(err)
	}

	if !reflect.DeepEqual(a, b) {
		t.Errorf("%v\n%v", a, b)
	}

	if len(a[0].Values) != 4 ||
		!reflect.DeepEqual(one.Cases(), []string{"base 0.6", "base 2:4", "tales 0.6", "tales 2:4"}) {
		t.Error(a[0], one.Cases())
	}

	if !reflect.DeepEqual(a[0], a[3]) || reflect.DeepEqual(a[0], a[1]) {
		t.Error(a[:4])
	}
}

// TestRefusedTasks: tasks of another judge, and metrics that can't be measured.
func TestRefusedTasks(t *testing.T) {
	j := judge(t, Options{Windows: 2}, subjectOf(t, "base", 1))
	for _, task := range []Task{
		{"other", Few, Wanda},
		{j.ID(), "top", Wanda},
		{j.ID(), Few, "wanda"},
		{j.ID(), Layers, Dense},
		{j.ID(), Few, "expr:W *"},
		{j.ID(), Few, "expr:X"},
		{j.ID(), Full, "nonsense"},
	} {
		if _, err := j.Measure(t.Context(), task); !errors.Is(err, ErrTask) {
			t.Errorf("%+v: %v", task, err)
		}
	}

	for _, r := range rungs {
		if m := measure(t, j, r, "expr:W * exp(exp(exp(exp(W + G))))"); m.Rejected == "" {
			t.Errorf("rung %s: infinite scores: %+v", r, m)
		}
		if m := measure(t, j, r, "expr:W * (X - X)"); m.Rejected == "" {
			t.Errorf("rung %s: constant scores: %+v", r, m)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.Measure(ctx, Task{j.ID(), Full, "wanda"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestBadSettings: every fault of the options and of the data has its error.
func TestBadSettings(t *testing.T) {
	good := subjectOf(t, "base", 1)
	short := good
	short.Search = corpus.New(good.Search.IDs[:1], "short")
	single := good
	single.Test = corpus.New([][]int32{{1}, {2}}, "single")

	for _, c := range []struct {
		o Options
		s []Subject
	}{
		{Options{}, nil},
		{Options{Blocks: -1}, []Subject{good}},
		{Options{Settings: []Setting{{Sparsity: 1}}}, []Subject{good}},
		{Options{Settings: []Setting{{}}}, []Subject{good}},
		{Options{Windows: 2}, []Subject{short}},
		{Options{Windows: 2}, []Subject{single}},
	} {
		if _, err := NewJudge(t.Context(), c.s, c.o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}

	alien := good
	alien.Test = corpus.New([][]int32{{1, 100000}, {2, 3}}, "alien")
	if _, err := NewJudge(t.Context(), []Subject{alien}, Options{Windows: 2}); !errors.Is(err, corpus.ErrVocabulary) {
		t.Error(err)
	}

	j := judge(t, Options{Settings: []Setting{{Sparsity: 0.01}}, Windows: 2}, good)
	if _, err := NewLadder(t.Context(), j.ID(), j.All, LadderOptions{}); !errors.Is(err, ErrEasy) {
		t.Errorf("one weight of a hundred: %v", err)
	}
	if _, err := NewLadder(t.Context(), j.ID(), j.All, LadderOptions{Keep: 2}); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}
}

// TestSearch: a small search on a model finds something better than Wanda on the search data, with the probe of
// real layers.
func TestSearch(t *testing.T) {
	j := judge(t, Options{Settings: []Setting{{Sparsity: 0.6}}, Windows: 2, Benches: 2}, subjectOf(t, "base", 1))
	l, err := NewLadder(t.Context(), j.ID(), j.All, LadderOptions{})
	if err != nil {
		t.Fatal(err)
	}

	wanda, err := gp.Parse(strings.TrimPrefix(Wanda, prune.FormulaPrefix))
	if err != nil {
		t.Fatal(err)
	}

	if q, err := l.Evaluate(t.Context(), wanda); q != 1 || err != nil {
		t.Errorf("Wanda has quality %g: %v", q, err)
	}

	g := gp.PaperGrammar()
	r, err := gp.Search(t.Context(), g, l,
		gp.Options{Seed: 1, Population: 16, Generations: 2, Seeds: gp.Seeds(g), Probe: j.Probe(), FitnessID: j.ID()})
	if err != nil {
		t.Fatal(err)
	}

	if r.Best.Quality >= 1 {
		t.Errorf("best %s has %g", r.Best.Formula, r.Best.Quality)
	}
}
