package prune

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/internal/grads"
	"github.com/modelcompress/compress/prune/internal/score"
	"github.com/modelcompress/compress/safetensors"
)

// oracleRun is one run of the published code on one model.
type oracleRun struct {
	name    string // method.pattern
	options Options
	tensors *safetensors.File
	result  oracleResult
}

type oracleResult struct {
	Zeros         map[string]int64   `json:"zeros"`
	WindowNLL     []float64          `json:"window_nll_f64"`
	Outliers      []float64          `json:"outlier_percent"`
	LayerSparsity []float64          `json:"layer_sparsity"`
	LayerN        []float64          `json:"layer_n"`
	M             float64            `json:"M"`
	Lambda        float64            `json:"lam"`
	Alpha         map[string]float64 `json:"alpha"`
	Loss          map[string]float64 `json:"loss"`
	MaxCycles     int                `json:"max_cycles"`
	Threshold     float64            `json:"threshold"`
	SameSign      bool               `json:"same_sign_stop"`
	ExactTies     int                `json:"exact_ties"`
}

// oracleCase is one model with its runs.
type oracleCase struct {
	dir, model string
	runs       []oracleRun
	ids        corpus.Windows
	eval       corpus.Windows
	dense      oracleResult
	unknown    []string // runs of methods that this test does not know, and of formulas without W
}

// oracleMethods are the runs that this package can repeat, by the name of the method. Those of trees are made from the
// files of trees; obs runs take their masks from the reference.
var oracleMethods = map[string]Options{
	"magnitude":            {Metric: Magnitude()},
	"wanda":                {Metric: Wanda()},
	"wanda_variant":        {Metric: WandaVariant()},
	"ria":                  {Metric: RIA()},
	"ria_row":              {Metric: RIA(), Group: Row},
	"ria_perm":             {Metric: RIA(), Permutation: Interleave},
	"ria_perm_lsa":         {Metric: RIA(), Permutation: Assignment},
	"gblm":                 {Metric: GBLM()},
	"pruner_zero":          {Metric: PrunerZero()},
	"pruner_zero_g32":      {Metric: PrunerZero(), Gradients: GradientOptions{Exact: true}},
	"sparsegpt":            {Metric: SparseGPT()},
	"obs_mag_mask":         {Metric: Metric{Group: Layer}, Update: Update{Name: SparseGPTUpdate}},
	"obs_wanda_mask":       {Metric: Metric{Group: Row}, Update: Update{Name: SparseGPTUpdate}},
	"owl_wanda":            {Metric: Wanda(), Allocation: Allocation{Name: OWL}},
	"owl_mixed_nm":         {Metric: Wanda(), Allocation: Allocation{Name: OWLMixed}},
	"owl_mixed_nm_special": {Metric: Wanda(), Allocation: Allocation{Name: OWLMixed, Special: true}},
	"dsnot":                {Metric: Wanda(), Update: Update{Name: DSnoT}},
	"dsnot_all":            {Metric: Wanda(), Update: Update{Name: DSnoT, MLP: true}},
	"dsnot_all_samesign":   {Metric: Wanda(), Update: Update{Name: DSnoT, MLP: true}},
}

// method finds the options of a run.
func (c *oracleCase) method(t *testing.T, name string) (Options, bool) {
	t.Helper()
	if o, ok := oracleMethods[name]; ok {
		return o, true
	}

	tree, ok := strings.CutPrefix(name, "tree_")
	if !ok {
		return Options{}, false
	}

	m, err := MetricByName(TreePrefix + filepath.Join(c.dir, "trees", tree+".json"))
	if errors.Is(err, gp.ErrNoWeight) {
		return Options{}, false // refused, as it should be
	}

	if err != nil {
		t.Fatal(err)
	}

	return Options{Metric: m}, true
}

var patternNames = regexp.MustCompile(`^(?:u(\d+)|(\d)(\d))$`)

func oracleFolder() string {
	if dir := os.Getenv("COMPRESS_ORACLE"); dir != "" {
		return dir
	}
	return "../../shared/oracle"
}

// eachOracle runs a test on every model of the oracle folder.
func eachOracle(t *testing.T, test func(t *testing.T, c *oracleCase)) {
	root := filepath.Join(oracleFolder(), "prune")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Skipf("no reference data: %v", err)
	}

	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			test(t, openOracle(t, filepath.Join(root, e.Name()), e.Name()))
		})
	}
}

// openOracle reads a case. Its model stands beside the cases or among the data.
func openOracle(t *testing.T, dir, name string) *oracleCase {
	t.Helper()
	c := &oracleCase{dir: dir}
	places := []string{
		filepath.Join(oracleFolder(), "models", name), filepath.Join(oracleFolder(), "..", "data", "models", name),
		filepath.Join(oracleFolder(), "..", "data", name, "base"), filepath.Join(dir, "model"),
		filepath.Join("..", "..", "shared", "data", "models", name),
		filepath.Join("..", "..", "shared", "data", name, "base"),
	}

	for _, p := range places {
		if _, err := os.Stat(filepath.Join(p, "config.json")); err == nil {
			c.model = p
			break
		}
	}

	if c.model == "" {
		t.Skipf("no model for %s in any of %s", dir, strings.Join(places, ", "))
	}

	var results map[string]json.RawMessage
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err == nil {
		err = json.Unmarshal(text, &results)
	}
	if err == nil {
		err = json.Unmarshal(results["dense"], &c.dense)
	}
	if err != nil {
		t.Fatal(err)
	}

	if c.ids, err = corpus.Sample(ctx, filepath.Join(dir, "ids.safetensors"), nil, corpus.SampleOptions{}); err != nil {
		t.Fatal(err)
	}
	if c.eval, err = corpus.Cut(ctx, filepath.Join(dir, "ids.safetensors"), nil, corpus.CutOptions{}); err != nil {
		t.Fatal(err)
	}

	c.openRuns(t, results)
	return c
}

func (c *oracleCase) openRuns(t *testing.T, results map[string]json.RawMessage) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.dir, "runs", "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no runs (%v)", c.dir, err)
	}

	for _, file := range files {
		r := oracleRun{name: strings.TrimSuffix(filepath.Base(file), ".safetensors")}
		method, pattern, _ := strings.Cut(r.name, ".")
		var known bool
		if r.options, known = c.method(t, method); !known {
			c.unknown = append(c.unknown, r.name)
			continue
		}

		p := patternNames.FindStringSubmatch(pattern)
		if p == nil {
			t.Errorf("%s: unknown pattern", file)
			continue
		}

		if p[1] != "" {
			percent, _ := strconv.Atoi(p[1])
			r.options.Sparsity = float64(percent) / 100
		} else {
			n, _ := strconv.Atoi(p[2])
			m, _ := strconv.Atoi(p[3])
			r.options.Pattern = Pattern{n, m}
		}

		if raw, ok := results[r.name]; !ok || json.Unmarshal(raw, &r.result) != nil {
			t.Errorf("%s: no result", file)
			continue
		}

		r.options.Allocation.M, r.options.Allocation.Lambda = r.result.M, r.result.Lambda

		if u := &r.options.Update; u.Name == DSnoT {
			u.Cycles = r.result.MaxCycles
			u.Threshold = r.result.Threshold
			u.SameSign = r.result.SameSign
		}

		if r.options.Metric.Needs&Gradients != 0 {
			r.options.Gradients.File = filepath.Join(c.dir, "grads.safetensors")
		}
		if r.tensors, err = safetensors.Open(file); err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { r.tensors.Close() })
		if r.options.Metric.Name == "" {
			r.options.Metric = r.maskMetric(r.options.Metric.Group)
		}

		c.runs = append(c.runs, r)
	}
}

// bits unpacks a mask [out, in] of the reference; nil if there is none.
func (r *oracleRun) bits(l lm.Linear, suffix string) []bool {
	raw, err := r.tensors.Bytes(strings.TrimSuffix(l.Name, ".weight") + suffix)
	if err != nil {
		return nil
	}

	width := (l.In + 7) / 8
	out := make([]bool, 0, l.In*l.Out)
	for i := range l.Out {
		for j := range l.In {
			out = append(out, raw[i*width+j/8]>>(j%8)&1 == 1)
		}
	}

	return out
}

// floats reads an F32 tensor of the reference; nil if there is none.
func floats(f *safetensors.File, name string) []float64 {
	raw, err := f.Bytes(name)
	if err != nil {
		return nil
	}
	out := make([]float64, len(raw)/4)
	for j := range out {
		out[j] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:])))
	}
	return out
}

// compareBits counts where a mask in stored layout differs from the reference outside the elements where either
// is right.
func compareBits(r *oracleRun, l lm.Linear, mask []byte) (differ int) {
	return differing(l, mask, r.bits(l, ".mask"), r.bits(l, ".near"))
}

// compareAll counts all differences.
func compareAll(r *oracleRun, l lm.Linear, mask []byte) int {
	return differing(l, mask, r.bits(l, ".mask"), nil)
}

func differing(l lm.Linear, mask []byte, want, near []bool) (differ int) {
	for i := range l.Out {
		for j := range l.In {
			at := i*l.In + j
			stored := at
			if l.Transposed {
				stored = j*l.Out + i
			}
			if (mask[stored] == 1) != want[at] && (near == nil || !near[at]) {
				differ++
			}
		}
	}

	return differ
}

// maskMetric ranks by the reference's mask, so that exactly what it drops goes.
func (r *oracleRun) maskMetric(group Group) Metric {
	return Metric{Name: "mask", Group: group, Score: func(in Inputs) (kernels.Score, error) {
		l := lm.Linear{Name: in.Name, In: in.W.Cols, Out: in.W.Rows}
		x := make([]float32, in.W.Len())
		for i, keep := range r.bits(l, ".mask") {
			if keep {
				x[i] = 1
			}
		}
		return score.Place(in.Device, kernels.MatOf(kernels.WrapF32(x), l.Out, l.In))
	}}
}

// Masks chosen from the reference's own statistics are the reference's masks, where no element may be other
// than a near tie.
func TestSelectionOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		for name, dev := range devices(t) {
			m, err := lm.Load(ctx, c.model, dev, lm.Options{})
			if err != nil {
				t.Fatal(err)
			}

			t.Cleanup(func() { m.Close() })
			for _, r := range c.runs {
				r.compareSelection(t, m, name)
			}
		}

		if len(c.unknown) > 0 {
			t.Logf("runs that are not repeated, of unknown methods or of formulas without W: %q", c.unknown)
		}
	})
}

func (r *oracleRun) compareSelection(t *testing.T, m *lm.Model, device string) {
	t.Helper()
	if (r.options.Metric.Needs|r.options.Update.needs())&Hessian != 0 {
		return // see TestSweepOracle
	}

	o := r.options
	o.setDefaults()
	w := &walk{site: on(m.Device()), m: m, o: o, needs: o.Needs(), report: &Report{}}
	if err := w.collectGradients(ctx); err != nil {
		t.Fatal(err)
	}
	defer w.free()

	for b := range m.Blocks() {
		target := o.Sparsity
		if r.result.LayerSparsity != nil && !o.Pattern.Structured() {
			target = r.result.LayerSparsity[b]
		}

		w.report.Blocks = append(w.report.Blocks, Block{Target: target})
		if r.result.LayerN != nil {
			w.patterns = append(w.patterns, Pattern{int(r.result.LayerN[b]), o.Pattern.M})
		}
	}

	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			mask, err := w.selectFrom(t, r, l)
			if errors.Is(err, ErrNonFinite) && r.overflows() {
				continue // what the reference takes for large numbers is refused
			}

			if err != nil {
				t.Errorf("%s on %s: %v", r.name, device, err)
			} else if n := compareBits(r, l, mask); n > 0 {
				t.Errorf("%s on %s: %s: %d elements differ", r.name, device, l.Name, n)
			}
		}
	}
}

// overflows reports whether scores of the reference are not finite.
func (r *oracleRun) overflows() bool {
	for _, name := range r.tensors.Names() {
		if strings.HasSuffix(name, ".score") {
			for _, v := range floats(r.tensors, name) {
				if v-v != 0 {
					return true
				}
			}
		}
	}

	return false
}

// selectFrom chooses a mask, in stored layout, from the statistics of the reference.
func (w *walk) selectFrom(t *testing.T, r *oracleRun, l lm.Linear) ([]byte, error) {
	t.Helper()
	c := &change{plan: w.plan(l)}
	stored, err := w.m.Param(l.Name)
	if err != nil {
		t.Fatal(err)
	}

	if c.plan.dense {
		return bytes.Repeat([]byte{1}, stored.Len()), nil
	}

	var release func()
	if c.in, release, err = w.inputs(l, stored, nil); err != nil {
		t.Fatal(err)
	}
	defer release()

	name := strings.TrimSuffix(l.Name, ".weight")
	c.in.Tokens, c.in.Sequences = 1, 1
	c.in.SumSquares = floats(r.tensors, name+".X")
	c.in.Sums = floats(r.tensors, name+".sum_x")
	c.in.Variances = floats(r.tensors, name+".var_x")
	if w.needs&SumSquares != 0 && c.in.SumSquares == nil {
		t.Fatalf("%s: no statistics of %s", r.name, l.Name)
	}

	order, err := w.chooseInto(ctx, l, c, nil)
	if err == nil {
		err = w.update(ctx, l, c, nil)
	}
	if err != nil {
		return nil, err
	}

	r.compareOrder(t, name, order)
	if want, ok := r.result.Alpha[name]; ok && c.t.Alpha != want {
		t.Errorf("%s: %s: alpha %g, want %g", r.name, name, c.t.Alpha, want)
	}

	keep := c.keep
	if l.Transposed {
		if keep, err = hostmat.Transposed(w.dev, keep); err != nil {
			t.Fatal(err)
		}
	}

	return keep.Buf.Bytes()[:keep.Len()], nil
}

func (r *oracleRun) compareOrder(t *testing.T, name string, order []int32) {
	t.Helper()
	raw, err := r.tensors.Bytes(name + ".perm")
	if err != nil {
		return
	}

	for p, j := range order {
		if want := int32(binary.LittleEndian.Uint32(raw[4*p:])); j != want {
			t.Errorf("%s: %s: input %d at position %d, want %d", r.name, name, j, p, want)
			return
		}
	}
}

// SparseGPT from the reference's Hessian: the same mask, weights to 1e-6 of the largest (the reference is in
// single precision).
func TestSweepOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		m := load(t, c.model, 2, lm.Options{})
		for _, r := range c.runs {
			for b := range m.Blocks() {
				for _, l := range m.Linears(b) {
					if h := floats(r.tensors, strings.TrimSuffix(l.Name, ".weight")+".H"); h != nil && !l.Transposed {
						r.compareSweep(t, m, l, h)
					}
				}
			}
		}
	})
}

func (r *oracleRun) compareSweep(t *testing.T, m *lm.Model, l lm.Linear, h []float64) {
	t.Helper()
	o := r.options
	o.setDefaults()
	w := &walk{site: on(m.Device()), m: m, o: o, report: &Report{Blocks: make([]Block, m.Blocks())}}
	w.report.Blocks[l.Block].Target = o.Sparsity
	defer w.free()

	c := &change{plan: w.plan(l)}
	var err error
	if c.in.W, err = m.Param(l.Name); err != nil {
		t.Fatal(err)
	}

	u := kernels.MatOf(kernels.NewHost(kernels.F32, len(h)), l.In, l.In)
	given, err := kernels.Wrap(kernels.F64, hostmat.BytesOf(h))
	if err != nil {
		t.Fatal(err)
	}

	c.in.Device = w.dev
	c.in.Name = l.Name
	c.in.Tokens = 1
	c.in.Factor = func() (kernels.Mat, error) {
		_, err := linalg.Solver{}.DampedInverseFactor(u, kernels.MatOf(given, l.In, l.In), o.Update.Damping)
		return u, err
	}

	if c.keep, err = w.keepFor(c.in.W); err == nil && !o.Metric.sweeps {
		err = w.choose(c)
	}
	if err == nil {
		err = w.sweep(ctx, c, c.keep, &actstats.Sum{}, o.Metric.sweeps)
	}
	if err != nil {
		t.Fatal(err)
	}

	w.ops.ApplyMask(c.after, c.keep)
	if n := compareBits(r, l, c.keep.Buf.Bytes()[:c.keep.Len()]); n > 0 {
		t.Errorf("%s: %s: %d elements of the mask differ", r.name, l.Name, n)
	}

	largest, far := 0.0, 0.0
	for i, v := range floats(r.tensors, strings.TrimSuffix(l.Name, ".weight")+".weight") {
		largest, far = max(largest, math.Abs(v)), max(far, math.Abs(v-float64(c.after.Buf.F32()[i])))
	}
	if far > 1e-6*largest {
		t.Errorf("%s: %s: weights differ by up to %.2g of the largest", r.name, l.Name, far/largest)
	}
}

// The statistics of the dense model: those of a run that prunes nothing.
func TestDenseStatisticsOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		want, err := safetensors.Open(filepath.Join(c.dir, "dense_stats.safetensors"))
		if err != nil {
			t.Skip(err)
		}
		defer want.Close()

		m := load(t, c.model, 2, lm.Options{})
		n := 0
		metric := Wanda()
		metric.Score = func(in Inputs) (kernels.Score, error) {
			for j, x := range floats(want, strings.TrimSuffix(in.Name, ".weight")+".X") {
				n++
				if math.Abs(in.SumSquares[j]-x) > 2e-6*x {
					t.Errorf("%s: input %d: %g, want %g", in.Name, j, in.SumSquares[j], x)
				}
			}
			return wandaScore(in)
		}

		if _, err := Model(ctx, m, c.ids, Options{Metric: metric}); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			t.Error("nothing compared")
		}
	})
}

// Gradients of the dense model, from one part of the sequences at a time or all at once, in memory or kept in a
// file: relative differences from the reference up to 2e-5, from single precision along the whole backward
// pass.
func TestGradientsOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		want, err := safetensors.Open(filepath.Join(c.dir, "grads.safetensors"))
		if err != nil {
			t.Skip(err)
		}
		defer want.Close()

		m := load(t, c.model, 2, lm.Options{})
		for _, g := range []GradientOptions{
			{Exact: true},
			{Exact: true, Memory: 1 << 20},
			{Exact: true, Memory: 1 << 20, Keep: filepath.Join(t.TempDir(), "g.safetensors")},
		} {
			o := Options{Metric: PrunerZero(), Gradients: g}
			o.setDefaults()
			w, err := newWalk(ctx, m, c.ids, o)
			if err == nil {
				err = w.collectGradients(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}

			worst := 0.0
			for b := range m.Blocks() {
				for _, l := range m.Linears(b) {
					got, err := w.gradients.Of(l)
					if err != nil {
						t.Fatal(err)
					}

					for i, v := range floats(want, grads.Name(l)) {
						worst = max(worst, math.Abs(float64(got.Buf.F32()[i])-v)/v)
					}
				}
			}

			w.free()
			t.Logf("%d bytes: largest relative difference %.1e", g.Memory, worst)
			if worst > 2e-5 || worst == 0 {
				t.Errorf("%+v: gradients differ by up to %.2g", g, worst)
			}
		}
	})
}
