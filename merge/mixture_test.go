package merge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/modelcompress/compress/internal/modeltest"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/mergetest"
	"github.com/modelcompress/compress/safetensors"
)

// mixtureText makes a mixture of the project's small models without prompts.
const mixtureText = `base_model: base
gate_mode: random
experts:
- {source_model: sums, noise_scale: 0.01}
- {source_model: tales}
`

// nanoFolder holds the project's small models.
var nanoFolder = filepath.Join("..", "testdata", "nano")

func parseMixture(t *testing.T, text string) Recipe {
	t.Helper()
	m, err := Parse(filepath.Join(nanoFolder, "mixture.yaml"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMixtureIsResumed: interrupted at any report of progress and continued, the files are those of an undisturbed run.
func TestMixtureIsResumed(t *testing.T) {
	m := parseMixture(t, mixtureText)
	whole := filepath.Join(t.TempDir(), "out")
	first, err := Mix(context.Background(), m, whole, MixtureOptions{Seed: 4})
	if err != nil {
		t.Fatal(err)
	}

	if first.Kind != "mixtral" || first.Experts != 2 || first.BytesOut == 0 {
		t.Errorf("%+v", first)
	}

	for _, stop := range []int64{1, first.BytesOut / 2, first.BytesOut - 1} {
		out := filepath.Join(t.TempDir(), "out")
		ctx, cancel := context.WithCancel(context.Background())
		_, err := Mix(ctx, m, out, MixtureOptions{Seed: 4, Threads: 2, Progress: func(p Progress) {
			if p.Done >= stop {
				cancel()
			}
		}})

		cancel()
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}

		if _, err := Mix(context.Background(), m, out, MixtureOptions{Seed: 4, Resume: true}); err != nil {
			t.Fatal(err)
		}

		mergetest.Same(t, whole, out)
	}

	if _, err := Mix(context.Background(), m, whole, MixtureOptions{Seed: 4}); !errors.Is(err, ErrExists) {
		t.Errorf("%v", err)
	}
}

func TestMixtureOptionsAreChecked(t *testing.T) {
	m := parseMixture(t, mixtureText)
	out := filepath.Join(t.TempDir(), "out")
	for name, o := range map[string]MixtureOptions{
		"workers": {Threads: -1}, "memory": {Memory: -1}, "layout": {Layout: "flat"}, "dtype": {DType: "int8"},
		"shard": {MaxShard: -1},
	} {
		if _, err := Mix(context.Background(), m, out, o); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", name, err)
		}
	}

	states := parseMixture(t, "base_model: base\nexperts:\n- {source_model: sums, positive_prompts: [a]}\n- "+
		"{source_model: tales, positive_prompts: [b]}\n")
	if _, err := Mix(context.Background(), states, out, MixtureOptions{}); !states.NeedsDevice() ||
		!errors.Is(err, ErrOption) {
		t.Errorf("%v", err)
	}

	if _, err := Mix(context.Background(), m, filepath.Join(nanoFolder, "sums"),
		MixtureOptions{Overwrite: true}); !errors.Is(err, ErrInPlace) {
		t.Errorf("%v", err)
	}

	if _, err := Parse("x.yaml", []byte("experts: 1\n")); !errors.Is(err, ErrRecipe) || Excerpts(err) == "" {
		t.Errorf("%v", err)
	}
}

// bigModel writes a Llama of zeros that takes no space on the disk.
func bigModel(t *testing.T, dir string, layers, hidden, inner int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}

	config := fmt.Sprintf(
		`{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d,
		"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "max_position_embeddings": 64}`, hidden, inner, layers)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}

	h, n := int64(hidden), int64(inner)
	list := []safetensors.Info{
		{Name: "model.embed_tokens.weight", Shape: []int64{64, h}},
		{Name: "model.norm.weight", Shape: []int64{h}},
	}

	for l := range layers {
		for name, shape := range map[string][]int64{
			"input_layernorm": {h}, "post_attention_layernorm": {h}, "self_attn.q_proj": {h, h},
			"self_attn.k_proj": {h, h}, "self_attn.v_proj": {h, h},
			"self_attn.o_proj": {h, h}, "mlp.gate_proj": {n, h}, "mlp.up_proj": {n, h}, "mlp.down_proj": {h, n},
		} {
			list = append(list, safetensors.Info{Name: fmt.Sprintf("model.layers.%d.%s.weight", l, name), Shape: shape})
		}
	}

	for i := range list {
		list[i].DType = safetensors.BF16
	}
	if err := job.WriteZeros(dir, list); err != nil {
		t.Fatal(err)
	}
}

// TestMixtureKeepsToItsMemory: of anonymous memory it takes no more than the options say, far less than a
// single matrix of the models; what it is allowed does not show in the output.
func TestMixtureKeepsToItsMemory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		bigModel(t, filepath.Join(dir, name), 1, 512, 8192)
	}

	m, err := Parse(filepath.Join(dir, "moe.yaml"),
		[]byte("base_model: a\ngate_mode: random\nexperts: [{source_model: a, noise_scale: 0.1}, {source_model: b}]\n"))
	if err != nil {
		t.Fatal(err)
	}

	const allowed = 3 << 20 // a matrix is 8 MiB, 16 as floats
	debug.FreeOSMemory()
	before, most := modeltest.Anonymous(t), int64(0)
	_, err = Mix(context.Background(), m, filepath.Join(dir, "small"),
		MixtureOptions{Threads: 4, Memory: allowed, Progress: func(Progress) {
			most = max(most, modeltest.Anonymous(t)-before)
		}})
	if err != nil {
		t.Fatal(err)
	}

	// The collector lets garbage lie until it has doubled, and goroutines have stacks: the program's own
	// overhead, whatever it works on.
	if overhead := int64(4 << 20); most == 0 || most > allowed+overhead {
		t.Errorf("%d bytes of anonymous memory, %d allowed", most, allowed)
	}
	if _, err := Mix(context.Background(), m, filepath.Join(dir, "large"), MixtureOptions{Threads: 1}); err != nil {
		t.Fatal(err)
	}

	mergetest.Same(t, filepath.Join(dir, "small"), filepath.Join(dir, "large"))

	if _, err := Mix(context.Background(), m, filepath.Join(dir, "none"),
		MixtureOptions{Memory: 1 << 12}); !errors.Is(err, ErrMemory) {
		t.Errorf("%v", err)
	}
}
