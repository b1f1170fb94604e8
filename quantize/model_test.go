package quantize

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// bound is the largest error of a weight, over the largest magnitude that shares its scale: half a step, and what the
// type of the scales, eight bits of it, takes off the range. Floats have larger steps at the top of their range.
var bound = map[string]float64{
	"w4a16": 0.5/7.5 + 0.01, "w4a16_asym": 0.5/7.5 + 0.02, "w8a16": 0.5/127.5 + 0.01, "w8a8": 0.5/127.5 + 0.01,
	"gptq": 0.5/7.5 + 0.01, "fp8_dynamic": 16.0/448 + 0.01, "fp8_block": 16.0/448 + 0.01, "nvfp4a16": 1.0/6 + 0.07,
	"mxfp4a16": 0.3,
}

// TestSchemes: every scheme gives a folder that the readers of quantised models take, whose values are near the model's
// by what the numbers allow, with everything else as it was; in one file or in several.
func TestSchemes(t *testing.T) {
	dense, err := weights.Open(ctx, nano)
	if err != nil {
		t.Fatal(err)
	}
	defer dense.Close()

	for i, s := range schemes {
		t.Run(s.Name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			m := open(t, nano, 2)
			o := options(t, s.Name, RTN, out)
			o.MaxShardSize = int64(i%2) * 200_000
			r, err := Model(ctx, m, calibration(t, m, 0, 0), o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Total.Matrices != 28 || len(r.Matrices) != 28 {
				t.Errorf("%d matrices, want 28", r.Total.Matrices)
			}

			got, err := weights.Open(ctx, out)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			if !slices.Equal(slices.Sorted(slices.Values(got.Names())), slices.Sorted(slices.Values(dense.Names()))) {
				t.Errorf("tensors %v", got.Names())
			}

			quantised := map[string]bool{}
			for _, one := range r.Matrices {
				quantised[one.Name] = true
			}
			for _, name := range dense.Names() {
				compare(t, dense, got, name, quantised[name], s)
			}
		})
	}
}

// compare holds a tensor of the output against the model's.
func compare(t *testing.T, dense, got *weights.Source, name string, quantised bool, s Scheme) {
	t.Helper()
	a, b := values(t, dense, name), values(t, got, name)
	info, _ := dense.Info(name)
	cols := int(info.Shape[len(info.Shape)-1])
	whole := largestOf(a)
	for i := 0; i < len(a); i += cols {
		largest := whole
		if s.Weights.Strategy != PerBlock && s.Weights.Strategy != PerTensorGroup {
			largest = largestOf(a[i : i+cols])
		}
		for j := i; j < i+cols; j++ {
			d := math.Abs(float64(a[j] - b[j]))
			if !quantised && d != 0 || d > bound[s.Name]*float64(largest) {
				t.Fatalf("%s, element %d: %g became %g", name, j, a[j], b[j])
			}
		}
	}
}

// largestOf is the largest of the numbers, by their absolute values.
func largestOf(list []float32) float32 {
	largest := float32(0)
	for _, v := range list {
		largest = max(largest, v, -v)
	}
	return largest
}

func values(t *testing.T, src *weights.Source, name string) []float32 {
	t.Helper()
	info, _ := src.Info(name)
	data, err := src.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, info.Elements())
	if err := dtype.Decode(out, data, info.DType); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPartsOracle: the tensors of a matrix are those that compressed-tensors' own compressor makes of it, byte for
// byte.
func TestPartsOracle(t *testing.T) {
	f, err := safetensors.Open("../internal/quantized/testdata/numbers.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	for name, c := range map[string]struct {
		scheme string
		group  int
	}{
		"int4": {"w4a16", 32}, "int4_asym": {"w4a16_asym", 32}, "int8": {"w8a16", 0}, "int8_bytes": {"w8a8", 0},
		"fp8": {"fp8_dynamic", 0}, "nvfp4": {"nvfp4a16", 0}, "mxfp4": {"mxfp4a16", 0},
	} {
		for _, stored := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16} {
			for _, matrix := range []string{"normal", "hard", "tiny"} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, stored, matrix), func(t *testing.T) {
					s, err := SchemeByName(c.scheme)
					if err == nil {
						s, err = s.withGroup(c.group)
					}
					if err != nil {
						t.Fatal(err)
					}
					partsEqual(t, f, s, stored, fmt.Sprintf("%s.%s.", stored, matrix), name)
				})
			}
		}
	}
}

func partsEqual(t *testing.T, f *safetensors.File, s Scheme, stored safetensors.DType, prefix, name string) {
	info, _ := f.Info(prefix + "w")
	data, err := f.Bytes(prefix + "w")
	if err != nil {
		t.Fatal(err)
	}
	rows, cols := int(info.Shape[0]), int(info.Shape[1])
	x := make([]float32, rows*cols)
	if err := dtype.Decode(x, data, stored); err != nil {
		t.Fatal(err)
	}

	g, err := newGrid(s.Weights, rows, cols, stored)
	if err != nil {
		t.Fatal(err)
	}
	g.code = make([]byte, rows*cols)
	g.roundQuotients()
	w := kernels.MatOf(kernels.WrapF32(x), rows, cols)
	g.fit(w, 0, 1)
	g.roundAll(w, 1)

	parts, err := s.parts(prefix+name+".weight", g)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		// The oracle has the whole name where the module's would be, and the tensor behind a dot.
		want, err := f.Bytes(p.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.fill(g); string(got) != string(want) {
			t.Errorf("%s: %x, want %x", p.Name, got[:min(32, len(got))], want[:min(32, len(want))])
		}
		if other, _ := f.Info(p.Name); other.DType != p.DType || !slices.Equal(other.Shape, p.Shape) {
			t.Errorf("%s is %s %v, want %s %v", p.Name, p.DType, p.Shape, other.DType, other.Shape)
		}
	}
}

// TestGPTQ: the outputs of every matrix err less than by rounding alone; the bytes are the same for any number of
// threads; what is decoded is what the model computed with.
func TestGPTQ(t *testing.T) {
	for _, c := range []struct {
		scheme, order   string
		late, refreshed bool
	}{
		{scheme: "w4a16"},
		{scheme: "w4a16_asym", order: OrderGiven, late: true},
		{scheme: "gptq", order: OrderGiven, refreshed: true},
		{scheme: "nvfp4a16"},
		{scheme: "mxfp4a16", order: OrderGiven, late: true},
		{scheme: "w8a8"},
		{scheme: "fp8_block", order: OrderGiven},
	} {
		t.Run(c.scheme, func(t *testing.T) {
			var first map[string]string
			for _, threads := range []int{1, 3} {
				out := filepath.Join(t.TempDir(), "out")
				m := open(t, nano, threads)
				o := options(t, c.scheme, GPTQ, out)
				o.Order = c.order
				o.FitLate = c.late
				o.TrueSequential = c.refreshed
				r, err := Model(ctx, m, calibration(t, m, 8, 64), o)
				if err != nil {
					t.Fatal(err)
				}

				better := 0
				for _, one := range r.Matrices {
					if *one.OutputError < *one.Rounded {
						better++
					}
				}
				if better < len(r.Matrices)*9/10 || r.Total.OutputError > 0.8*r.Total.Rounded {
					t.Errorf("%d of %d matrices err less; %g, and rounded alone %g", better, len(r.Matrices),
						r.Total.OutputError, r.Total.Rounded)
				}

				got := files(t, out)
				if first == nil {
					first = got
				}
				for name, data := range first {
					if got[name] != data {
						t.Errorf("%d threads: other bytes in %s", threads, name)
					}
				}
			}
		})
	}
}

// TestResume: a run that is interrupted after any block is continued to the same bytes, by rounding and by GPTQ; a
// finished output is described again.
func TestResume(t *testing.T) {
	for _, method := range []string{RTN, GPTQ} {
		dir := t.TempDir()
		m := open(t, nano, 2)
		calib := calibration(t, m, 4, 32)
		whole := options(t, "w4a16", method, filepath.Join(dir, "whole"))
		if _, err := Model(ctx, m, calib, whole); err != nil {
			t.Fatal(err)
		}
		want := files(t, whole.Out)

		for block := range 4 {
			o := options(t, "w4a16", method, filepath.Join(dir, fmt.Sprint(block)))
			interrupt(t, calib, o, block)
			o.Resume = true
			for again := range 2 {
				r, err := Model(ctx, open(t, nano, 1), calib, o)
				if err != nil {
					t.Fatalf("block %d: %v", block, err)
				}
				if n := r.Total.Restored; n < 7*block || again == 1 && n != 28 {
					t.Errorf("block %d: %d matrices restored", block, n)
				}
				got := files(t, o.Out)
				if len(got) != len(want) {
					t.Errorf("block %d: %d files, want %d", block, len(got), len(want))
				}
				for name, data := range want {
					if got[name] != data {
						t.Errorf("%s, block %d: other bytes in %s", method, block, name)
					}
				}
			}
		}
	}
}

// TestResumeReadAs: the same where readers have the values in another type than the weights had: GPTQ's in F16,
// those of NVFP4 in BF16.
func TestResumeReadAs(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	deep(t, source, 3)
	var calib corpus.Windows
	for i := range int32(4) {
		ids := make([]int32, 24)
		for k := range ids {
			ids[k] = (7*i + 11*int32(k)) % 61
		}
		calib.IDs = append(calib.IDs, ids)
	}

	for _, scheme := range []string{"gptq", "nvfp4a16"} {
		whole := options(t, scheme, GPTQ, filepath.Join(dir, scheme))
		if _, err := Model(ctx, open(t, source, 2), calib, whole); err != nil {
			t.Fatal(err)
		}

		o := options(t, scheme, GPTQ, filepath.Join(dir, scheme+"-2"))
		stop, cancel := context.WithCancel(ctx)
		o.Matrix = func(one Matrix) {
			if one.Block == 1 {
				cancel()
			}
		}
		if _, err := Model(stop, open(t, source, 2), calib, o); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		o.Matrix, o.Resume = nil, true
		r, err := Model(ctx, open(t, source, 2), calib, o)
		if err != nil {
			t.Fatal(err)
		}
		if n := r.Total.Restored; n == 0 || n == r.Total.Matrices {
			t.Errorf("%s: %d matrices restored", scheme, n)
		}
		if !maps.Equal(files(t, o.Out), files(t, whole.Out)) {
			t.Errorf("%s: other bytes", scheme)
		}
	}
}

// interrupt runs a job up to a block.
func interrupt(t *testing.T, calib corpus.Windows, o Options, block int) {
	t.Helper()
	stop, cancel := context.WithCancel(ctx)
	o.Matrix = func(one Matrix) {
		if one.Block == block && one.Role == "o" {
			cancel()
		}
	}
	if _, err := Model(stop, open(t, nano, 2), calib, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("block %d: %v", block, err)
	}
	if _, err := os.Stat(o.Out); err == nil {
		t.Errorf("block %d: there is an output", block)
	}
}

// TestOtherJob: an unfinished output of other options is not continued, and stays.
func TestOtherJob(t *testing.T) {
	m := open(t, nano, 2)
	o := options(t, "w8a16", RTN, filepath.Join(t.TempDir(), "out"))
	stop, cancel := context.WithCancel(ctx)
	o.Matrix = func(Matrix) { cancel() }
	if _, err := Model(stop, m, calibration(t, m, 0, 0), o); err == nil {
		t.Fatal("it was not interrupted")
	}

	other := options(t, "w4a16", RTN, o.Out)
	other.Resume = true
	if _, err := Model(ctx, m, calibration(t, m, 0, 0), other); !errors.Is(err, stage.ErrOtherJob) {
		t.Errorf("%v", err)
	}

	o.Matrix = nil
	o.Resume = true
	if r, err := Model(ctx, m, calibration(t, m, 0, 0), o); err != nil || r.Total.Restored == 0 {
		t.Errorf("%v", err)
	}
}

// TestIgnore: what is named stays as it is and is named in the configuration; a pattern that names nothing is an error.
func TestIgnore(t *testing.T) {
	m := open(t, nano, 1)
	o := options(t, "w8a16", RTN, filepath.Join(t.TempDir(), "out"))
	o.Ignore = []string{"down_proj", "model.layers.0.*.q_proj"}
	r, err := Model(ctx, m, calibration(t, m, 0, 0), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Total.Matrices != 23 || r.Total.Left != 5 {
		t.Errorf("%d matrices, %d left", r.Total.Matrices, r.Total.Left)
	}

	config := files(t, o.Out)["config.json"]
	for _, name := range []string{"lm_head", "model.layers.0.self_attn.q_proj", "model.layers.3.mlp.down_proj"} {
		if !strings.Contains(config, `"`+name+`"`) {
			t.Errorf("%s is not ignored in config.json", name)
		}
	}
	if strings.Contains(config, "up_proj") {
		t.Error("up_proj is ignored")
	}

	o.Out += "2"
	o.Ignore = []string{"nothing_like_it"}
	if _, err := Model(ctx, m, calibration(t, m, 0, 0), o); !errors.Is(err, ErrOptions) {
		t.Errorf("%v", err)
	}
}

// TestComputes: the folder computes what its decoded values compute: the model in memory after the run is the dense one
// again, and the loaded folder's outputs are near it.
func TestComputes(t *testing.T) {
	m := open(t, nano, 2)
	w := calibration(t, m, 2, 64)
	before := losses(t, m, w.IDs)
	o := options(t, "w8a16", GPTQ, filepath.Join(t.TempDir(), "out"))
	if _, err := Model(ctx, m, w, o); err != nil {
		t.Fatal(err)
	}
	if again := losses(t, m, w.IDs); again != before {
		t.Errorf("the model's loss was %g and is %g", before, again)
	}
	if got := losses(t, open(t, o.Out, 2), w.IDs); math.Abs(got-before) > 0.01*before {
		t.Errorf("a loss of %g, of the dense model %g", got, before)
	}
}

func losses(t *testing.T, m *lm.Model, ids [][]int32) float64 {
	t.Helper()
	r, err := m.Forward(ctx, ids, lm.ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Loss
}

// TestBadOptions: each is refused before anything is written.
func TestBadOptions(t *testing.T) {
	m := open(t, nano, 1)
	some := calibration(t, m, 2, 16)
	for name, c := range map[string]struct {
		change func(o *Options)
		want   error
	}{
		"unknown scheme":     {func(o *Options) { o.Scheme.Name = "w3a16" }, ErrScheme},
		"a scheme of files":  {func(o *Options) { o.Scheme = Scheme{Name: "q4_k_m", Layout: ggufLayout} }, ErrOptions},
		"unknown method":     {func(o *Options) { o.Method = "awq2" }, ErrOptions},
		"group of 24":        {func(o *Options) { o.Group = 24 }, ErrOptions},
		"group that misfits": {func(o *Options) { o.Group = 64 }, ErrLayout},
		"order without gptq": {func(o *Options) { o.Order = OrderWeight }, ErrOptions},
		"late with order": {func(o *Options) {
			o.Method = GPTQ
			o.FitLate = true
			o.Order = OrderWeight
		}, ErrOptions},
		"damping of 2":   {func(o *Options) { o.Method = GPTQ; o.Damping = 2 }, ErrOptions},
		"damping NaN":    {func(o *Options) { o.Method = GPTQ; o.Damping = math.NaN() }, ErrOptions},
		"no calibration": {func(o *Options) { o.Method = GPTQ; some.IDs = nil }, ErrNoCalibration},
		"bad pattern":    {func(o *Options) { o.Ignore = []string{"[a"} }, ErrOptions},
		"group of fp8": {func(o *Options) {
			o.Scheme, _ = SchemeByName("fp8_dynamic")
			o.Group = 32
		}, ErrOptions},
		"late scales by rows": {func(o *Options) {
			o.Scheme, _ = SchemeByName("fp8_block")
			o.Group = 0
			o.Method = GPTQ
			o.FitLate = true
		}, ErrOptions},
	} {
		some = calibration(t, m, 2, 16)
		o := options(t, "w4a16", RTN, filepath.Join(t.TempDir(), "out"))
		c.change(&o)
		if _, err := Model(ctx, m, some, o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(filepath.Dir(o.Out)); len(entries) > 0 {
			t.Errorf("%s: it left %v", name, entries)
		}
	}
}

// TestFusedExperts: experts that a family has in one tensor of a block are refused, and where they are left they stay
// in that tensor.
func TestFusedExperts(t *testing.T) {
	const model = "../lm/testdata/families/granitemoe"
	m := open(t, model, 1)
	o := options(t, "w8a16", RTN, filepath.Join(t.TempDir(), "out"))
	if _, err := Model(ctx, m, calibration(t, m, 0, 0), o); !errors.Is(err, ErrLayout) {
		t.Fatalf("%v", err)
	}

	o.Ignore = []string{"experts"}
	if _, err := Model(ctx, m, calibration(t, m, 0, 0), o); err != nil {
		t.Fatal(err)
	}
	dense, err := weights.Open(ctx, model)
	if err != nil {
		t.Fatal(err)
	}
	defer dense.Close()
	got, err := weights.Open(ctx, o.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	a, b := got.Names(), dense.Names()
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		t.Errorf("tensors %v, want %v", a, b)
	}
}

// TestExpertsNoted: where transformers does not restore the experts of a mixture, a line says so.
func TestExpertsNoted(t *testing.T) {
	for _, c := range []struct {
		model, scheme string
		want          bool
	}{
		{"deepseek_v2", "w8a8", true},
		{"deepseek_v2", "w8a16", false},
		{"deepseek_v2", "fp8_dynamic", false},
		{"phi", "w8a8", false},
	} {
		m := open(t, filepath.Join(families, c.model), 1)
		r, err := Model(ctx, m, corpus.Windows{}, options(t, c.scheme, RTN, filepath.Join(t.TempDir(), "out")))
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "experts of mixtures") })
		if said != c.want {
			t.Errorf("%s, %s: %q", c.model, c.scheme, r.Notes)
		}
	}
}

// TestOwnClass: of a model whose folders transformers does not open, that is said.
func TestOwnClass(t *testing.T) {
	for name, want := range map[string]bool{"falcon": true, "phi": false} {
		m := open(t, "../lm/testdata/families/"+name, 1)
		r, err := Model(ctx, m, corpus.Windows{}, options(t, "w8a16", RTN, filepath.Join(t.TempDir(), "out")))
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "FalconLinear") })
		if said != want {
			t.Errorf("%s: %q", name, r.Notes)
		}
	}
}
