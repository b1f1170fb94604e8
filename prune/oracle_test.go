package prune

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
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
	Zeros         map[string]int64 `json:"zeros"`
	WindowNLL     []float64        `json:"window_nll_f64"`
	Outliers      []float64        `json:"outlier_percent"`
	LayerSparsity []float64        `json:"layer_sparsity"`
	M             float64          `json:"M"`
	Lambda        float64          `json:"lam"`
}

// oracleCase is one model with its runs.
type oracleCase struct {
	dir, model string
	runs       []oracleRun
	ids        corpus.Windows
	eval       corpus.Windows
	dense      oracleResult
}

// oracleMethods are the runs that this package can repeat, by the name of the method.
var oracleMethods = map[string]Options{
	"magnitude": {Metric: Magnitude()},
	"wanda":     {Metric: Wanda()},
	"owl_wanda": {Metric: Wanda(), Allocation: Allocation{Name: OWL}},
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
		filepath.Join("..", "..", "shared", "data", "models", name), filepath.Join("..", "..", "shared", "data", name, "base"),
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
		if r.options, known = oracleMethods[method]; !known {
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
		if r.tensors, err = safetensors.Open(file); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.tensors.Close() })
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

// compareBits counts where a mask in stored layout differs from the reference outside the elements where either is right.
func compareBits(r *oracleRun, l lm.Linear, mask []byte) (differ int) {
	want, near := r.bits(l, ".mask"), r.bits(l, ".near")
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

// Masks chosen from the reference's own statistics are the reference's masks.
func TestSelectionOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		for name, dev := range devices(t) {
			m, err := lm.Load(ctx, c.model, dev, lm.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			for _, r := range c.runs {
				for l := range m.Blocks() {
					for _, lin := range m.Linears(l) {
						if n := compareBits(&r, lin, selectFrom(t, m, &r, lin)); n > 0 {
							t.Errorf("%s on %s: %s: %d elements differ", r.name, name, lin.Name, n)
						}
					}
				}
			}
		}
	})
}

// selectFrom chooses a mask, in stored layout, from the statistics of the reference.
func selectFrom(t *testing.T, m *lm.Model, r *oracleRun, l lm.Linear) []byte {
	t.Helper()
	o := r.options
	o.setDefaults()
	w := &walk{m: m, dev: m.Device(), ops: m.Device().Ops(), o: o, report: &Report{}}
	for b := range m.Blocks() {
		target := o.Sparsity
		if r.result.LayerSparsity != nil && !o.Pattern.Structured() {
			target = r.result.LayerSparsity[b]
		}
		w.report.Blocks = append(w.report.Blocks, Block{Target: target})
	}
	stored, err := m.Param(l.Name)
	if err != nil {
		t.Fatal(err)
	}
	in, release, err := w.inputs(l, stored, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	in.SumSquares = floats(r.tensors, strings.TrimSuffix(l.Name, ".weight")+".X")
	if o.Metric.Needs != 0 && in.SumSquares == nil {
		t.Fatalf("%s: no statistics of %s", r.name, l.Name)
	}
	keep, err := w.choose(l, in)
	if err == nil && l.Transposed {
		keep, err = transposed(w.dev, keep)
	}
	if err != nil {
		t.Fatal(err)
	}
	return keep.Buf.Bytes()[:keep.Len()]
}

// End to end: masks, statistics, zero counts, OWL's ratios and the losses of the pruned model. Tolerances: statistics 2e-6
// relative and losses 1e-5 are what single precision leaves between two orders of summation; masks are exact.
func TestModelOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		for _, r := range c.runs {
			t.Run(r.name, func(t *testing.T) { c.repeat(t, &r) })
		}
	})
}

func (c *oracleCase) repeat(t *testing.T, r *oracleRun) {
	dev, err := device.Open("cpu", device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := lm.Load(ctx, c.model, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	o := r.options
	masks, worst := map[string][]byte{}, 0.0
	o.Events.Mask = func(name string, keep kernels.Mat) {
		masks[name] = append([]byte(nil), keep.Buf.Bytes()[keep.Off:keep.Off+keep.Len()]...)
	}
	score := o.Metric.Score
	stage := Allocate
	o.Events.Step = func(s Step) { stage = s.Stage }
	o.Metric.Score = func(in Inputs) (kernels.Score, error) {
		want := floats(r.tensors, strings.TrimSuffix(in.Name, ".weight")+".X")
		for j := range want {
			if stage != Allocate && in.SumSquares != nil {
				worst = max(worst, math.Abs(in.SumSquares[j]-want[j])/want[j])
			}
		}
		return score(in)
	}
	report, err := Model(ctx, m, c.ids, o)
	if err != nil {
		t.Fatal(err)
	}
	if worst > 2e-6 {
		t.Errorf("statistics differ by up to %.2g", worst)
	}
	c.compareMasks(t, m, r, masks)
	c.compareReport(t, r, report)
	loss, far := c.losses(t, m, r.result.WindowNLL)
	if far > 1e-5 {
		t.Errorf("window losses differ by up to %.2g", far)
	}
	t.Logf("sparsity %.4f, loss %.6f (dense %.6f), largest differences: statistics %.1e, loss %.1e",
		report.Total.Sparsity, loss, mean(c.dense.WindowNLL), worst, far)
}

func (c *oracleCase) compareMasks(t *testing.T, m *lm.Model, r *oracleRun, masks map[string][]byte) {
	t.Helper()
	for l := range m.Blocks() {
		for _, lin := range m.Linears(l) {
			if n := compareBits(r, lin, masks[lin.Name]); n > 0 {
				t.Errorf("%s: %d elements of the mask differ", lin.Name, n)
			}
		}
	}
}

func (c *oracleCase) compareReport(t *testing.T, r *oracleRun, report *Report) {
	t.Helper()
	for _, x := range report.Tensors {
		if want := r.result.Zeros[strings.TrimSuffix(x.Name, ".weight")]; x.Zeros != want {
			t.Errorf("%s: %d zeros, want %d", x.Name, x.Zeros, want)
		}
	}
	for l, want := range r.result.Outliers {
		if b := report.Blocks[l]; !r.options.Pattern.Structured() {
			// One score in a hundred thousand may fall on the other side of the threshold.
			if math.Abs(b.Outliers-want) > 1e-3 || math.Abs(b.Target-r.result.LayerSparsity[l]) > 1e-6 {
				t.Errorf("block %d: %.6f %% outliers, sparsity %.6f; want %.6f, %.6f", l, b.Outliers, b.Target, want, r.result.LayerSparsity[l])
			}
		}
	}
}

// losses gives the mean over windows and the largest difference from the reference.
func (c *oracleCase) losses(t *testing.T, m *lm.Model, want []float64) (loss, far float64) {
	t.Helper()
	r, err := m.Forward(ctx, c.eval.IDs, lm.ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, window := range r.LossPerToken {
		far = max(far, math.Abs(mean(window)-want[i]))
		loss += mean(window) / float64(len(want))
	}
	return loss, far
}

func mean(v []float64) (sum float64) {
	for _, x := range v {
		sum += x / float64(len(v))
	}
	return sum
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
				if n++; math.Abs(in.SumSquares[j]-x) > 2e-6*x {
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

// The published selection on a matrix of many ties: rows and whole matrices agree, N:M in the values of what goes.
func TestTiesOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, c *oracleCase) {
		f, err := safetensors.Open(filepath.Join(c.dir, "ties.safetensors"))
		if err != nil {
			t.Skip(err)
		}
		defer f.Close()
		info, _ := f.Info("score")
		rows, cols := int(info.Shape[0]), int(info.Shape[1])
		score := make([]float32, 0, rows*cols)
		for _, v := range floats(f, "score") {
			score = append(score, float32(v))
		}
		for _, name := range f.Names() {
			s, exact, ok := tieSelection(name)
			if !ok {
				continue
			}
			want, err := f.Bytes(name)
			if err != nil {
				t.Fatal(err)
			}
			for backend, dev := range devices(t) {
				mask := strings.ReplaceAll(maskString(t, dev, s, kernels.Score{X: kernels.MatOf(kernels.WrapF32(score), rows, cols), Raw: true}), " ", "")
				if err := compareTies(score, mask, want, max(s.pattern.M, 1), exact); err != nil {
					t.Errorf("%s on %s: %v", name, backend, err)
				}
			}
		}
	})
}

// tieSelection reads what a mask was made by: keep.rows_u50, keep.matrix_u50, keep.nm24_topk.
func tieSelection(name string) (s selection, exact, ok bool) {
	p := regexp.MustCompile(`^keep\.(rows|matrix|nm)(?:_u(\d+)|(\d)(\d)_topk)$`).FindStringSubmatch(name)
	if p == nil {
		return s, false, false
	}
	percent, _ := strconv.Atoi(p[2])
	n, _ := strconv.Atoi(p[3])
	m, _ := strconv.Atoi(p[4])
	s = selection{group: Row, sparsity: float64(percent) / 100, pattern: Pattern{n, m}}
	if p[1] == "matrix" {
		s.group = Layer
	}
	return s, p[1] != "nm", true
}

// compareTies wants equal masks, or within each group of m equal multisets of what goes.
func compareTies(score []float32, mask string, want []byte, m int, exact bool) error {
	for at := 0; at < len(score); at += m {
		var a, b []float32
		for i := at; i < at+m; i++ {
			if exact && mask[i]-'0' != want[i] {
				return fmt.Errorf("element %d differs", i)
			}
			if mask[i] == '0' {
				a = append(a, score[i])
			}
			if want[i] == 0 {
				b = append(b, score[i])
			}
		}
		slices.Sort(a)
		slices.Sort(b)
		if !slices.Equal(a, b) {
			return fmt.Errorf("group at %d: %v go, want %v", at, a, b)
		}
	}
	return nil
}
