package prune

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// Formulas that cannot rank weights are refused by name, before a model is opened or when scores show it.
func TestFormulasRefused(t *testing.T) {
	deep := strings.Repeat("neg(", 100) + "W" + strings.Repeat(")", 100)
	for _, c := range []struct {
		formula string
		want    error
	}{
		{"W * foo", gp.ErrUnknown},
		{"W * (X", gp.ErrSyntax},
		{"G * 2", gp.ErrSyntax},
		{"G + X", gp.ErrNoWeight},
		{"sqrt(X)", gp.ErrShape},
		{"Wc1 * X", gp.ErrShape},
		{deep, gp.ErrTooLarge},
		{strings.Repeat("W+", 2000) + "W", gp.ErrTooLarge},
	} {
		if _, err := MetricByName(FormulaPrefix + c.formula); !errors.Is(err, c.want) {
			t.Errorf("%.40s: %v; want %v", c.formula, err, c.want)
		}
	}

	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"nested.json": {
			strings.Repeat(`{"data":"neg","left":`, 5000) + `{"data":"W"}` + strings.Repeat("}", 5000),
			gp.ErrTooLarge,
		},
		"big.json":  {strings.Repeat(" ", maxTree+1), gp.ErrTooLarge},
		"name.json": {`{"data":"cos","left":{"data":"W"}}`, gp.ErrUnknown},
		"noweight.json": {
			`{"data":"mul","left":{"data":"G"},"right":{"data":"X"}}`, gp.ErrNoWeight,
		},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := MetricByName(TreePrefix + path); !errors.Is(err, c.want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
	}

	if _, err := MetricByName(TreePrefix + filepath.Join(dir, "none.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}

	m := load(t, llama(2).write(t, filepath.Join(dir, "m"), nil), 1, lm.Options{})
	for _, c := range []struct {
		formula string
		group   Group
		want    error
	}{
		{"exp(sqr(G*G*G*G) + W)", Row, ErrNonFinite},
		{"exp(sqr(G*G*G*G) + W)", Layer, ErrNonFinite},
		{"W - W", Row, ErrConstant},
		{"W - W", Strip, ErrConstant},
		{"mms(W - W)", Row, ErrNonFinite},
		{"neg(W)", Share, ErrOptions},
	} {
		metric, err := MetricByName(FormulaPrefix + c.formula)
		if err != nil {
			t.Fatal(err)
		}

		_, err = Model(ctx, m, windows(2, 9, 61), Options{Metric: metric, Sparsity: .5, Group: c.group})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "q_proj") {
			t.Errorf("%s by %s: %v; want %v", c.formula, c.group, err, c.want)
		}
	}
}

// Overrides replace what the allocation says, the first that fits, and must fit something.
func TestOverrides(t *testing.T) {
	dir := llama(3).write(t, filepath.Join(t.TempDir(), "m"), nil)
	low := .25
	o := Options{Sparsity: .5, Overrides: []Override{
		{Blocks: []int{-1}, Roles: []string{"down"}, Dense: true},
		{Roles: []string{"q", "k"}, Pattern: &Pattern{2, 4}},
		{Match: `mlp\.(gate|down)`, Sparsity: &low},
	}}

	for _, update := range []string{NoUpdate, SparseGPTUpdate} {
		o.Update.Name = update
		m := load(t, dir, 2, lm.Options{})
		out := t.TempDir()
		var err error
		if o.Out, err = m.NewSaver(filepath.Join(out, "m"), lm.SaveOptions{}); err != nil {
			t.Fatal(err)
		}
		if o.Masks, err = NewMasks(filepath.Join(out, "masks.safetensors"), m, MaskOptions{}); err != nil {
			t.Fatal(err)
		}

		r, err := Model(ctx, m, windows(3, 9, 61), o)
		if err != nil {
			t.Fatal(err)
		}

		if mask := tensorsOf(t,
			filepath.Join(out, "masks.safetensors"))["model.layers.2.mlp.down_proj.weight"]; strings.Count(mask,
			"\x01") != 32*44 {
			t.Error("the mask of a dense matrix drops something")
		}

		for _, x := range r.Tensors {
			want := .5
			switch {
			case x.Role == "down" && x.Block == 2:
				want = 0
			case x.Role == "gate" || x.Role == "down":
				want = .25
			}

			if x.Sparsity != want || x.Target != want || x.Dense != (want == 0) ||
				x.Pattern.Structured() != (x.Role == "q" || x.Role == "k") {
				t.Errorf("%s: %+v, want sparsity %g", x.Name, x, want)
			}
		}

		if !r.Total.Exact {
			t.Error("patterns are not exact")
		}
	}

	m := load(t, dir, 1, lm.Options{})
	for _, v := range []Override{
		{Match: "nothing", Dense: true},
		{Match: "(", Dense: true},
		{Dense: true},
		{Roles: []string{"q"}},
		{Roles: []string{"q"}, Dense: true, Sparsity: &low},
		{Roles: []string{"q"}, Pattern: &Pattern{4, 4}},
	} {
		if _, err := Model(ctx, m, windows(3, 9, 61), Options{Sparsity: .5, Overrides: []Override{v}}); !errors.Is(err,
			ErrOptions) {
			t.Errorf("%+v: %v", v, err)
		}
	}

	if _, err := Model(ctx, m, windows(3, 9, 61),
		Options{Sparsity: .5, Overrides: []Override{{Roles: []string{"head"}, Dense: true}}}); !errors.Is(err,
		ErrUnknown) {
		t.Errorf("a role that is no matrix: %v", err)
	}
}

// Inputs that are always zero: an update drops their weights and says so; a Hessian of one token is made regular.
func TestSingularHessians(t *testing.T) {
	dir := llama(2).write(t, filepath.Join(t.TempDir(), "m"), func(name string, v []float32) {
		if strings.HasSuffix(name, "layers.0.input_layernorm.weight") {
			v[3], v[7] = 0, 0
		}
	})

	for _, o := range []Options{
		{Metric: SparseGPT(), Sparsity: .5},
		{Metric: SparseGPT(), Pattern: Pattern{2, 4}},
		{Sparsity: .5, Update: Update{Name: ADMM}},
		{Metric: Magnitude(), Sparsity: .5, Update: Update{Name: SparseGPTUpdate}},
	} {
		m := load(t, dir, 2, lm.Options{})
		r, err := Model(ctx, m, windows(1, 2, 61), o)
		if err != nil {
			t.Fatal(err)
		}

		if r.Total.Dead != 6 || r.Tensors[0].Dead != 2 ||
			!strings.Contains(strings.Join(r.Notes, "\n"), "6 inputs of matrices were 0") {
			t.Errorf("%s: %d dead inputs, want 6; notes %q", r.Options.Update.Name, r.Total.Dead, r.Notes)
		}

		for i, v := range values(t, m, r.Tensors[0].Name) {
			if (i%32 == 3 || i%32 == 7) && v != 0 {
				t.Errorf("%s: element %d of an input that is always 0 is %g", r.Options.Update.Name, i, v)
			}
		}
	}
}

// A file of gradients is made once, used again, and refused for other data; what does not fit is named.
func TestKeptGradients(t *testing.T) {
	tmp := t.TempDir()
	m := load(t, gpt2().write(t, filepath.Join(tmp, "m"), nil), 2, lm.Options{})
	keep := filepath.Join(tmp, "g.safetensors")
	weights := func(o Options) string {
		m := load(t, filepath.Join(tmp, "m"), 2, lm.Options{})
		o.Metric, o.Sparsity = PrunerZero(), .5
		if _, err := Model(ctx, m, windows(3, 9, 61), o); err != nil {
			t.Fatal(err)
		}

		w, err := m.Param("transformer.h.1.mlp.c_fc.weight")
		if err != nil {
			t.Fatal(err)
		}

		return string(w.Buf.Bytes())
	}

	want := weights(Options{})
	for _, g := range []GradientOptions{{Keep: keep}, {Keep: keep}, {File: keep}, {Memory: 1}} {
		if weights(Options{Gradients: g}) != want {
			t.Errorf("%+v gives other weights", g)
		}
	}

	other := Options{Metric: PrunerZero(), Sparsity: .5, Gradients: GradientOptions{Keep: keep}}
	if _, err := Model(ctx, m, windows(4, 9, 61), other); !errors.Is(err, ErrGradients) ||
		!strings.Contains(err.Error(), keep) {
		t.Errorf("other calibration data: %v", err)
	}

	llama := load(t, llama(2).write(t, filepath.Join(tmp, "llama"), nil), 2, lm.Options{})
	other.Gradients = GradientOptions{File: keep}
	if _, err := Model(ctx, llama, windows(4, 9, 61), other); !errors.Is(err, ErrGradients) {
		t.Errorf("another model: %v", err)
	}

	f, err := safetensors.Open(keep)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	if n := len(f.Names()); n != 8 {
		t.Errorf("%d tensors", n)
	}
	if left, _ := filepath.Glob(keep + "*"); len(left) != 1 {
		t.Errorf("left beside the file: %q", left)
	}
}

// Options with everything set survive JSON, formulas and overrides included.
func TestAllOptionsSurviveJSON(t *testing.T) {
	metric, err := MetricByName("expr:W*sqrt(X)")
	if err != nil {
		t.Fatal(err)
	}

	o := Options{
		Metric: metric, Pattern: Pattern{2, 4}, Permutation: Interleave, Update: Update{Name: ADMM, Steps: 3},
		Overrides: []Override{{Roles: []string{"q"}, Pattern: &Pattern{1, 4}}},
	}

	o.setDefaults()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}

	var back Options
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}

	again, err := json.Marshal(back)
	if err != nil || string(again) != string(text) {
		t.Errorf("%s\n%s (%v)", text, again, err)
	}
}

// The order that a permutation gives is that of the zeros.
func TestPermutedPattern(t *testing.T) {
	m := load(t, mixtral().write(t, filepath.Join(t.TempDir(), "m"), nil), 2, lm.Options{})
	orders, masks := map[string][]int32{}, map[string][]byte{}
	o := Options{Pattern: Pattern{2, 4}, Permutation: Assignment, Events: Events{
		Order: func(name string, order []int32) { orders[name] = order },
		Mask:  func(name string, keep kernels.Mat) { masks[name] = append([]byte(nil), keep.Buf.U8()[:keep.Len()]...) },
	}}

	r, err := Model(ctx, m, windows(3, 9, 61), o)
	if err != nil {
		t.Fatal(err)
	}

	for _, x := range r.Tensors {
		order := orders[x.Name]
		mask := masks[x.Name]
		in := x.Shape[1]
		if x.Order == nil || x.Order.Permuted < x.Order.Plain*.9 || len(order) != in {
			t.Fatalf("%s: %+v", x.Name, x.Order)
		}

		for i := range x.Shape[0] {
			for p := 0; p < in; p += 4 {
				kept := 0
				for _, j := range order[p : p+4] {
					kept += int(mask[i*in+int(j)])
				}
				if kept != 2 {
					t.Fatalf("%s: row %d keeps %d of the group at %d", x.Name, i, kept, p)
				}
			}
		}
	}
}

// TestConstantScores: scores that rank nothing are errors for every metric, but for a matrix of zeros, or one
// whose inputs are, which loses nothing. The report names the latter.
func TestConstantScores(t *testing.T) {
	tmp := t.TempDir()
	set := func(name string, change func(v []float32)) string {
		return llama(2).write(t, filepath.Join(tmp, name), func(tensor string, v []float32) {
			if tensor == "model.layers.1.self_attn.q_proj.weight" && name != "dead" ||
				tensor == "model.layers.1.input_layernorm.weight" && name == "dead" {
				change(v)
			}
		})
	}

	fill := func(x float32) func([]float32) {
		return func(v []float32) {
			for i := range v {
				v[i] = x
			}
		}
	}

	equal := set("equal", fill(.5))
	zero := set("zero", fill(0))
	dead := set("dead", fill(0))
	formula, err := MetricByName("expr:W*W")
	if err != nil {
		t.Fatal(err)
	}

	product, err := MetricByName("expr:W*X")
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		dir    string
		metric Metric
		group  Group
		fails  bool
	}{
		{equal, Magnitude(), "", true},
		{equal, formula, Row, true},
		{equal, formula, Layer, true},
		{equal, Wanda(), "", false}, // inputs rank them
		{zero, Magnitude(), "", false},
		{zero, Wanda(), "", false},
		{zero, RIA(), "", false},
		{zero, PrunerZero(), "", false},
		{zero, formula, Row, false},
		{dead, Wanda(), "", false}, // which of them go makes no difference
		{dead, WandaVariant(), "", false},
		{dead, RIA(), "", false},
		{dead, GBLM(), "", false},
		{dead, product, Row, false},
		{dead, Magnitude(), "", false},
		{dead, SparseGPT(), "", false}, // the report counts dead inputs
	} {
		r, err := Model(ctx, load(t, c.dir, 1, lm.Options{}), windows(2, 8, 61),
			Options{Metric: c.metric, Group: c.group, Sparsity: .5})
		if errors.Is(err, ErrConstant) != c.fails || !c.fails && err != nil ||
			c.fails && !strings.Contains(err.Error(), `tensor "model.layers.1.self_attn.q_proj.weight"`) {
			t.Errorf("%s, %s: %v", filepath.Base(c.dir), c.metric.Name, err)
		}

		if c.dir == dead && err == nil &&
			(c.metric.Needs == SumSquares) != strings.Contains(strings.Join(r.Notes, "\n"),
				"ties were broken by column: model.layers.1.self_attn.q_proj.weight, ") {
			t.Errorf("%s: notes %q", c.metric.Name, r.Notes)
		}
	}
}

// A matrix of zeros has nothing to rank: it counts as pruned, and a note says so, whatever the method.
func TestEmptyMatricesAreCounted(t *testing.T) {
	dir := llama(2).write(t, filepath.Join(t.TempDir(), "m"), func(name string, v []float32) {
		if name == "model.layers.1.self_attn.q_proj.weight" {
			clear(v)
		}
	})

	for _, metric := range []Metric{Magnitude(), Wanda(), SparseGPT()} {
		r, err := Model(ctx, load(t, dir, 2, lm.Options{}), windows(3, 9, 61), Options{Metric: metric, Sparsity: .5})
		if err != nil {
			t.Fatal(err)
		}

		if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "all weights of 1 matrices were 0 before") {
			t.Errorf("%s: notes %q", metric.Name, r.Notes)
		}
	}
}
