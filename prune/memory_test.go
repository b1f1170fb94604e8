package prune

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// wide is a Llama of about 22 MB a block.
func wide(layers int) *checkpoint {
	const hidden, inner = 1024, 2304
	c := &checkpoint{dtype: safetensors.BF16, shard: 60 << 20, config: map[string]any{
		"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "hidden_size": hidden,
		"intermediate_size": inner,
		"num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4096,
		"rms_norm_eps":            1e-5,
		"max_position_embeddings": 64, "tie_word_embeddings": true, "hidden_act": "silu", "rope_theta": 10000.0,
	}}

	c.add("model.embed_tokens.weight", 4096, hidden)

	for l := range layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		c.add(p+"input_layernorm.weight", hidden)
		for _, name := range []string{"q", "k", "v", "o"} {
			c.add(p+"self_attn."+name+"_proj.weight", hidden, hidden)
		}

		c.add(p+"post_attention_layernorm.weight", hidden)
		c.add(p+"mlp.gate_proj.weight", inner, hidden)
		c.add(p+"mlp.up_proj.weight", inner, hidden)
		c.add(p+"mlp.down_proj.weight", hidden, inner)
	}

	c.add("model.norm.weight", hidden)
	return c
}

// writeLarge makes the folder with the same random megabyte again and again for weights.
func (c *checkpoint) writeLarge(t testing.TB, dir string) {
	t.Helper()
	config := *c
	config.tensors = nil
	config.write(t, dir, nil)
	if err := os.Remove(filepath.Join(dir, safetensors.SingleName)); err != nil {
		t.Fatal(err)
	}

	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, 1<<19)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}

	megabyte := encode(c.dtype, values)
	w, err := safetensors.CreateDir(dir, c.tensors, nil, safetensors.DirOptions{MaxShardSize: c.shard})
	if err != nil {
		t.Fatal(err)
	}

	for _, info := range c.tensors {
		size, _ := info.DType.ByteSize(info.Shape)
		for at := int64(0); at < size; at += 1 << 20 {
			if err := w.WriteAt(info.Name, megabyte[:min(1<<20, size-at)], at); err != nil {
				t.Fatal(err)
			}
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

// memoryChild prunes a folder without calibration and prints the largest resident memory of the process, in kB.
func memoryChild(dir string) int {
	err := func() error {
		dev, err := device.Open("cpu", device.Options{Threads: 2})
		if err != nil {
			return err
		}

		m, err := lm.Load(ctx, filepath.Join(dir, "in"), dev, lm.Options{Stream: true})
		if err != nil {
			return err
		}

		s, err := m.NewSaver(filepath.Join(dir, "out"), lm.SaveOptions{})
		if err != nil {
			return err
		}

		_, err = Model(ctx, m, corpus.Windows{}, Options{Metric: Magnitude(), Sparsity: .5, Out: s})
		return err
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}

	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		if peak, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			fmt.Println(strings.TrimSuffix(strings.TrimSpace(peak), " kB"))
		}
	}

	return 0
}

// Peak memory of data-free pruning does not grow with the model.
func TestPeakMemoryDoesNotGrow(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	peak := map[int]int{}
	for _, layers := range []int{2, 6} {
		dir := t.TempDir()
		wide(layers).writeLarge(t, filepath.Join(dir, "in"))
		cmd := exec.Command(exe, "-test.run=^$")
		cmd.Env = append(os.Environ(), childEnv+"="+dir, childEnv+"_METRIC=memory")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}

		if peak[layers], err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
			t.Fatal(err)
		}
	}

	t.Logf("peak with 2 and 6 blocks: %d and %d kB", peak[2], peak[6])
	// Four more blocks are 88 MB; what the collector has not freed yet, and a few pages a block, may differ.
	if grown := peak[6] - peak[2]; grown > 40<<10 {
		t.Errorf("four more blocks of 22 MB take %d kB more memory", grown)
	}
}
