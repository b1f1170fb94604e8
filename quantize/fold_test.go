package quantize

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// families are small checkpoints of many architectures.
const families = "../lm/testdata/families"

// TestFolds: factors of any size between the two sides of every fold of every architecture leave the logits what they
// are; and which folds an architecture has is what its structure says.
func TestFolds(t *testing.T) {
	entries, err := os.ReadDir(families)
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{nano}
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(families, e.Name()))
		}
	}

	found := map[string]string{}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := open(t, dir, 1)
			before := logits(t, m)
			w := &walk{
				m: m, dev: m.Device(), ops: m.Device().Ops(), host: true, threads: 1, scaling: newScaling(),
				rounds: map[string]bool{},
			}

			rng := rand.New(rand.NewPCG(1, 2))
			kinds := map[string]bool{}
			for l := range m.Blocks() {
				for _, f := range foldsOf(m, l) {
					kinds[string(f.readers[0].Role)] = true
					by := make([]float32, f.channels)
					for k := range by {
						by[k] = float32(math.Exp(2*rng.Float64() - 1))
					}
					if err := w.fold(w.scaling, f, by); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, role := range []string{
				"q", "qkv", "q_b", "kv_b", "o", "gate", "gate_up", "up", "down", "shared_down",
			} {
				if kinds[role] {
					found[filepath.Base(dir)] += " " + role
				}
			}

			for name, f := range w.scaling.matrices {
				stored, undo, err := m.WidenParam(name)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(undo)
				f.apply(stored, 1)
			}
			for name, v := range w.scaling.floats {
				stored, undo, err := m.WidenParam(name)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(undo)
				copy(stored.Buf.F32(), v.Buf.F32())
				stored.Buf.Changed()
			}

			after := logits(t, m)
			largest, off := 0.0, 0.0
			for i, v := range before {
				largest = max(largest, math.Abs(float64(v)))
				off = max(off, math.Abs(float64(v)-float64(after[i])))
			}
			// Biases and norms are rounded to the type of the files.
			if off > 2e-4*largest {
				t.Errorf("logits differ by %g of %g", off, largest)
			}
		})
	}

	for name, want := range map[string]string{
		"base": " q o gate down", "olmo2": " o down", "phi": " q o", "falcon": " qkv o up", "cohere": " q o down",
		"gpt_oss": " q o", "stablelm": " q o gate down", "phi4": " qkv o gate_up down",
		"deepseek_v2": " q kv_b gate down shared_down",
	} {
		if found[name] != want {
			t.Errorf("%s: folds before%s, want%s", name, found[name], want)
		}
	}
}

// logits are those of some tokens, or of any.
func logits(t *testing.T, m *lm.Model, ids ...[]int32) []float32 {
	t.Helper()
	if len(ids) == 0 {
		ids = [][]int32{make([]int32, 24)}
		for i := range ids[0] {
			ids[0][i] = int32((i*i + 3) % m.Config().Vocab)
		}
	}
	r, err := m.Forward(ctx, ids, lm.ForwardOptions{Logits: true, NoLoss: true})
	if err != nil {
		t.Fatal(err)
	}
	out, err := hostmat.F32(m.Device(), r.Logits)
	if err != nil {
		t.Fatal(err)
	}
	return out.Buf.F32()
}

// TestAWQ: outputs err less than by rounding alone, the bytes are the same for any number of threads, and a folder
// computes what the report says.
func TestAWQ(t *testing.T) {
	first := open(t, nano, 1)
	calib := calibration(t, first, 8, 64)
	ids := calibration(t, first, 12, 64).IDs[8:]
	dense := logits(t, first, ids...)
	roundedAlone := map[string]float64{} // by scheme: how far off logits are

	for _, c := range []struct{ scheme, method, way string }{
		{"w4a16", AWQ, ""},
		{"w4a16_asym", AWQ, RangeMinMax},
		{"gptq", AWQ, RangeMSE},
		{"w4a16", AWQGPTQ, ""},
		{"nvfp4a16", AWQ, ""},
		{"fp8_block", AWQ, ""},
		{"w4a16_asym", AWQGPTQ, RangeImatrix},
		{"w4a16", GPTQ, RangeClip},
		{"w4a16", RTN, RangeClip},
	} {
		t.Run(c.scheme+"/"+c.method+"/"+c.way, func(t *testing.T) {
			if _, done := roundedAlone[c.scheme]; !done {
				alone := options(t, c.scheme, RTN, filepath.Join(t.TempDir(), "out"))
				if _, err := Model(ctx, open(t, nano, 1), calib, alone); err != nil {
					t.Fatal(err)
				}
				roundedAlone[c.scheme] = distance(dense, logits(t, open(t, alone.Out, 1), ids...))
			}

			before := ""
			for _, threads := range []int{1, 3} {
				m := open(t, nano, threads)
				o := options(t, c.scheme, c.method, filepath.Join(t.TempDir(), "out"))
				o.Range = c.way
				o.HessianMemory = 300_000 // several passes
				r, err := Model(ctx, m, calib, o)
				if err != nil {
					t.Fatal(err)
				}
				if before != "" {
					sameFiles(t, before, o.Out)
				}
				before = o.Out
				for _, f := range r.Folds {
					if f.Scaled != (f.After < f.Before) || f.After > f.Before {
						t.Errorf("%+v", f)
					}
				}
				if o.balances() && len(r.Folds) != 16 {
					t.Errorf("%d folds", len(r.Folds))
				}
			}

			a := roundedAlone[c.scheme]
			b := distance(dense, logits(t, open(t, before, 1), ids...))
			t.Logf("%g of %g", b, a)
			if b > a*1.05 {
				t.Errorf("logits are off by %g, rounded alone %g", b, a)
			}
		})
	}
}

// distance is the relative squared distance.
func distance(a, b []float32) float64 {
	lost, all := 0.0, 0.0
	for i, v := range a {
		d := float64(v) - float64(b[i])
		lost += d * d
		all += float64(v) * float64(v)
	}
	return lost / all
}

// TestIgnoredInFold: a matrix that stays a float gets its factors all the same, as do norms, and the model computes
// what it did.
func TestIgnoredInFold(t *testing.T) {
	m := open(t, nano, 2)
	o := options(t, "w8a16", AWQ, filepath.Join(t.TempDir(), "out"))
	o.Ignore = []string{"v_proj", "layers.1.mlp.down_proj", "gate_proj"}
	r, err := Model(ctx, m, calibration(t, m, 8, 64), o)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	dense, got := source(t, nano), source(t, o.Out)
	for _, name := range []string{"layers.1.self_attn.v_proj", "layers.1.mlp.gate_proj", "layers.2.input_layernorm"} {
		a, b := values(t, dense, "model."+name+".weight"), values(t, got, "model."+name+".weight")
		if distance(a, b) > 0 {
			changed++
		}
	}
	if changed == 0 {
		t.Errorf("nothing changed: %+v", r.Folds)
	}
	if d := distance(logits(t, m), logits(t, open(t, o.Out, 2))); d > 1e-3 {
		t.Errorf("logits are off by %g", d)
	}
}

// TestResumeFolds: a run that was interrupted goes on to the same bytes, with factors of either kind, and reports of
// the blocks that it takes up what was reported of them.
func TestResumeFolds(t *testing.T) {
	for _, c := range []struct {
		scheme, method string
		smooth         float64
	}{{"w4a16", AWQ, 0}, {"w4a16", AWQGPTQ, 0}, {"w8a8", GPTQ, 0.5}} {
		dir := t.TempDir()
		m := open(t, nano, 2)
		calib := calibration(t, m, 4, 32)
		whole := options(t, c.scheme, c.method, filepath.Join(dir, "whole"))
		whole.Smooth = c.smooth
		want, err := Model(ctx, m, calib, whole)
		if err != nil {
			t.Fatal(err)
		}

		for _, block := range []int{1, 3} {
			o := whole
			o.Out = filepath.Join(dir, fmt.Sprint(block))
			interrupt(t, calib, o, block)
			o.Resume = true
			for again := range 2 {
				r, err := Model(ctx, open(t, nano, 1), calib, o)
				if err != nil {
					t.Fatalf("block %d: %v", block, err)
				}
				sameFiles(t, whole.Out, o.Out)
				if again == 0 {
					reportsAlike(t, r, want, 7*block)
				}
			}
		}
	}
}

// reportsAlike holds what a continued run, on another number of threads, says of matrices and folds against what a run
// in one go says.
func reportsAlike(t *testing.T, r, want *Report, restored int) {
	t.Helper()
	if r.Total.Restored < restored || len(r.Folds) != len(want.Folds) || len(r.Matrices) != len(want.Matrices) {
		t.Fatalf("%d matrices, of which %d restored, and %d folds", len(r.Matrices), r.Total.Restored, len(r.Folds))
	}
	for i, m := range r.Matrices {
		m.Restored = false
		if a, b := fmt.Sprintf("%+v", plain(m)), fmt.Sprintf("%+v", plain(want.Matrices[i])); a != b || m.Error == 0 {
			t.Errorf("%s, want %s", a, b)
		}
	}
	for i, f := range r.Folds {
		if a, b := fmt.Sprintf("%+v", f), fmt.Sprintf("%+v", want.Folds[i]); a != b {
			t.Errorf("%s, want %s", a, b)
		}
	}
}

// plain is a matrix' report with values in place of pointers.
func plain(m Matrix) []any {
	list := []any{m.OutputError != nil, m.Damping != nil}
	if m.OutputError != nil {
		list = append(list, *m.OutputError, *m.Rounded, *m.Damping)
	}
	m.OutputError = nil
	m.Rounded = nil
	m.Damping = nil
	return append(list, m)
}

// TestSmooth: activations behind norms lose their extremes, and the model computes what it did.
func TestSmooth(t *testing.T) {
	m := open(t, nano, 2)
	calib := calibration(t, m, 8, 64)
	o := options(t, "w8a8", RTN, filepath.Join(t.TempDir(), "out"))
	o.Smooth = 0.5
	r, err := Model(ctx, m, calib, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Folds) != 8 {
		t.Errorf("%d folds", len(r.Folds))
	}

	smoothed := open(t, o.Out, 2)
	if d := distance(logits(t, m), logits(t, smoothed)); d > 1e-3 {
		t.Errorf("logits are off by %g", d)
	}
	// With an exponent of a half both sides of a channel have the same extent: that of its inputs, and twice the
	// largest of its weights, but for a step of these.
	lins := smoothed.Linears(0)[:3]
	low, high := make([]float32, lins[0].In), make([]float32, lins[0].In)
	hooks := &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		for i := 0; l.Name == lins[0].Name && i < x.Rows; i++ {
			for j, v := range x.RowF32(i) {
				low[j], high[j] = min(low[j], v), max(high[j], v)
			}
		}
	}}
	if _, err := smoothed.Forward(ctx, calib.IDs, lm.ForwardOptions{Hooks: hooks}); err != nil {
		t.Fatal(err)
	}
	largest := make([]float32, lins[0].In)
	for _, lin := range lins {
		for i, v := range values(t, source(t, o.Out), lin.Name) {
			largest[i%lin.In] = max(largest[i%lin.In], v, -v)
		}
	}
	for j, v := range largest {
		if extent := high[j] - low[j]; math.Abs(float64(extent-2*v)) > 0.03*float64(extent) {
			t.Errorf("input %d: an extent of %g, weights up to %g", j, extent, v)
		}
	}
}

// TestNoFold: a structure without a place for factors is refused; matrices without one are named.
func TestNoFold(t *testing.T) {
	m := open(t, filepath.Join(families, "olmo2"), 1)
	o := options(t, "w8a8", RTN, filepath.Join(t.TempDir(), "out"))
	o.Smooth = 0.5
	calib := calibration(t, m, 0, 0)
	calib.IDs = [][]int32{{1, 2, 3, 4, 5, 6, 7, 8}}
	if _, err := Model(ctx, m, calib, o); err == nil || !strings.Contains(err.Error(), "olmo2 has no place") {
		t.Errorf("%v", err)
	}

	o.Smooth = 0
	o.Method = AWQ
	r, err := Model(ctx, m, calib, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Notes) == 0 || !strings.HasSuffix(r.Notes[0], "take these out: q, k, v, gate, up") {
		t.Errorf("%q", r.Notes)
	}
}
