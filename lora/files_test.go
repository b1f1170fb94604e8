package lora

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mosfile"
	"github.com/modelcompress/compress/safetensors"
)

// logitsOf runs a model on rows of ids.
func logitsOf(t *testing.T, m *lm.Model, ids [][]int32) []float32 {
	t.Helper()
	r, err := m.Forward(t.Context(), ids, lm.ForwardOptions{Logits: true})
	if err != nil {
		t.Fatal(err)
	}
	return flat(r.Logits)
}

// TestExportOracle: a Mixture of Shards becomes a LoRA whose tensors equal the reference's to the bit (they are
// copies), with and without its base, and the folded model computes what the reference does.
func TestExportOracle(t *testing.T) {
	root := oracle(t)
	for _, dir := range cases(t, filepath.Join(root, "mos")) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c mosCase
			readJSON(t, filepath.Join(dir, "case.json"), &c)

			base := filepath.Join(root, "base", c.Base)
			folder := nativeFolder(t, dir, c)
			for _, model := range []string{"", base} {
				out := filepath.Join(t.TempDir(), "plain")
				if _, err := Export(t.Context(), folder, out, ExportOptions{Model: model}); err != nil {
					t.Fatal(err)
				}
				sameFiles(t, filepath.Join(out, "adapter_model.safetensors"),
					filepath.Join(dir, "export", "adapter_model.safetensors"))
			}

			out := filepath.Join(t.TempDir(), "folded")
			if _, err := Fold(t.Context(), base, folder, out, FoldOptions{}); err != nil {
				t.Fatal(err)
			}

			want := openTensors(t, filepath.Join(dir, "expected.safetensors"))
			got := logitsOf(t, openModel(t, out, "cpu", lm.Options{}), want.ids("input_ids", 0))
			if gap, _ := farthest(got, want.floats("logits")); gap > max(2e-5, 10*c.Noise["logits"]) {
				t.Errorf("folded: logits differ by %g", gap)
			}
		})
	}
}

// nativeFolder makes the adapter's folder of a case.
func nativeFolder(t *testing.T, dir string, c mosCase) string {
	t.Helper()
	out := t.TempDir()
	data, err := os.ReadFile(filepath.Join(dir, "mos.safetensors"))
	if err != nil {
		t.Fatal(err)
	}

	o := c.Options
	text, err := json.Marshal(map[string]any{
		"peft_type": "MOS", "format_version": 1, "equivalent_rank": o.E, "r": o.R, "shards": o.L, "private_rank": o.P,
		"lora_alpha":        o.Alpha,
		"pair_dissociation": o.Pair == nil || *o.Pair, "sampling": o.Sampling, "target_modules": o.Types,
		"base_model_name_or_path": c.Base,
	})
	if err != nil {
		t.Fatal(err)
	}

	for name, data := range map[string][]byte{mosfile.ModelName: data, mosfile.ConfigName: text} {
		if err := os.WriteFile(filepath.Join(out, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}

	return out
}

// sameFiles compares two files tensor by tensor, to the bit.
func sameFiles(t *testing.T, pathA, pathB string) {
	t.Helper()
	a, b := openTensors(t, pathA), openTensors(t, pathB)
	names, others := a.Names(), b.Names()
	slices.Sort(names)
	slices.Sort(others)
	if !slices.Equal(names, others) {
		t.Fatalf("tensors %v, want %v", names, others)
	}

	for _, n := range names {
		if !slices.Equal(a.floats(n), b.floats(n)) {
			t.Errorf("%s differs", n)
		}
	}
}

// TestCombinedLogitsOracle: a model with a combination attached computes what PEFT computes with its own; where
// PEFT's result is √rank too strong, a fault it is known for, there is nothing to compare.
func TestCombinedLogitsOracle(t *testing.T) {
	root := oracle(t)
	for _, dir := range cases(t, filepath.Join(root, "combine")) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c struct {
				Base     string
				Adapters []string
				Weights  []float64
				Type     string    `json:"combination_type"`
				Scale    []float64 `json:"result_scale"`
				Options  struct {
					Density float64
					Rank    int    `json:"svd_rank"`
					Sign    string `json:"majority_sign_method"`
				}
			}

			readJSON(t, filepath.Join(dir, "case.json"), &c)

			if slices.ContainsFunc(c.Scale, func(s float64) bool { return s != 1 }) {
				t.Skip("PEFT's own result is off by the factor result_scale; lora/internal/combine compares up " +
					"to that factor")
			}

			base := filepath.Join(root, "base", c.Base)
			var dirs []string
			for _, a := range c.Adapters {
				dirs = append(dirs, filepath.Join(root, "adapters", a))
			}

			out := filepath.Join(t.TempDir(), "out")
			o := CombineOptions{
				Method: c.Type, Weights: c.Weights, Density: c.Options.Density, Rank: c.Options.Rank,
				Sign: c.Options.Sign, Model: base,
			}
			if _, err := Combine(t.Context(), dirs, out, o); err != nil {
				t.Fatal(err)
			}

			m := openModel(t, base, "cpu", lm.Options{})
			a, err := Open(out, m)
			if err != nil {
				t.Fatal(err)
			}

			undo, err := a.Attach(m)
			if err != nil {
				t.Fatal(err)
			}
			defer undo()

			want := openTensors(t, filepath.Join(dir, "expected.safetensors"))
			// deltas agree to 1e-5 at worst, which the blocks of the model may double
			if gap, _ := farthest(logitsOf(t, m, want.ids("input_ids", 0)), want.floats("logits")); gap > 2e-5 {
				t.Errorf("logits differ by %g", gap)
			}
		})
	}
}

// TestPublishedAdapter: an adapter for GPT-2 that others have published, with Conv1D matrices, fits a base of
// GPT-2's shapes whose files leave the first part of the names out; attached and folded it computes the same.
func TestPublishedAdapter(t *testing.T) {
	dir := filepath.Join("..", "..", "shared", "data", "adapters", "gpt2-lora-tigrinya")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("%s is not there", dir)
	}
	if testing.Short() {
		t.Skip("writes a base of 85 million parameters")
	}

	base := filepath.Join(t.TempDir(), "gpt2")
	if err := os.Mkdir(base, 0o777); err != nil {
		t.Fatal(err)
	}

	gpt2(t, base)
	m := openModel(t, base, "cpu", lm.Options{})
	a, err := Open(dir, m)
	if err != nil {
		t.Fatal(err)
	}

	ids := [][]int32{{1, 7, 3, 9, 4, 4, 11, 2}}
	bare := logitsOf(t, m, ids)
	undo, err := a.Attach(m)
	if err != nil {
		t.Fatal(err)
	}

	attached := logitsOf(t, m, ids)
	undo()
	out := filepath.Join(t.TempDir(), "folded")
	r, err := Fold(t.Context(), base, dir, out, FoldOptions{})
	if err != nil {
		t.Fatal(err)
	}

	if r.Edited != 36 {
		t.Errorf("%d tensors changed, want c_attn and both c_proj of 12 blocks", r.Edited)
	}

	folded := logitsOf(t, openModel(t, out, "cpu", lm.Options{}), ids)
	moved, _ := farthest(attached, bare)
	gap, size := farthest(folded, attached)
	if moved < 1e-3*size || gap > 1e-4*size { // sums of up to 3072 products in float32, over 12 blocks
		t.Errorf("attached moves the logits (up to %g) by %g, folded differs from it by %g", size, moved, gap)
	}
}

// gpt2 writes a model with the shapes of the smallest GPT-2 and 16 tokens, its values a fixed pattern.
func gpt2(t *testing.T, dir string) {
	t.Helper()
	const layers, width, tokens, positions = 12, 768, 16, 32
	config := `{"model_type":"gpt2","architectures":["GPT2LMHeadModel"],"vocab_size":16,"n_embd":768,"n_layer":12,"n_head":12,"n_positions":32}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}

	var infos []safetensors.Info
	add := func(name string, shape ...int64) {
		infos = append(infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape})
	}
	add("wte.weight", tokens, width)
	add("wpe.weight", positions, width)

	for l := range layers {
		p := "h." + string(rune('0'+l/10)) + string(rune('0'+l%10)) + "."
		p = strings.Replace(p, "h.0", "h.", 1)
		for _, n := range []string{"ln_1", "ln_2"} {
			add(p+n+".weight", width)
			add(p+n+".bias", width)
		}

		for name, shape := range map[string][2]int64{
			"attn.c_attn": {width, 3 * width}, "attn.c_proj": {width, width}, "mlp.c_fc": {width, 4 * width},
			"mlp.c_proj": {4 * width, width},
		} {
			add(p+name+".weight", shape[0], shape[1])
			add(p+name+".bias", shape[1])
		}
	}

	add("ln_f.weight", width)
	add("ln_f.bias", width)
	w, err := safetensors.Create(filepath.Join(dir, safetensors.SingleName), infos, nil, safetensors.Options{})
	if err != nil {
		t.Fatal(err)
	}

	state := uint32(1)
	for _, info := range infos {
		x := make([]float32, info.Elements())
		norm := strings.Contains(info.Name, "ln_") && strings.HasSuffix(info.Name, ".weight")
		for i := range x {
			state = state*1664525 + 1013904223
			x[i] = (float32(state>>8)/(1<<24) - 0.5) * 0.1
			if norm {
				x[i]++
			}
		}

		data := make([]byte, 4*len(x))
		if err := dtype.Encode(data, x, info.DType); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

// tuned writes the model at base again with values added to some matrices: a difference of the given rank to
// q_proj of every block, and a little of everything to a norm.
func tuned(t *testing.T, base, out string, rank int) {
	t.Helper()
	c, err := adapter.OpenCheckpoint(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	a := &adapter.Adapter{
		Config: adapter.Config{
			Kind: adapter.LoRA, Rank: rank, Alpha: 1,
			Targets: adapter.Match{Names: []string{"q_proj"}},
		},
	}
	state := uint32(7)
	next := func() float32 {
		state = state*1664525 + 1013904223
		return float32(state>>8)/(1<<24) - 0.5
	}

	list, err := a.Config.Chosen(c.Modules)
	if err != nil {
		t.Fatal(err)
	}

	for _, m := range list {
		f := adapter.Plain{
			A: adapter.NewParam(m.Path+".lora_A.weight", rank, m.In),
			B: adapter.NewParam(m.Path+".lora_B.weight", m.Out, rank),
		}
		for _, p := range []*adapter.Param{f.A, f.B} {
			for i := range p.Data() {
				p.Data()[i] = next()
			}
		}

		a.Low = append(a.Low, &adapter.Low{Module: m, Rank: rank, Alpha: float64(rank), Scale: 1, Factors: f})
	}

	plain := filepath.Join(t.TempDir(), "a")
	if err := (&Adapter{inner: a}).Save(plain, false); err != nil {
		t.Fatal(err)
	}
	if _, err := Fold(t.Context(), base, plain, out, FoldOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestExtract: a difference of rank 3 in BF16 comes back from a LoRA of rank 3 but for its rounding, and from
// the full rank exactly.
func TestExtract(t *testing.T) {
	base := filepath.Join("..", "testdata", "nano", "base")
	other := filepath.Join(t.TempDir(), "other")
	tuned(t, base, other, 3)

	for _, rank := range []int{3, 96} {
		out := filepath.Join(t.TempDir(), "out")
		r, err := Extract(t.Context(), base, other, out, ExtractOptions{Rank: rank})
		if err != nil {
			t.Fatal(err)
		}

		if r.Energy < 0.999 || rank == 96 && r.Energy < 1-1e-9 {
			t.Errorf("rank %d keeps %g", rank, r.Energy)
		}

		for _, m := range r.Matrices {
			if changed := strings.HasSuffix(m.Path, "q_proj"); changed != (m.Norm > 0) || !changed && m.Energy != 1 {
				t.Errorf("%+v", m)
			}
		}

		if len(r.LeftOut) != 0 {
			t.Errorf("left out: %v", r.LeftOut)
		}

		again := filepath.Join(t.TempDir(), "again")
		if _, err := Fold(t.Context(), base, out, again, FoldOptions{}); err != nil {
			t.Fatal(err)
		}

		ids := [][]int32{{1, 2, 3, 4, 5, 6, 7, 8}}
		x, y := logitsOf(t, openModel(t, again, "cpu", lm.Options{}), ids),
			logitsOf(t, openModel(t, other, "cpu", lm.Options{}), ids)
		gap, size := farthest(x, y)
		if rank == 96 && gap > 1e-5*size || gap > 0.1*size {
			t.Errorf("rank %d: logits (up to %g) differ by %g", rank, size, gap)
		}
	}
}

// TestExportCut: cutting to a smaller rank keeps what the singular values say, and to the same rank keeps the change.
func TestExportCut(t *testing.T) {
	base := filepath.Join("..", "testdata", "nano", "base")
	other := filepath.Join(t.TempDir(), "other")
	tuned(t, base, other, 3)

	wide := filepath.Join(t.TempDir(), "wide")
	if _, err := Extract(t.Context(), base, other, wide,
		ExtractOptions{Rank: 8, Targets: []string{"q_proj"}}); err != nil {
		t.Fatal(err)
	}

	cut := filepath.Join(t.TempDir(), "cut")
	r, err := Export(context.Background(), wide, cut, ExportOptions{Rank: 3, Bake: true})
	if err != nil {
		t.Fatal(err)
	}

	for _, m := range r.Truncation {
		if m.Energy == nil || *m.Energy < 0.999 || *m.Energy > 1 {
			t.Errorf("%s keeps %v", m.Path, m.Energy)
		}
	}

	x, err := Inspect(t.Context(), wide, base)
	if err != nil {
		t.Fatal(err)
	}

	y, err := Inspect(t.Context(), cut, base)
	if err != nil {
		t.Fatal(err)
	}

	for i := range x.Modules {
		if p, q := x.Modules[i].Norm, y.Modules[i].Norm; math.Abs(p-q) > 1e-3*p {
			t.Errorf("%s: norm %g, was %g", x.Modules[i].Path, q, p)
		}
	}
}

// TestExtractTied: where the head is the token table, a difference of the table is one of both, and both come back.
func TestExtractTied(t *testing.T) {
	base, other := filepath.Join("..", "testdata", "nano", "base"), filepath.Join("..", "testdata", "nano", "sums")
	out, again := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "again")
	targets := []string{"embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
	r, err := Extract(t.Context(), base, other, out,
		ExtractOptions{Rank: 96, Targets: targets, Exact: true, Whole: true})
	if err != nil {
		t.Fatal(err)
	}

	if len(r.LeftOut) > 0 || len(r.Kept) == 0 {
		t.Errorf("left out %v, whole %v", r.LeftOut, r.Kept)
	}
	if len(r.Matrices) != 30 || r.Energy < 1-1e-9 {
		t.Errorf("%d matrices, %g kept", len(r.Matrices), r.Energy)
	}
	if _, err := Fold(t.Context(), base, out, again, FoldOptions{}); err != nil {
		t.Fatal(err)
	}

	want, err := adapter.OpenCheckpoint(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()

	got, err := adapter.OpenCheckpoint(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()

	for _, name := range []string{"model.embed_tokens.weight", "lm_head.weight"} {
		x, err := (stored{got}).Values(name)
		if err != nil {
			t.Fatal(err)
		}

		y, err := (stored{want}).Values("model.embed_tokens.weight")
		if err != nil {
			t.Fatal(err)
		}

		if gap, size := farthest(flat(x), flat(y)); gap > size/256 { // a step of BF16
			t.Errorf("%s is off by %g of %g", name, gap, size)
		}
	}

	ids := [][]int32{{1, 2, 3, 4, 5, 6, 7, 8}}
	p, q := logitsOf(t, openModel(t, again, "cpu", lm.Options{}), ids),
		logitsOf(t, openModel(t, other, "cpu", lm.Options{}), ids)
	if gap, size := farthest(p, q); gap > size/100 { // a few steps of BF16 in some weights
		t.Errorf("logits differ by %g of %g", gap, size)
	}

	for i := range 2 { // the table whole, too
		out := filepath.Join(t.TempDir(), "whole")
		if _, err := Extract(t.Context(), base, other, out,
			ExtractOptions{Rank: 96, Whole: true, Exact: i > 0}); err != nil {
			t.Fatal(err)
		}

		again := filepath.Join(t.TempDir(), "again")
		if _, err := Fold(t.Context(), base, out, again, FoldOptions{}); err != nil {
			t.Fatal(err)
		}

		p = logitsOf(t, openModel(t, again, "cpu", lm.Options{}), ids)
		if gap, size := farthest(p, q); gap > size/100 {
			t.Errorf("whole: logits differ by %g of %g", gap, size)
		}
	}
}
