package prune

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// Every architecture, metric, group and pattern: the masks are those that plain loops choose from inputs
// recorded in a model whose earlier blocks are pruned and whose own block is dense.
func TestModelEqualsPlainPruning(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(3), "gpt2": gpt2(), "mixtral": mixtral()} {
		dir := c.write(t, filepath.Join(t.TempDir(), name), nil)
		for _, o := range []Options{
			{Sparsity: .5},
			{Metric: Magnitude(), Sparsity: .5},
			{Metric: Magnitude(), Sparsity: .3, Group: Row},
			{Sparsity: .6, Group: Layer},
			{Pattern: Pattern{2, 4}},
			{Pattern: Pattern{3, 8}, Metric: Magnitude()},
		} {
			t.Run(fmt.Sprintf("%s/%s %s %g %s", name, o.Metric.Name, o.Group, o.Sparsity, o.Pattern),
				func(t *testing.T) {
					comparePlain(t, dir, o)
				})
		}
	}
}

func comparePlain(t *testing.T, dir string, o Options) {
	calib := windows(6, 17, 61)
	masks := map[string][]byte{}
	o.BatchTokens = 40 // three batches of two sequences
	o.Events.Mask = func(name string, keep kernels.Mat) {
		masks[name] = append([]byte(nil), keep.Buf.Bytes()[keep.Off:keep.Off+keep.Len()]...)
	}
	m := load(t, dir, 2, lm.Options{})
	report, err := Model(ctx, m, calib, o)
	if err != nil {
		t.Fatal(err)
	}

	o.setDefaults()
	plain := load(t, dir, 1, lm.Options{})
	for l := range plain.Blocks() {
		inputs := recordInputs(t, plain, l, calib)
		for _, lin := range plain.Linears(l) {
			sel := selection{pattern: o.Pattern, group: o.Group, sparsity: o.Sparsity}
			comparePlainMask(t, plain, lin, inputs[lin.Name], sel, o.Metric, masks[lin.Name])
			zero(t, plain, lin.Name, masks[lin.Name])
			compareWeights(t, m, plain, lin.Name)
		}
	}

	if n := len(report.Tensors); n != len(masks) || report.Total.Matrices != n {
		t.Errorf("report of %d matrices, total says %d, %d masks", n, report.Total.Matrices, len(masks))
	}
	if o.Pattern.Structured() && !report.Total.Exact {
		t.Error("the report says the pattern is not exact")
	}

	short := 0
	for _, x := range report.Tensors {
		if x.Short > 0 {
			short++
		}
	}

	if short != report.Total.Short ||
		(short > 0) != strings.Contains(strings.Join(report.Notes, "\n"), "short last group") {
		t.Errorf("%d matrices with a short group, total %d, notes %q", short, report.Total.Short, report.Notes)
	}
}

// recordInputs gives Σ x² over all tokens, and their number, for each matrix of a block.
func recordInputs(t *testing.T, m *lm.Model, block int, calib corpus.Windows) map[string][]float64 {
	t.Helper()
	sums := map[string][]float64{}
	_, err := m.Forward(ctx, calib.IDs, lm.ForwardOptions{NoLoss: true, Hooks: &lm.Hooks{
		LinearInput: func(l lm.Linear, x kernels.Mat) {
			if l.Block != block || x.Rows == 0 {
				return
			}
			if sums[l.Name] == nil {
				sums[l.Name] = make([]float64, l.In)
			}

			for i := range x.Rows {
				for j, v := range x.RowF32(i) {
					sums[l.Name][j] += float64(v) * float64(v)
				}
			}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}

	return sums
}

// comparePlainMask checks that no weight that went scores clearly above one that stayed in its group. Scores
// closer than 1e-5 of each other may change places: the inputs were computed in other batches.
func comparePlainMask(t *testing.T, m *lm.Model, l lm.Linear, sums []float64, s selection, metric Metric, mask []byte) {
	t.Helper()
	w := values(t, m, l.Name)
	at := func(i, j int) int {
		if l.Transposed {
			return j*l.Out + i
		}
		return i*l.In + j
	}

	score := func(i, j int) float64 {
		v := math.Abs(float64(w[at(i, j)]))
		if metric.Needs != 0 && sums != nil {
			v *= math.Sqrt(sums[j])
		}
		return v
	}

	rows, cols := 1, l.In
	if s.pattern.Structured() {
		cols = s.pattern.M
	} else if s.group == Layer {
		rows = l.Out
	}

	for i0 := 0; i0 < l.Out; i0 += rows {
		for j0 := 0; j0 < l.In; j0 += cols {
			dropped := 0
			highest := 0.0
			lowest := math.Inf(1)
			for i := i0; i < i0+rows; i++ {
				for j := j0; j < min(j0+cols, l.In); j++ {
					if mask[at(i, j)] == 0 {
						dropped++
						highest = max(highest, score(i, j))
					} else {
						lowest = min(lowest, score(i, j))
					}
				}
			}

			want := rowCount(l.In, s.sparsity)
			switch {
			case s.pattern.Structured():
				want = min(s.pattern.N, l.In-j0)
			case s.group == Layer:
				want = layerRank(l.In*l.Out, s.sparsity) + 1
			}

			if dropped < want || (dropped > want && s.group != Layer) {
				t.Fatalf("%s: %d weights of the group at [%d, %d] dropped, want %d", l.Name, dropped, i0, j0, want)
			}
			if highest > lowest*(1+1e-5) {
				t.Fatalf("%s: group at [%d, %d]: a score of %g went while %g stayed", l.Name, i0, j0, highest, lowest)
			}
		}
	}
}

// values reads a parameter as float32.
func values(t testing.TB, m *lm.Model, name string) []float32 {
	t.Helper()
	w, err := m.Param(name)
	if err != nil {
		t.Fatal(err)
	}
	out := kernels.WrapF32(make([]float32, w.Len()))
	m.Device().Ops().Convert(kernels.MatOf(out, w.Rows, w.Cols), w)
	return out.F32()
}

// zero applies a mask by hand.
func zero(t *testing.T, m *lm.Model, name string, mask []byte) {
	t.Helper()
	w, err := m.MutableParam(name)
	if err != nil {
		t.Fatal(err)
	}

	size, raw := w.DType().Size(), w.Buf.Bytes()
	for i, keep := range mask {
		if keep == 0 {
			clear(raw[i*size : (i+1)*size])
		}
	}

	w.Buf.Changed()
}

func compareWeights(t *testing.T, a, b *lm.Model, name string) {
	t.Helper()
	x, err := a.Param(name)
	y, err2 := b.Param(name)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if string(x.Buf.Bytes()) != string(y.Buf.Bytes()) {
		t.Fatalf("%s: the weights are not the masked ones", name)
	}
}

func TestSparsityZeroKeepsEveryByte(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(2), "gpt2": gpt2(), "mixtral": mixtral()} {
		tmp := t.TempDir()
		dir := c.write(t, filepath.Join(tmp, "in"), nil)
		for i, o := range []Options{{}, {Metric: Magnitude()}, {Group: Layer}, {Allocation: Allocation{Name: OWL}}} {
			out := filepath.Join(tmp, fmt.Sprint(i))
			r := prunedTo(t, load(t, dir, 2, lm.Options{}), windows(3, 9, 61), o, out)
			if !maps.Equal(tensorsOf(t, dir), tensorsOf(t, out)) {
				t.Errorf("%s: %+v changes weights", name, o)
			}
			if r.Total.Zeros != 0 {
				t.Errorf("%s: %d zeros reported", name, r.Total.Zeros)
			}
		}
	}
}

// The bytes do not depend on threads, shards, streaming, or whether weights go to disk or stay in memory.
func TestTwins(t *testing.T) {
	tmp := t.TempDir()
	whole := llama(3)
	dir := whole.write(t, filepath.Join(tmp, "whole"), nil)
	sharded := llama(3)
	sharded.shard = 8000

	shards := sharded.write(t, filepath.Join(tmp, "shards"), nil)
	calib := windows(5, 20, 61)
	for i, o := range []Options{
		{Sparsity: .5},
		{Metric: Magnitude(), Sparsity: .5},
		{Pattern: Pattern{2, 4}},
		{Sparsity: .6, Allocation: Allocation{Name: OWL, Lambda: .05}},
		{Metric: SparseGPT(), Sparsity: .5},
		{Metric: PrunerZero(), Pattern: Pattern{2, 4}, Update: Update{Name: ADMM, Steps: 3}},
		{Metric: RIA(), Pattern: Pattern{2, 4}, Permutation: Assignment, Update: Update{Name: SparseGPTUpdate}},
		{Metric: WandaVariant(), Sparsity: .5, Allocation: Allocation{Name: Global}, Update: Update{Name: DSnoT}},
		{Metric: GBLM(), Sparsity: .5, Group: Strip, Allocation: Allocation{Name: Alpha}},
		{Sparsity: .6, Swaps: 2, Update: Update{Name: Exact}},
		{Metric: SparseGPT(), Pattern: Pattern{2, 4}, Swaps: 1, SwapDiagonal: 1},
	} {
		var want map[string]string
		for k, twin := range []struct {
			dir     string
			threads int
			o       lm.Options
		}{
			{dir, 1, lm.Options{}},
			{dir, 2, lm.Options{}},
			{dir, 2, lm.Options{Stream: true}},
			{shards, 2, lm.Options{}},
			{shards, 1, lm.Options{Stream: true}},
		} {
			out := filepath.Join(tmp, fmt.Sprintf("out-%d-%d", i, k))
			m := load(t, twin.dir, twin.threads, twin.o)
			prunedTo(t, m, calib, o, out)
			got := tensorsOf(t, out)
			if want == nil {
				want = got
			}
			if !maps.Equal(want, got) {
				t.Errorf("%+v: %+v gives other weights", o, twin)
			}
		}

		m := load(t, dir, 2, lm.Options{})
		if _, err := Model(ctx, m, calib, o); err != nil {
			t.Fatal(err)
		}

		for _, name := range m.Tensors() {
			w, err := m.Param(name)
			if err != nil {
				t.Fatal(err)
			}

			if string(w.Buf.Bytes()) != want[name] {
				t.Errorf("%+v: %s in memory is not what is written", o, name)
			}
		}
	}
}

func TestMaskFile(t *testing.T) {
	for name, c := range map[string]*checkpoint{"llama": llama(2), "gpt2": gpt2()} {
		tmp := t.TempDir()
		m := load(t, c.write(t, filepath.Join(tmp, "in"), nil), 2, lm.Options{})
		seen := map[string]string{}
		masks, err := NewMasks(filepath.Join(tmp, "masks.safetensors"), m, MaskOptions{})
		if err != nil {
			t.Fatal(err)
		}

		_, err = Model(ctx, m, windows(3, 9, 61),
			Options{Sparsity: .5, Masks: masks, Events: Events{Mask: func(name string, keep kernels.Mat) {
				seen[name] = string(keep.Buf.Bytes()[keep.Off : keep.Off+keep.Len()])
			}}})
		if err != nil {
			t.Fatal(err)
		}

		if diff := cmp.Diff(seen, tensorsOf(t, filepath.Join(tmp, "masks.safetensors"))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if _, err := NewMasks(filepath.Join(tmp, "masks.safetensors"), m, MaskOptions{}); err == nil {
			t.Error("an existing file of masks is replaced without being asked")
		}

		again, err := NewMasks(filepath.Join(tmp, "masks.safetensors"), m, MaskOptions{Overwrite: true})
		if err != nil {
			t.Fatal(err)
		}

		if err := again.Abort(); err != nil {
			t.Error(err)
		}
		if left, err := filepath.Glob(filepath.Join(tmp, "masks*")); err != nil || len(left) != 1 {
			t.Errorf("%v after an aborted replacement, want the first file alone", left)
		}
	}
}

// An expert that no token reaches is ranked by |W|, and the report says so.
func TestExpertWithoutTokens(t *testing.T) {
	dir := mixtral().write(t, filepath.Join(t.TempDir(), "m"), func(name string, v []float32) {
		if strings.HasSuffix(name, "embed_tokens.weight") {
			for i := range v {
				v[i] = float32(math.Abs(float64(v[i]))) + .1
			}
		}

		if strings.HasSuffix(name, "layers.0.block_sparse_moe.gate.weight") {
			for i := range v { // positive inputs: experts 0 and 1 always win
				v[i] = 1
				if i >= len(v)/2 {
					v[i] = -1
				}
			}
		}

		if strings.HasSuffix(name, "layers.0.self_attn.o_proj.weight") {
			clear(v)
		}
	})

	m := load(t, dir, 2, lm.Options{})
	dense := values(t, m, "model.layers.0.block_sparse_moe.experts.3.w1.weight")
	r, err := Model(ctx, m, windows(4, 8, 61), Options{Sparsity: .5})
	if err != nil {
		t.Fatal(err)
	}

	if r.Total.Unrouted < 6 || !strings.Contains(strings.Join(r.Notes, "\n"), "saw no calibration token") {
		t.Errorf("%d matrices without tokens, notes %q", r.Total.Unrouted, r.Notes)
	}

	buf := kernels.MatOf(kernels.NewHost(kernels.U8, len(dense)), 40, 32)
	m.Device().Ops().SelectRows(buf, kernels.Score{X: kernels.MatOf(kernels.WrapF32(dense), 40, 32)}, 16)

	for i, v := range values(t, m, "model.layers.0.block_sparse_moe.experts.3.w1.weight") {
		if (v == 0) != (buf.Buf.U8()[i] == 0) {
			t.Fatalf("element %d is not chosen by magnitude", i)
		}
	}
}

func TestModelRefuses(t *testing.T) {
	tmp := t.TempDir()
	good := load(t, llama(2).write(t, filepath.Join(tmp, "good"), nil), 1, lm.Options{})
	bad := llama(2).write(t, filepath.Join(tmp, "bad"), func(name string, v []float32) {
		if name == "model.layers.1.mlp.up_proj.weight" {
			v[37] = float32(math.NaN())
		}
	})

	big := llama(2).write(t, filepath.Join(tmp, "big"), func(name string, v []float32) {
		if name == "model.layers.0.mlp.up_proj.weight" {
			for i := range v {
				v[i] = 3e38
			}
		}
	})

	calib := windows(2, 8, 61)
	empty := corpus.New([][]int32{{1}, {}}, "x.json")
	for _, c := range []struct {
		name  string
		m     *lm.Model
		calib corpus.Windows
		o     Options
		want  error
		says  string
	}{
		{"options", good, calib, Options{Sparsity: 2}, ErrOptions, "sparsity 2"},
		{"no calibration", good, corpus.Windows{}, Options{Sparsity: .5}, ErrNoCalibration, "metric wanda"},
		{"an empty window", good, empty, Options{Sparsity: .5}, ErrNoCalibration, "x.json: window 1"},
		{
			"ids outside", good, corpus.New([][]int32{{1, 2}, {5, 61}}, "x.json"),
			Options{Sparsity: .5},
			corpus.ErrVocabulary, "x.json: row 1, column 1",
		},
		{
			"NaN", load(t, bad, 1, lm.Options{}), calib,
			Options{Metric: Magnitude(), Sparsity: .5},
			ErrNonFinite,
			`model.safetensors: tensor "model.layers.1.mlp.up_proj.weight": element [1, 5]`,
		},
		{"overflow", load(t, big, 1, lm.Options{}), calib, Options{Sparsity: .5}, ErrNonFinite, "block 0: "},
		{
			"a pattern longer than the inputs", good, calib,
			Options{Pattern: Pattern{40, 41}},
			ErrOptions,
			`model.safetensors: tensor "model.layers.0.self_attn.q_proj.weight": bad pruning options: pattern 40:41 is longer than its 32 inputs`,
		},
		{
			"one that is longer than some", good, calib,
			Options{Pattern: Pattern{1, 33}, Overrides: []Override{{Roles: []string{"down"}, Dense: true}}},
			ErrOptions,
			"pattern 1:33 is longer than its 32 inputs",
		},
		{
			"one of an override", good, calib,
			Options{Sparsity: .5, Overrides: []Override{{Roles: []string{"down"}, Pattern: &Pattern{1, 45}}}},
			ErrOptions, `mlp.down_proj.weight": bad pruning options: pattern 1:45 is longer than its 44 inputs`,
		},
		{
			"everything goes", good, calib,
			Options{Sparsity: .9999, Metric: Magnitude()},
			ErrMask,
			`q_proj.weight": mask check failed: all 1024 weights went, at a sparsity of 0.9999`,
		},
		{
			"custom metric", good, calib,
			Options{Sparsity: .5, Metric: nanMetric},
			ErrNonFinite,
			"metric nan: the score of output 0, input 3",
		},
	} {
		_, err := Model(ctx, c.m, c.calib, c.o)
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v; want %q saying %q", c.name, err, c.want, c.says)
		}
	}
}

var nanMetric = Metric{Name: "nan", Score: func(in Inputs) (kernels.Score, error) {
	buf, err := in.Device.Alloc(kernels.F32, in.W.Len())
	if err != nil {
		return kernels.Score{}, err
	}
	buf.F32()[3] = float32(math.NaN())
	return kernels.Score{X: kernels.MatOf(buf, in.W.Rows, in.W.Cols), Raw: true}, nil
}}

func TestCancel(t *testing.T) {
	tmp := t.TempDir()
	m := load(t, llama(3).write(t, filepath.Join(tmp, "in"), nil), 1, lm.Options{})
	for _, metric := range []Metric{Magnitude(), Wanda()} {
		ctx, cancel := context.WithCancel(ctx)
		n := 0
		_, err := Model(ctx, m, windows(2, 8, 61),
			Options{Metric: metric, Sparsity: .5, Events: Events{Tensor: func(Tensor) {
				n++
				if n == 9 {
					cancel()
				}
			}}})
		if !errors.Is(err, context.Canceled) || n != 9 {
			t.Errorf("%s: %v after %d matrices", metric.Name, err, n)
		}

		cancel()
	}
}

func TestEventsAndReport(t *testing.T) {
	m := load(t, llama(2).write(t, filepath.Join(t.TempDir(), "in"), nil), 2, lm.Options{})
	stages := map[Stage]int{}
	var tensors []Tensor
	calib := windows(4, 10, 61)
	r, err := Model(ctx, m, calib, Options{Pattern: Pattern{1, 4}, Events: Events{
		Step: func(s Step) { stages[s.Stage]++ }, Tensor: func(x Tensor) { tensors = append(tensors, x) },
	}})
	if err != nil {
		t.Fatal(err)
	}

	if stages[Select] != 14 || stages[Statistics] != 2 || stages[Propagate] != 1 {
		t.Errorf("steps: %v", stages)
	}
	if diff := cmp.Diff(tensors, r.Tensors); diff != "" {
		t.Error(diff)
	}

	if r.Options.Sparsity != .25 || r.Meaning != "the 1 lowest of every 4 consecutive inputs go, 3 stay" ||
		r.Calibration.Hash != calib.Hash {
		t.Errorf("report: %+v", r)
	}

	if r.Total.Sparsity != .25 || !r.Total.Exact || r.Total.Weights == 0 || r.Device.Name != "cpu" ||
		len(r.Model.Fingerprint) != 64 {
		t.Errorf("total: %+v, model %+v", r.Total, r.Model)
	}
}

func TestFingerprintTellsJobsApart(t *testing.T) {
	m := load(t, llama(2).write(t, filepath.Join(t.TempDir(), "in"), nil), 1, lm.Options{})
	other := load(t, llama(3).write(t, filepath.Join(t.TempDir(), "in"), nil), 1, lm.Options{})
	calib, calib2 := windows(4, 10, 61), windows(4, 11, 61)
	seen := map[string]int{}
	for i, c := range []struct {
		m     *lm.Model
		calib corpus.Windows
		o     Options
	}{
		{m, calib, Options{Sparsity: .5}},
		{other, calib, Options{Sparsity: .5}},
		{m, calib2, Options{Sparsity: .5}},
		{m, calib, Options{Sparsity: .6}},
		{m, calib, Options{Pattern: Pattern{2, 4}}},
		{m, calib, Options{Metric: Magnitude(), Sparsity: .5}},
		{m, calib, Options{Sparsity: .5, Swaps: 1}},
		{m, calib, Options{Sparsity: .5, Swaps: 1, SwapDiagonal: 1}},
		{m, calib, Options{Sparsity: .5, Swaps: 1, SwapDiagonal: 2}},
	} {
		f, err := Fingerprint(ctx, c.m, c.calib, c.o)
		if err != nil {
			t.Fatal(err)
		}

		if k, twice := seen[f]; twice {
			t.Errorf("jobs %d and %d have the same fingerprint", k, i)
		}

		seen[f] = i
	}

	// A file of gradients counts by what it holds: not by its name, and not by the data that it was made from.
	file := func(dir string, n int) string {
		path := filepath.Join(t.TempDir(), dir+".safetensors")
		o := Options{Metric: PrunerZero(), Sparsity: .5, Gradients: GradientOptions{Keep: path}}
		if _, err := Model(ctx, load(t, m.Path(), 1, lm.Options{}), windows(n, 10, 61), o); err != nil {
			t.Fatal(err)
		}
		return path
	}

	job := func(path string, memo *Memo) string {
		f, err := Fingerprint(ctx, m, calib,
			Options{Metric: PrunerZero(), Sparsity: .5, Gradients: GradientOptions{File: path}, Memo: memo})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}

	one, memo := file("one", 4), &Memo{}
	first, again := job(one, memo), job(one, memo)
	if job(one, nil) != job(file("two", 4), nil) || first != again || first != job(one, nil) {
		t.Error("the same gradients in another file are another job")
	}
	if job(one, nil) == job(file("three", 3), nil) {
		t.Error("other gradients are the same job")
	}

	a, _ := Fingerprint(ctx, m, calib, Options{Sparsity: .5})
	b, _ := Fingerprint(ctx, m, calib, Options{Sparsity: .5, Metric: Wanda(), Group: Row, BatchTokens: 8192})
	if a != b {
		t.Error("defaults written out change the fingerprint")
	}
}

const nano = "../testdata/nano/"

func BenchmarkModel(b *testing.B) {
	for _, name := range MetricNames() {
		b.Run(name, func(b *testing.B) {
			metric, err := MetricByName(name)
			if err != nil {
				b.Fatal(err)
			}

			dev, err := device.Open("cpu", device.Options{})
			if err != nil {
				b.Fatal(err)
			}

			calib := windows(16, 128, 768)
			for b.Loop() {
				m, err := lm.Load(ctx, nano+"base", dev, lm.Options{})
				if err != nil {
					b.Fatal(err)
				}

				if _, err := Model(ctx, m, calib, Options{Metric: metric, Sparsity: .5}); err != nil {
					b.Fatal(err)
				}

				_ = m.Close()
			}
		})
	}
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if os.Getenv(childEnv+"_METRIC") == "memory" {
			os.Exit(memoryChild(dir))
		}
		os.Exit(child(dir))
	}

	if err := flag.Set("rapid.seed", "1"); err != nil { // the same draws in every run; 0 draws anew
		panic(err)
	}

	os.Exit(m.Run())
}
