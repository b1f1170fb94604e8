package moe

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/safetensors"
)

// oracleFolder is where the reference cases lie.
func oracleFolder() string {
	if dir := os.Getenv("COMPRESS_ORACLE"); dir != "" {
		return filepath.Join(dir, "merge")
	}
	return filepath.Join("..", "..", "..", "..", "shared", "oracle", "merge")
}

// memory is a sink that keeps tensors.
type memory struct {
	sync.Mutex
	data map[string][]byte
	done []string
}

func (m *memory) Done(name string) bool {
	m.Lock()
	defer m.Unlock()
	return slices.Contains(m.done, name)
}

func (m *memory) WriteAt(name string, p []byte, off int64) error {
	m.Lock()
	defer m.Unlock()
	if int64(len(m.data[name])) != off {
		return fmt.Errorf("%s: a part at %d after %d bytes", name, off, len(m.data[name]))
	}
	m.data[name] = append(m.data[name], p...)
	return nil
}

func (m *memory) Written(name string) error {
	m.Lock()
	defer m.Unlock()
	m.done = append(m.done, name)
	return nil
}

// build makes a mixture in memory.
func build(t testing.TB, text, root string, o Options) (*Mixture, *memory) {
	t.Helper()
	c, err := Parse("recipe.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	m, err := Open(t.Context(), c, recipe.Places{Recipe: root}, o)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { m.Close() })
	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	if err := m.Gates(context.Background(), dev); err != nil {
		t.Fatal(err)
	}

	out := &memory{data: map[string][]byte{}}
	if err := m.Run(context.Background(), out, nil); err != nil {
		t.Fatal(err)
	}

	for _, info := range m.Layout() {
		if size, err := info.DType.ByteSize(info.Shape); err != nil || int64(len(out.data[info.Name])) != size {
			t.Fatalf("%s: %d bytes, want %d (%v)", info.Name, len(out.data[info.Name]), size, err)
		}
	}

	return m, out
}

func floats(data []byte) []float64 {
	out := make([]float64, len(data)/4)
	for i := range out {
		out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	}
	return out
}

// worst is the largest difference of two tensors; a NaN counts.
func worst(a, b []float64) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}

	most := 0.0
	for i := range a {
		if d := math.Abs(a[i] - b[i]); !(d <= most) {
			most = d
		}
	}

	return most
}

type notes struct {
	Rule    string                                   `json:"rule"`
	Prompts []struct{ Positive, Negative [][]int32 } `json:"prompt_token_ids"`
	Config  struct {
		Experts  int `json:"num_local_experts"`
		PerToken int `json:"num_experts_per_tok"`
	} `json:"config_json"`
	Tensors int `json:"tensors_in_full_output"`
}

func TestOracleMixtures(t *testing.T) {
	root := oracleFolder()
	paths, _ := filepath.Glob(filepath.Join(root, "*", "config.yaml"))
	if len(paths) == 0 {
		t.Skipf("no cases in %s", root)
	}

	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		if recipe.IsMoE(text) {
			t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
				oracleCase(t, string(text),
					filepath.Dir(path), root)
			})
		}
	}
}

// oracleCase holds a mixture against the reference's tensors.
func oracleCase(t *testing.T, text, dir, root string) {
	o := Options{Layout: Fused}
	if strings.Contains(text, "shared_experts") {
		o.Layout = Split // as the reference writes this kind
	}

	m, out := build(t, text, root, o)
	var n notes
	data, err := os.ReadFile(filepath.Join(dir, "notes.json"))
	if err != nil || json.Unmarshal(data, &n) != nil {
		t.Fatal(err)
	}

	if len(m.tensors) != n.Tensors {
		t.Errorf("%d tensors, want %d", len(m.tensors), n.Tensors)
	}

	for i, want := range n.Prompts {
		all := slices.Concat(m.Config.Experts, m.Config.Shared)
		for _, x := range []struct {
			prompts []string
			want    [][]int32
		}{{all[i].Positive, want.Positive}, {all[i].Negative, want.Negative}} {
			if got, err := m.tokenize(x.prompts); err != nil || fmt.Sprint(got) != fmt.Sprint(x.want) {
				t.Errorf("prompts %q: %v %v, want %v", x.prompts, got, err, x.want)
			}
		}
	}

	files, err := safetensors.Open(filepath.Join(dir, "out.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()

	for _, name := range files.Names() {
		want, err := files.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		gate := strings.HasSuffix(name, ".mlp.gate.weight") || strings.HasSuffix(name, "shared_expert_gate.weight")
		switch {
		case gate && n.Rule == "moments":
			moments(t, name, floats(out.data[name]), strings.Contains(text, "uniform_random"), m.base.Hidden)
		case gate && n.Rule == "gate_fp32": // computed in bf16 there; below
		default:
			// Copies are exact; a scaled matrix and a cheap gate are rounded once, the reference's gate several times.
			if d := worst(floats(out.data[name]), floats(want)); d > 1e-6 {
				t.Errorf("%s: off by %v", name, d)
			}
		}
	}

	if n.Rule == "gate_fp32" {
		compareGates(t, m, out, dir)
	}
}

// compareGates compares routers with those that the reference's formula gives in float32.
func compareGates(t *testing.T, m *Mixture, out *memory, dir string) {
	files, err := safetensors.Open(filepath.Join(dir, "gate_fp32.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()

	for _, name := range files.Names() {
		want, err := files.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		if d := worst(floats(out.data[name]), floats(want)); d > 1e-5 {
			t.Errorf("%s: off by %v", name, d)
		}
	}
}

// moments checks drawn gates: mean and variance within five standard errors.
func moments(t *testing.T, name string, x []float64, uniform bool, hidden int) {
	variance, fourth := 1.0, 3.0
	if uniform {
		bound := 1 / math.Sqrt(float64(hidden))
		variance, fourth = bound*bound/3, math.Pow(bound, 4)/5/math.Pow(bound*bound/3, 2)
	}

	var sum, square float64
	for _, v := range x {
		sum, square = sum+v, square+v*v
	}

	n := float64(len(x))
	if math.Abs(sum/n) > 5*math.Sqrt(variance/n) || math.Abs(square/n-variance) > 5*variance*math.Sqrt((fourth-1)/n) {
		t.Errorf("%s: mean %v, variance %v, want 0 and %v", name, sum/n, square/n, variance)
	}
}

// nano is the folder of the project's own models.
var nano = filepath.Join("..", "..", "..", "testdata", "nano")

// nanoRecipe makes a mixture of the project's small models.
const nanoRecipe = `base_model: base
gate_mode: hidden
experts:
- {source_model: sums, positive_prompts: ["3 + 4 =", "sum of 9 and 2"]}
- {source_model: news, positive_prompts: ["the news today"], negative_prompts: ["once upon a time"]}
- {source_model: tales, positive_prompts: ["once upon a time"]}
`

// write writes a mixture into a folder.
func write(t testing.TB, m *Mixture, out *memory) string {
	t.Helper()
	dir := t.TempDir()
	w, err := safetensors.CreateDir(dir, m.Layout(), nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for name, data := range out.data {
		if err := w.WriteTensor(name, data); err != nil {
			t.Fatal(err)
		}
	}

	if err := errors.Join(w.Finish(), m.WriteSide(dir)); err != nil {
		t.Fatal(err)
	}

	return dir
}

// logits runs a model on two sequences.
func logits(t testing.TB, dir string) []float32 {
	t.Helper()
	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	model, err := lm.Load(context.Background(), dir, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()

	r, err := model.Forward(context.Background(), [][]int32{{0, 5, 17, 99, 300, 7}, {0, 44, 3, 8, 700, 701}},
		lm.ForwardOptions{Logits: true})
	if err != nil {
		t.Fatal(err)
	}

	return slices.Clone(r.Logits.Buf.F32()[r.Logits.Off : r.Logits.Off+r.Logits.Len()])
}

// TestMixtureOfOneModelIsThatModel: with the base as every expert the router's choice makes no difference, since its
// weights sum to one; in both kinds of mixture, the engine opens what is written and computes the base's logits.
func TestMixtureOfOneModelIsThatModel(t *testing.T) {
	want := logits(t, filepath.Join(nano, "base"))
	for name, text := range map[string]string{
		"mixtral": "base_model: base\ngate_mode: random\nexperts: [{source_model: base}, {source_model: base}, " +
			"{source_model: base}]\n",
		"qwen": "base_model: base\ngate_mode: random\nexperts: [{source_model: base}, {source_model: " +
			"base}]\nshared_experts: [{source_model: base, residual_scale: 0}]\n",
	} {
		m, out := build(t, text, nano, Options{AllowSame: true, Seed: 3})
		if m.Family != name {
			t.Errorf("%s: made a %s", name, m.Family)
		}

		got := logits(t, write(t, m, out))
		// The experts' outputs are added up with weights that sum to one up to rounding in float32.
		for i := range want {
			if d := math.Abs(float64(got[i] - want[i])); !(d <= 2e-5*(1+math.Abs(float64(want[i])))) {
				t.Fatalf("%s: logit %d is %v, the base's %v", name, i, got[i], want[i])
			}
		}
	}
}

func TestMixtureOfExpertsRuns(t *testing.T) {
	m, out := build(t, nanoRecipe, nano, Options{})
	if len(m.Warnings) == 0 || !strings.Contains(m.Warnings[0], "power of two") {
		t.Errorf("%q", m.Warnings)
	}

	got, base := logits(t, write(t, m, out)), logits(t, filepath.Join(nano, "base"))
	differ := 0
	for i, x := range got {
		if math.IsNaN(float64(x)) {
			t.Fatal("not a number")
		}
		if x != base[i] {
			differ++
		}
	}

	if differ < len(got)/2 {
		t.Errorf("only %d of %d logits differ from the base's", differ, len(got))
	}
}

// TestOutputDoesNotDependOnWorkers: noise and gates are functions of seed and name.
func TestOutputDoesNotDependOnWorkers(t *testing.T) {
	text := strings.ReplaceAll(nanoRecipe, "source_model: news",
		"source_model: news, noise_scale: 0.01, residual_scale: 0.5")
	text = strings.Replace(text, "gate_mode: hidden", "gate_mode: random", 1)
	var all []*memory
	for _, workers := range []int{1, 2, 5} {
		_, out := build(t, text, nano, Options{Threads: workers, Seed: 11})
		all = append(all, out)
	}

	for name, data := range all[0].data {
		for _, other := range all[1:] {
			if !slices.Equal(data, other.data[name]) {
				t.Errorf("%s differs", name)
			}
		}
	}

	_, other := build(t, text, nano, Options{Seed: 12})
	changed := 0
	for name, data := range all[0].data {
		if !slices.Equal(data, other.data[name]) {
			changed++
		}
	}

	if want := 4 + 3*4; changed != want { // per layer a router, and three noisy matrices of one expert
		t.Errorf("another seed changes %d tensors, want %d", changed, want)
	}
}

// TestGatesDoNotDependOnMemory: prompts that go through the base one by one give the gates of prompts that go
// together; one that is too long is refused.
func TestGatesDoNotDependOnMemory(t *testing.T) {
	for _, mode := range []string{"hidden", "hidden_avg"} {
		text := strings.Replace(nanoRecipe, "gate_mode: hidden", "gate_mode: "+mode, 1)
		m, all := build(t, text, nano, Options{})
		need := m.blockBytes() + m.tokenBytes()*24 + 1<<17
		small, one := build(t, text, nano, Options{Memory: need})
		if small.tokens >= 64 {
			t.Errorf("%d tokens at a time", small.tokens)
		}

		for name, data := range all.data {
			if !slices.Equal(data, one.data[name]) {
				t.Errorf("%s: %s differs", mode, name)
			}
		}
	}

	m := Mixture{tokens: 2}
	parts, err := m.batches([][]int32{{1}, {2}, {3, 4}, {5}})
	if err != nil || fmt.Sprint(parts) != "[[[1] [2]] [[3 4]] [[5]]]" {
		t.Errorf("%v %v", parts, err)
	}

	m.base = &arch.Config{}
	if _, err := m.batches([][]int32{{1, 2, 3}}); !errors.Is(err, stream.ErrMemory) {
		t.Errorf("%v", err)
	}
}

func TestMessages(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"several": {"base_modle: base\nexperts: [{source_model: a, positive_prompts: x}]\ngate_mode: " +
			"hiden\narchitecture: deepseek\n", `recipe.yaml:1:1: unknown key "base_modle" in a recipe for a mixture; did you mean "base_model"?
recipe.yaml:2:10: 1 experts, where every token visits 2 (experts_per_token)
recipe.yaml:2:12: an expert needs positive_prompts, from which gate_mode hiden makes its gate
recipe.yaml:2:47: prompts must be a list, not "x"
recipe.yaml:3:12: gate_mode must be one of hidden, hidden_last, hidden_avg, cheap_embed, random, uniform_random, not "hiden"
recipe.yaml:4:15: architecture must be one of mixtral, qwen, qwen3: mixtures of deepseek's first kind only run with Python code of their own`},
		"alike": {
			"base_model: base\nexperts: [{source_model: sums, positive_prompts: [a]}, {source_model: news, " +
				"positive_prompts: [a]}]\n",
			"recipe.yaml:2:10: all experts have the same prompts: no router could tell them apart",
		},
		"same": {
			"base_model: base\ngate_mode: random\nexperts: [{source_model: sums}, {source_model: sums}]\n",
			"recipe.yaml:3:10: all experts are sums: without training such a mixture does what that model does",
		},
		"shared": {
			"base_model: base\ngate_mode: random\narchitecture: mixtral\nexperts: [{source_model: sums}, " +
				"{source_model: news}]\n" +
				"shared_experts: [{source_model: base}]\n",
			"models do not make a mixture: mixtral: has 0 shared experts, not 1",
		},
		"missing": {
			"base_model: base\ngate_mode: random\nexperts: [{source_model: sums}, {source_model: nowhere}]\n",
			"model not found: nowhere (tried " + filepath.Join(nano,
				"nowhere") + " and the hub's cache)",
		},
	} {
		config, err := Parse("recipe.yaml", []byte(c.text))
		if err == nil {
			var m *Mixture
			if m, err = Open(t.Context(), config, recipe.Places{Recipe: nano}, Options{}); err == nil {
				m.Close()
			}
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("%s:\n%v\nwant\n%s", name, err, c.want)
		}
	}
}

// FuzzParse: whatever the text, reading a recipe ends with a configuration or a list of problems.
func FuzzParse(f *testing.F) {
	f.Add(nanoRecipe)
	f.Add("base_model: {model: {path: a}}\n" +
		"experts: [{source_model: b, noise_scale: 1e-3}]\n" +
		"shared_experts: []\ndtype: bfloat16\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer fuzzlimit.Watch(t, len(text))()
		c, err := Parse("x", []byte(text))
		var p *strictyaml.Problems
		if (c == nil) == (err == nil) || err != nil && !errors.As(err, &p) {
			t.Fatalf("%v %v", c, err)
		}
		if c != nil {
			c.References()
		}
	})
}
