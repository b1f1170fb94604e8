package quantize

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// way is a way to round that has searches, factors or sweeps in it.
type way struct {
	name, scheme string
	change       func(o *Options)
	mixed        bool // of ways that are looked at by themselves: left out where each of these has its turn
}

var ways = []way{
	{"awq", "w4a16", func(o *Options) { o.Method = AWQ }, false},
	{"awq minmax", "w4a16_asym", func(o *Options) { o.Method, o.Range = AWQ, RangeMinMax }, true},
	{"awq+gptq", "w4a16", func(o *Options) { o.Method = AWQGPTQ }, false},
	{"hqq", "w4a16_asym", func(o *Options) { o.Method = HQQ }, false},
	{"clip", "w4a16", func(o *Options) { o.Range = RangeClip }, false},
	{"mse", "nvfp4a16", func(o *Options) { o.Range = RangeMSE }, false},
	{"imatrix_mse", "w4a16", func(o *Options) { o.Range = RangeImatrix }, false},
	{"gptq imatrix_mse", "w4a16_asym", func(o *Options) { o.Method, o.Range = GPTQ, RangeImatrix }, true},
	{"smooth", "w8a8", func(o *Options) { o.Smooth = 0.5 }, false},
	{"sparse", "w4a16", func(o *Options) { o.Method, o.Sparsity = GPTQ, 0.5 }, false},
	{"sparse awq+gptq", "w4a16", func(o *Options) { o.Method, o.Pattern = AWQGPTQ, "2:4" }, true},
	{"sparse rtn", "w8a16", func(o *Options) { o.Sparsity = 0.5 }, false},
}

// options are those of a way.
func (c way) options(t *testing.T) Options {
	t.Helper()
	o := options(t, c.scheme, RTN, filepath.Join(t.TempDir(), "out"))
	c.change(&o)
	return o
}

// few keeps the tests with all ways short.
func few(t *testing.T, m *lm.Model) corpus.Windows { return calibration(t, m, 1, 32) }

// altered is the tiny model with other values in a parameter, which lie in memory until the block is done.
func altered(t *testing.T, name string, change func(w []float32, cols int)) *lm.Model {
	t.Helper()
	m := open(t, nano, 2)
	p, err := m.MutableParam(name)
	if err != nil {
		t.Fatal(err)
	}
	raw := p.Buf.Bytes() // BF16
	w := make([]float32, len(raw)/2)
	for i := range w {
		w[i] = math.Float32frombits(uint32(raw[2*i])<<16 | uint32(raw[2*i+1])<<24)
	}
	change(w, p.Cols)
	for i, v := range w {
		bits := math.Float32bits(v)
		raw[2*i], raw[2*i+1] = byte(bits>>16), byte(bits>>24)
	}
	p.Buf.Changed()
	return m
}

// finite holds all that was written, and its logits, to be numbers.
func finite(t *testing.T, out string) {
	t.Helper()
	got := source(t, out)
	for _, name := range got.Names() {
		for i, v := range values(t, got, name) {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				t.Fatalf("%s, element %d: %g", name, i, v)
			}
		}
	}
	for i, v := range logits(t, open(t, out, 2)) {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			t.Fatalf("logit %d: %g", i, v)
		}
	}
}

// TestZeroGroups: weights that are all 0 where they share a scale, in some rows and in a whole matrix, stay 0, and take
// nothing from the rest.
func TestZeroGroups(t *testing.T) {
	const name = "model.layers.0.mlp.up_proj.weight"
	for _, c := range ways {
		if c.mixed {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			var zero []bool
			m := altered(t, name, func(w []float32, cols int) {
				for i := range w {
					if i/cols%3 == 0 && i%cols >= 32 && i%cols < 64 || i/cols == 7 {
						w[i] = 0
					}
					zero = append(zero, w[i] == 0)
				}
			})
			none, err := m.MutableParam("model.layers.0.self_attn.k_proj.weight")
			if err != nil {
				t.Fatal(err)
			}
			clear(none.Buf.Bytes())
			none.Buf.Changed()

			o := c.options(t)
			if _, err := Model(ctx, m, few(t, m), o); err != nil {
				t.Fatal(err)
			}
			finite(t, o.Out)
			got := source(t, o.Out)
			for _, v := range values(t, got, "model.layers.0.self_attn.k_proj.weight") {
				if v != 0 {
					t.Fatalf("a matrix of zeros became %g", v)
				}
			}

			// GPTQ moves weights that are 0, but for those of a row in which there is nothing to make up for; so do
			// HQQ's zero points between whole ones.
			up := values(t, got, name)
			for i, v := range up {
				row := i / (len(up) / 256)
				if zero[i] && v != 0 && (row == 7 || !o.sweeps() && o.Method != HQQ) {
					t.Fatalf("row %d: 0 became %g", row, v)
				}
			}
		})
	}
}

// TestNonFiniteWeights: a weight that is no number is refused by every way, with its tensor and place, whatever looks
// at it first, and nothing is left.
func TestNonFiniteWeights(t *testing.T) {
	for _, c := range ways {
		if c.mixed {
			continue
		}
		for name, at := range map[string][2]int{
			"model.layers.1.self_attn.q_proj.weight": {3, 5},
			"model.layers.1.mlp.down_proj.weight":    {95, 255},
		} {
			bad := math.NaN()
			if at[0] == 3 {
				bad = math.Inf(-1)
			}
			m := altered(t, name, func(w []float32, cols int) { w[at[0]*cols+at[1]] = float32(bad) })
			o := c.options(t)
			_, err := Model(ctx, m, few(t, m), o)
			want := fmt.Sprintf("tensor %q: element [%d, %d]: ", name, at[0], at[1])
			if !errors.Is(err, ErrNonFinite) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s of %g: %v", c.name, name, bad, err)
			}
			if entries, _ := os.ReadDir(filepath.Dir(o.Out)); len(entries) > 0 {
				t.Errorf("%s: it left %v", c.name, entries)
			}
		}
	}
}

// TestRaisedDamping: of a text that is too short for its Hessians these get more damping, which is said, and what comes
// out is numbers that err less in their outputs than rounding alone.
func TestRaisedDamping(t *testing.T) {
	for _, c := range ways {
		o := c.options(t)
		if !o.sweeps() || c.name == "sparse" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			m := open(t, nano, 2)
			o.Damping = 1e-18
			r, err := Model(ctx, m, calibration(t, m, 1, 24), o)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "which was raised") }) {
				t.Errorf("%q", r.Notes)
			}
			raised := 0
			for _, one := range r.Matrices {
				if one.Damping.Tries > 1 && one.Damping.Share > 1e-18 {
					raised++
				}
			}
			if raised == 0 || !o.prunes() && r.Total.OutputError > r.Total.Rounded {
				t.Errorf("%d raised; %g, and rounded alone %g", raised, r.Total.OutputError, r.Total.Rounded)
			}
			finite(t, o.Out)
		})
	}
}

// TestDeadInputs: inputs that are 0 for the whole text get no factors that are no numbers, and the model computes with
// what comes out.
func TestDeadInputs(t *testing.T) {
	for _, c := range ways {
		if o := c.options(t); c.mixed || !o.folds() && o.Range != RangeClip {
			continue // see TestDead
		}
		t.Run(c.name, func(t *testing.T) {
			m := altered(t, "model.layers.1.input_layernorm.weight", func(w []float32, _ int) { w[5], w[6] = 0, 0 })
			o := c.options(t)
			r, err := Model(ctx, m, few(t, m), o)
			if err != nil {
				t.Fatal(err)
			}
			finite(t, o.Out)

			said := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "were 0 for every") })
			if said != o.sweeps() {
				t.Errorf("%q", r.Notes)
			}
		})
	}
}

// TestUnreachedExperts: experts that the text does not come to are rounded by themselves, which is said where something
// is measured, and are what rtn makes of them where they get no factors and no range is searched for.
func TestUnreachedExperts(t *testing.T) {
	model := filepath.Join(families, "deepseek_v2")
	calib := corpus.Windows{IDs: [][]int32{{5, 9}}, SeqLen: 2, Hash: "two tokens", Source: "two tokens"}
	alone := options(t, "w4a16", RTN, filepath.Join(t.TempDir(), "out"))
	alone.Group = -1
	if _, err := Model(ctx, open(t, model, 2), corpus.Windows{}, alone); err != nil {
		t.Fatal(err)
	}
	want := source(t, alone.Out)

	for _, c := range ways {
		if c.mixed || c.scheme != "w4a16" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			o := c.options(t)
			o.Group = -1
			r, err := Model(ctx, open(t, model, 2), calib, o)
			if err != nil {
				t.Fatal(err)
			}
			finite(t, o.Out)

			got := source(t, o.Out)
			unreached := 0
			for _, one := range r.Matrices {
				if !one.Unreached {
					continue
				}
				unreached++
				if one.Expert < 0 || one.OutputError != nil {
					t.Errorf("%s is unreached: %+v", one.Name, one)
				}
				whole := !o.folds() && !o.prunes() && o.Range != RangeImatrix
				if whole && !slices.Equal(values(t, got, one.Name), values(t, want, one.Name)) {
					t.Errorf("%s is not what rounding makes of it", one.Name)
				}
			}
			if unreached == 0 || unreached != r.Total.Unreached || len(r.Notes) == 0 ||
				!slices.ContainsFunc(r.Notes, func(n string) bool {
					return strings.Contains(n, "no calibration token came to were rounded by themselves")
				}) {
				t.Errorf("%d unreached, %q", unreached, r.Notes)
			}
		})
	}
}

// TestUndivided: rows that the groups of a scheme do not divide are refused by every way before anything is written;
// blocks that reach over the edges of a matrix are held.
func TestUndivided(t *testing.T) {
	m := open(t, nano, 1)
	for _, c := range ways {
		o := c.options(t)
		if o.Scheme.Weights.Kind != Int || o.Scheme.Weights.Strategy != PerGroup {
			continue
		}
		o.Group = 64 // of 96 inputs
		_, err := Model(ctx, m, few(t, m), o)
		if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), "q_proj") {
			t.Errorf("%s: %v", c.name, err)
		}
		if entries, _ := os.ReadDir(filepath.Dir(o.Out)); len(entries) > 0 {
			t.Errorf("%s: it left %v", c.name, entries)
		}
	}

	for _, c := range ways {
		o := c.options(t)
		if c.mixed || c.scheme != "w4a16" {
			continue // one of each kind
		}
		o.Scheme, _ = SchemeByName("fp8_block")
		o.Group = 0
		r, err := Model(ctx, m, few(t, m), o)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		finite(t, o.Out)
		for _, one := range r.Matrices {
			if one.Error > 0.01 && !o.prunes() {
				t.Errorf("%s, %s: an error of %g", c.name, one.Name, one.Error)
			}
		}
	}
}
