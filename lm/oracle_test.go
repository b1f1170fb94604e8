package lm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/kerneltest"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// Tolerances of the oracle's README: float32 noise is ten times smaller, the smallest mistake (a norm's
// epsilon) is four times larger for logits.
const (
	tolTensor = 2e-5 // of the largest absolute value
	tolLoss   = 2e-6 // mean
	tolToken  = 5e-5 // one token
	// the worst token of a text: of 4,088 losses, sums in float64 differ by up to 3.3e-5 from the oracle's
	// float32
	tolText = 1e-4
)

// shared gives a path of the shared data, or skips.
func shared(t testing.TB, env, parts string) string {
	t.Helper()
	path := filepath.Join("..", "..", "shared", parts)
	if dir := os.Getenv(env); env != "" && dir != "" {
		path = filepath.Join(dir, strings.TrimPrefix(parts, "oracle/"))
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not there", path)
	}
	return path
}

func oracleDir(t testing.TB, parts string) string {
	return shared(t, "COMPRESS_ORACLE", "oracle/"+parts)
}

// devices runs a test on the reference and on the processor's backend.
func devices(t *testing.T, f func(t *testing.T, dev kernels.Device)) {
	for _, name := range []string{"ref", "cpu"} {
		t.Run(name, func(t *testing.T) {
			dev, err := device.Open(name, device.Options{})
			if err != nil {
				t.Fatal(err)
			}
			f(t, dev)
		})
	}
}

// withConfig makes a folder with the files of a checkpoint and another config.json.
func withConfig(t testing.TB, model, config string) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir(model)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		from := filepath.Join(model, e.Name())
		if e.Name() == "config.json" {
			from = filepath.Join(model, config)
		}

		if !e.IsDir() && !strings.HasPrefix(e.Name(), "oracle") {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}

			if err := os.WriteFile(filepath.Join(dir, e.Name()), text, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}

	return dir
}

func load(t testing.TB, dir string, dev kernels.Device, o Options) *Model {
	t.Helper()
	m, err := Load(context.Background(), dir, dev, o)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// expected is the numbers of an oracle.
type expected struct {
	Loss          float64
	NumParameters int64 `json:"num_parameters"`
	Greedy        struct {
		Prompt    []int32
		NewTokens []int32 `json:"new_tokens"`
	}
	NLL map[string]struct {
		Windows []int
		Mean    float64 `json:"mean_nll"`
	}
	file *safetensors.File
}

func openExpected(t *testing.T, base string) *expected {
	t.Helper()
	text, err := os.ReadFile(base + ".json")
	if err != nil {
		t.Fatal(err)
	}

	e := &expected{}
	if err := json.Unmarshal(text, e); err != nil {
		t.Fatal(err)
	}
	if e.file, err = safetensors.Open(base + ".safetensors"); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { e.file.Close() })
	return e
}

func (e *expected) floats(t *testing.T, name string) []float32 {
	t.Helper()
	raw, err := e.file.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}

	x := make([]float32, len(raw)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}

	return x
}

// ids reads an I64 tensor; a vector becomes one row.
func (e *expected) ids(t *testing.T, name string) [][]int32 {
	t.Helper()
	raw, err := e.file.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}

	info, _ := e.file.Info(name)
	cols := int(info.Shape[len(info.Shape)-1])
	var rows [][]int32
	for i := 0; i < len(raw)/8; i += cols {
		row := make([]int32, cols)
		for j := range row {
			row[j] = int32(binary.LittleEndian.Uint64(raw[8*(i+j):]))
		}
		rows = append(rows, row)
	}

	return rows
}

// near compares a tensor, relative to its largest value.
// pathOf is the longest way through a model, of sequences of up to so many tokens.
func pathOf(m *Model, tokens int) kerneltest.Path {
	c := m.Config()
	return kerneltest.Path{
		Blocks: m.Blocks(), Hidden: c.Hidden, Inner: max(c.Inner, c.ExpertInner, c.SharedInner), Heads: c.Heads,
		HeadDim: c.HeadDim,
		Vocab:   c.Vocab, Tokens: tokens,
	}
}

func near(t *testing.T, what string, got, want []float32, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}

	worst, top := 0.0, 0.0
	for i, w := range want {
		d := math.Abs(float64(got[i]) - float64(w))
		if !(d <= worst) {
			worst = d
		}
		top = max(top, math.Abs(float64(w)))
	}

	if !(worst <= tol*top) {
		t.Errorf("%s: off by %.3g of %.3g, more than %g", what, worst/top, top, tol)
	}
}

func values(m kernels.Mat) []float32 {
	out := make([]float32, 0, m.Len())
	for i := range m.Rows {
		out = append(out, m.RowF32(i)...)
	}
	return out
}

// Every model of the oracle, with both spellings of the configuration, on both host devices: logits, hidden states,
// losses, parameter count, greedy continuation.
func TestForwardOracle(t *testing.T) {
	root := oracleDir(t, "models")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "oracle.safetensors")); err != nil {
			continue
		}

		configs, _ := filepath.Glob(filepath.Join(dir, "config*.json"))
		for _, c := range configs {
			config := filepath.Base(c)
			t.Run(e.Name()+"/"+config, func(t *testing.T) {
				devices(t, func(t *testing.T, dev kernels.Device) {
					m := load(t, withConfig(t, dir, config), dev, Options{})
					checkForward(t, m, openExpected(t, filepath.Join(dir, "oracle")))
				})
			})
		}
	}
}

// The trained models, the same way, and the likelihoods of texts.
func TestTrainedModelsOracle(t *testing.T) {
	root := oracleDir(t, "models/real")
	models := shared(t, "", "data/models")
	cases, err := filepath.Glob(filepath.Join(root, "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range cases {
		base := strings.TrimSuffix(c, ".safetensors")
		t.Run(filepath.Base(base), func(t *testing.T) {
			devices(t, func(t *testing.T, dev kernels.Device) {
				dir := filepath.Join(models, filepath.Base(base))
				if _, err := os.Stat(dir); err != nil {
					t.Skipf("%s is not there", dir)
				}

				m := load(t, dir, dev, Options{})
				want := openExpected(t, base)
				checkForward(t, m, want)
				if dev.Info().Name != "ref" { // the plain loops would take half a minute
					checkTexts(t, m, want)
				}
			})
		})
	}
}

func checkForward(t *testing.T, m *Model, want *expected) {
	ids := want.ids(t, "input_ids")
	r, err := m.Forward(context.Background(), ids, ForwardOptions{Logits: true, Hidden: true})
	if err != nil {
		t.Fatal(err)
	}

	for i, h := range r.Hidden {
		name := "hidden." + string(rune('0'+i))
		near(t, name, values(h), want.floats(t, name), tolTensor)
	}

	near(t, "logits", values(r.Logits), want.floats(t, "logits"), tolTensor)
	checkLosses(t, r, want)
	if n := m.NumParameters(); n != want.NumParameters {
		t.Errorf("%d parameters, want %d", n, want.NumParameters)
	}

	plain, err := m.Forward(context.Background(), ids, ForwardOptions{})
	if err != nil {
		t.Fatal(err)
	}

	checkLosses(t, plain, want)
	if len(want.Greedy.NewTokens) == 0 {
		return
	}

	got, err := m.Generate(context.Background(), want.Greedy.Prompt,
		GenerateOptions{MaxTokens: len(want.Greedy.NewTokens), Stop: []int32{}})
	if err != nil || !slices.Equal(got, want.Greedy.NewTokens) {
		t.Errorf("greedy: %v (%v), want %v", got, err, want.Greedy.NewTokens)
	}
}

func checkLosses(t *testing.T, r *Result, want *expected) {
	t.Helper()
	if d := math.Abs(r.Loss - want.Loss); !(d <= tolLoss) {
		t.Errorf("loss %.9f, want %.9f", r.Loss, want.Loss)
	}
	checkTokens(t, slices.Concat(r.LossPerToken...), want.floats(t, "loss_per_token"), tolToken)
}

func checkTokens(t *testing.T, got []float64, want []float32, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d losses, want %d", len(got), len(want))
	}
	for i, l := range got {
		if d := math.Abs(l - float64(want[i])); !(d <= tol) {
			t.Fatalf("loss %d is %.7f, want %.7f", i, l, want[i])
		}
	}
}

func checkTexts(t *testing.T, m *Model, want *expected) {
	for text, nll := range want.NLL {
		ids := want.ids(t, "nll."+text+".input_ids")
		flat := slices.Concat(ids...)
		var windows [][]int32
		for _, n := range nll.Windows {
			windows, flat = append(windows, flat[:n]), flat[n:]
		}

		r, err := m.Forward(context.Background(), windows, ForwardOptions{})
		if err != nil {
			t.Fatal(err)
		}

		if d := math.Abs(r.Loss - nll.Mean); !(d <= tolLoss) {
			t.Errorf("%s: %.9f, want %.9f", text, r.Loss, nll.Mean)
		}

		checkTokens(t, slices.Concat(r.LossPerToken...), want.floats(t, "nll."+text+".per_token"), tolText)
	}
}

// The frequencies of every rope type, also at the sizes of published models.
func TestInvFreqOracle(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(oracleDir(t, "models/rope"), "inv_freq.json"))
	if err != nil {
		t.Fatal(err)
	}

	var cases []struct {
		Name            string
		HeadDim         int             `json:"head_dim"`
		MaxPositions    int             `json:"max_position_embeddings"`
		SeqLen          int             `json:"seq_len"`
		Parameters      json.RawMessage `json:"rope_parameters"`
		InvFreq         []float64       `json:"inv_freq"`
		AttentionFactor float64         `json:"attention_factor"`
	}

	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}

	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			config, err := json.Marshal(map[string]any{
				"model_type": "llama", "vocab_size": 8, "hidden_size": c.HeadDim, "num_hidden_layers": 1,
				"num_attention_heads": 1,
				"intermediate_size":   8, "max_position_embeddings": c.MaxPositions, "rope_parameters": c.Parameters,
			})
			if err != nil {
				t.Fatal(err)
			}

			parsed, err := arch.ParseConfig("config.json", config)
			if err != nil {
				t.Fatal(err)
			}

			freq, gain := parsed.Rope.InvFreq(c.SeqLen)
			if math.Abs(gain-c.AttentionFactor) > 1e-6*c.AttentionFactor || len(freq) != len(c.InvFreq) {
				t.Fatalf("gain %g, %d frequencies; want %g, %d", gain, len(freq), c.AttentionFactor, len(c.InvFreq))
			}

			for i, f := range freq {
				if math.Abs(f-c.InvFreq[i]) > 1e-6*c.InvFreq[i] {
					t.Errorf("frequency %d is %g, want %g", i, f, c.InvFreq[i])
				}
			}
		})
	}
}
