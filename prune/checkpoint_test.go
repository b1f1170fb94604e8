package prune

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

var ctx = context.Background()

// checkpoint describes a small random model.
type checkpoint struct {
	config  map[string]any
	tensors []safetensors.Info
	dtype   safetensors.DType
	shard   int64 // bytes a file; 0: one file
}

func (c *checkpoint) add(name string, shape ...int64) {
	c.tensors = append(c.tensors, safetensors.Info{Name: name, DType: c.dtype, Shape: shape})
}

// llama is a Llama with grouped queries, BF16; inner is odd on purpose for N:M patterns.
func llama(layers int) *checkpoint {
	c := &checkpoint{dtype: safetensors.BF16, config: map[string]any{
		"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "hidden_size": 32,
		"intermediate_size": 44,
		"num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 61,
		"rms_norm_eps":            1e-5,
		"max_position_embeddings": 64, "tie_word_embeddings": true, "hidden_act": "silu", "rope_theta": 10000.0,
		"torch_dtype": "bfloat16",
	}}

	c.add("model.embed_tokens.weight", 61, 32)

	for l := range layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		c.add(p+"input_layernorm.weight", 32)
		c.add(p+"self_attn.q_proj.weight", 32, 32)
		c.add(p+"self_attn.k_proj.weight", 16, 32)
		c.add(p+"self_attn.v_proj.weight", 16, 32)
		c.add(p+"self_attn.o_proj.weight", 32, 32)
		c.add(p+"post_attention_layernorm.weight", 32)
		c.add(p+"mlp.gate_proj.weight", 44, 32)
		c.add(p+"mlp.up_proj.weight", 44, 32)
		c.add(p+"mlp.down_proj.weight", 32, 44)
	}

	c.add("model.norm.weight", 32)
	return c
}

// gpt2 stores its matrices as [in, out], with q, k and v in one; F32.
func gpt2() *checkpoint {
	c := &checkpoint{dtype: safetensors.F32, config: map[string]any{
		"model_type": "gpt2", "architectures": []string{"GPT2LMHeadModel"}, "n_embd": 24, "n_head": 3, "n_layer": 2,
		"n_positions": 48,
		"vocab_size":  61, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
	}}

	c.add("transformer.wte.weight", 61, 24)
	c.add("transformer.wpe.weight", 48, 24)

	for l := range 2 {
		p := fmt.Sprintf("transformer.h.%d.", l)
		for _, t := range []struct {
			name    string
			in, out int64
		}{{"attn.c_attn", 24, 72}, {"attn.c_proj", 24, 24}, {"mlp.c_fc", 24, 96}, {"mlp.c_proj", 96, 24}} {
			c.add(p+t.name+".weight", t.in, t.out)
			c.add(p+t.name+".bias", t.out)
		}

		for _, n := range []string{"ln_1", "ln_2"} {
			c.add(p+n+".weight", 24)
			c.add(p+n+".bias", 24)
		}
	}

	c.add("transformer.ln_f.weight", 24)
	c.add("transformer.ln_f.bias", 24)
	return c
}

// mixtral has four experts, two for each token; F16.
func mixtral() *checkpoint {
	c := &checkpoint{dtype: safetensors.F16, config: map[string]any{
		"model_type": "mixtral", "architectures": []string{"MixtralForCausalLM"}, "hidden_size": 32,
		"intermediate_size": 40,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 61,
		"rms_norm_eps":            1e-5,
		"max_position_embeddings": 64, "tie_word_embeddings": false, "hidden_act": "silu", "rope_theta": 10000.0,
		"num_local_experts": 4, "num_experts_per_tok": 2,
	}}

	c.add("model.embed_tokens.weight", 61, 32)
	c.add("lm_head.weight", 61, 32)

	for l := range 2 {
		p := fmt.Sprintf("model.layers.%d.", l)
		c.add(p+"input_layernorm.weight", 32)
		c.add(p+"self_attn.q_proj.weight", 32, 32)
		c.add(p+"self_attn.k_proj.weight", 16, 32)
		c.add(p+"self_attn.v_proj.weight", 16, 32)
		c.add(p+"self_attn.o_proj.weight", 32, 32)
		c.add(p+"post_attention_layernorm.weight", 32)
		c.add(p+"block_sparse_moe.gate.weight", 4, 32)

		for e := range 4 {
			q := fmt.Sprintf("%sblock_sparse_moe.experts.%d.", p, e)
			c.add(q+"w1.weight", 40, 32)
			c.add(q+"w2.weight", 32, 40)
			c.add(q+"w3.weight", 40, 32)
		}
	}

	c.add("model.norm.weight", 32)
	return c
}

// write makes the folder. change may edit the values of a tensor before they are stored.
func (c *checkpoint) write(t testing.TB, dir string, change func(name string, v []float32)) string {
	t.Helper()
	config, err := json.Marshal(c.config)
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}

	w, err := safetensors.CreateDir(dir, c.tensors, nil, safetensors.DirOptions{MaxShardSize: c.shard})
	if err != nil {
		t.Fatal(err)
	}

	for i, info := range c.tensors {
		rng := rand.New(rand.NewPCG(7, uint64(i)))
		v := make([]float32, info.Elements())
		for k := range v {
			v[k] = float32(rng.NormFloat64()) * 0.2
			if len(info.Shape) == 1 {
				v[k]++
			}
		}

		if change != nil {
			change(info.Name, v)
		}
		if err := w.WriteTensor(info.Name, encode(c.dtype, v)); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return dir
}

func encode(d safetensors.DType, v []float32) (out []byte) {
	for _, f := range v {
		switch d {
		case safetensors.BF16:
			out = binary.LittleEndian.AppendUint16(out, kernels.ToBF16(f))
		case safetensors.F16:
			out = binary.LittleEndian.AppendUint16(out, kernels.ToF16(f))
		default:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(f))
		}
	}

	return out
}

// windows are random token ids.
func windows(n, seqlen, vocab int) corpus.Windows {
	rng := rand.New(rand.NewPCG(3, 5))
	ids := make([][]int32, n)
	for i := range ids {
		for range seqlen {
			ids[i] = append(ids[i], int32(rng.IntN(vocab)))
		}
	}
	return corpus.New(ids, "random")
}

// load opens a model on the CPU with some threads.
func load(t testing.TB, dir string, threads int, o lm.Options) *lm.Model {
	t.Helper()
	dev, err := device.Open("cpu", device.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}

	m, err := lm.Load(ctx, dir, dev, o)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { m.Close() })
	return m
}

// prunedTo prunes a folder to another and gives the report.
func prunedTo(t testing.TB, m *lm.Model, calib corpus.Windows, o Options, out string) *Report {
	t.Helper()
	s, err := m.NewSaver(out, lm.SaveOptions{Fingerprint: "test"})
	if err != nil {
		t.Fatal(err)
	}

	o.Out = s
	r, err := Model(ctx, m, calib, o)
	if err != nil {
		t.Fatal(err)
	}

	return r
}

// contents reads all files of a folder.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	all := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(data)
	}

	return all
}

// tensorsOf reads all tensors of a folder or file.
func tensorsOf(t testing.TB, path string) map[string]string {
	t.Helper()
	d, err := safetensors.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	all := map[string]string{}
	for _, name := range d.Names() {
		data, err := d.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(data)
	}

	return all
}
