package quantize

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/modeltest"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// The widths of the blocks of [deep]. Such a block's matrices take 4·64·64 + 3·96·64 elements, 139,264 bytes in F32,
// its Hessians 172,032 bytes.
const (
	deepHidden  = 64
	deepInner   = 96
	deepWeights = 4 * (4*deepHidden*deepHidden + 3*deepInner*deepHidden)
)

// deep writes a Llama of small blocks of random weights.
func deep(t *testing.T, dir string, blocks int) {
	t.Helper()
	var infos []safetensors.Info
	add := func(name string, shape ...int64) {
		infos = append(infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: shape})
	}
	add("model.embed_tokens.weight", 61, deepHidden)
	add("model.norm.weight", deepHidden)
	for l := range blocks {
		p := fmt.Sprintf("model.layers.%d.", l)
		add(p+"input_layernorm.weight", deepHidden)
		add(p+"post_attention_layernorm.weight", deepHidden)
		for _, name := range []string{"q", "k", "v", "o"} {
			add(p+"self_attn."+name+"_proj.weight", deepHidden, deepHidden)
		}
		add(p+"mlp.gate_proj.weight", deepInner, deepHidden)
		add(p+"mlp.up_proj.weight", deepInner, deepHidden)
		add(p+"mlp.down_proj.weight", deepHidden, deepInner)
	}

	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, info := range infos {
		values := make([]float32, info.Elements())
		for i := range values {
			values[i] = float32(rng.NormFloat64()) * 0.1
			if len(info.Shape) == 1 {
				values[i]++
			}
		}
		data := make([]byte, 4*len(values))
		if err := dtype.Encode(data, values, safetensors.F32); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	config, err := json.Marshal(map[string]any{
		"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "hidden_size": deepHidden,
		"intermediate_size": deepInner, "num_hidden_layers": blocks, "num_attention_heads": 4,
		"num_key_value_heads": 2 * 2, "vocab_size": 61, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
		"tie_word_embeddings": true, "hidden_act": "silu", "rope_theta": 10000.0,
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// liveHeap is what the garbage collector finds in use, which is also where matrices in host memory are.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // what pools keep goes with the second collection
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestMemory: what a run holds is a block and what was measured of it, however many blocks there are, for every method:
// over 8 and over 64 of them the most that is in use at the end of a block differs by less than a quarter of its
// weights for each block.
func TestMemory(t *testing.T) {
	dirs := map[int]string{}
	for _, blocks := range []int{8, 64} {
		dirs[blocks] = filepath.Join(t.TempDir(), "m")
		deep(t, dirs[blocks], blocks)
	}
	calib := corpus.Windows{SeqLen: 16, Hash: "ids", Source: "ids"}
	for i := range 4 {
		var ids []int32
		for j := range 16 {
			ids = append(ids, int32((7*i+j*j)%61))
		}
		calib.IDs = append(calib.IDs, ids)
	}

	for name, change := range map[string]func(o *Options){
		"rtn": func(*Options) {}, "imatrix_mse": func(o *Options) { o.Range = RangeImatrix },
		"hqq": func(o *Options) { o.Method = HQQ }, "gptq": func(o *Options) { o.Method = GPTQ },
		"awq": func(o *Options) { o.Method = AWQ }, "awq+gptq": func(o *Options) { o.Method = AWQGPTQ },
		"smooth": func(o *Options) {
			o.Scheme, _ = SchemeByName("w8a8")
			o.Group = 0
			o.Smooth = 0.5
		},
		"sparse": func(o *Options) {
			o.Method = GPTQ
			o.Sparsity = 0.5
		},
	} {
		t.Run(name, func(t *testing.T) {
			most := map[int]int64{}
			for blocks, dir := range dirs {
				m := open(t, dir, 2)
				o := options(t, "w4a16_asym", RTN, filepath.Join(t.TempDir(), "out"))
				change(&o)
				before := liveHeap()
				o.Matrix = func(r Matrix) {
					if r.Role == "down" && r.Block%4 == 3 {
						most[blocks] = max(most[blocks], liveHeap()-before)
					}
				}
				if _, err := Model(ctx, m, calib, o); err != nil {
					t.Fatal(err)
				}
			}

			// Of a block stay the names, places and checksums of its 30 tensors and its part of the report, by every
			// method the same 28 kB, and nothing of the size of its weights or of what was measured.
			if grown := (most[64] - most[8]) / (64 - 8); grown > deepWeights/4 {
				t.Errorf("%d bytes over 8 blocks, %d over 64", most[8], most[64])
			}
		})
	}
}

// TestMappedPages: the pages of the model's files that a run has read are given back block by block, also where nothing
// is measured and nothing changed in memory.
func TestMappedPages(t *testing.T) {
	const blocks = 64
	dir := filepath.Join(t.TempDir(), "m")
	deep(t, dir, blocks)
	m := open(t, dir, 2)
	o := options(t, "w4a16", RTN, filepath.Join(t.TempDir(), "out"))

	first, most := int64(0), int64(0)
	o.Matrix = func(r Matrix) {
		switch {
		case r.Block == 1 && first == 0: // what the program itself needs is there by now
			first = modeltest.Mapped(t)
		case r.Block > 1:
			most = max(most, modeltest.Mapped(t)-first)
		}
	}
	if _, err := Model(ctx, m, corpus.Windows{}, o); err != nil {
		t.Fatal(err)
	}
	if size := m.DataSize(); most > size/4 {
		t.Errorf("%d bytes of files are in memory, of a model of %d", most, size)
	}
}
