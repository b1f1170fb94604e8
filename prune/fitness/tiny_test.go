package fitness

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// tinyConfig is that of a Llama of one decoder layer.
const tinyConfig = `{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":32,"intermediate_size":48,
"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4,"vocab_size":61,"rms_norm_eps":1e-5,
"max_position_embeddings":64,"tie_word_embeddings":true,"hidden_act":"silu","rope_theta":10000.0}`

// tiny writes a model of random BF16 weights.
func tiny(t testing.TB) string {
	t.Helper()
	const hidden, inner = 32, 48
	var tensors []safetensors.Info
	add := func(name string, shape ...int64) {
		tensors = append(tensors, safetensors.Info{Name: name + ".weight", DType: safetensors.BF16, Shape: shape})
	}

	add("model.embed_tokens", 61, hidden)
	add("model.norm", hidden)

	const layer = "model.layers.0."
	add(layer+"input_layernorm", hidden)
	add(layer+"post_attention_layernorm", hidden)
	for _, name := range []string{"q", "k", "v", "o"} {
		add(layer+"self_attn."+name+"_proj", hidden, hidden)
	}
	add(layer+"mlp.gate_proj", inner, hidden)
	add(layer+"mlp.up_proj", inner, hidden)
	add(layer+"mlp.down_proj", hidden, inner)

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(tinyConfig), 0o600); err != nil {
		t.Fatal(err)
	}

	w, err := safetensors.CreateDir(dir, tensors, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	rng := rand.New(rand.NewPCG(7, 1))
	for _, info := range tensors {
		var raw []byte
		for range info.Elements() {
			v := 0.2 * rng.NormFloat64()
			if len(info.Shape) == 1 {
				v++
			}
			raw = binary.LittleEndian.AppendUint16(raw, kernels.ToBF16(float32(v)))
		}

		if err := w.WriteTensor(info.Name, raw); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return dir
}
