package weightstest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/safetensors"
)

// ggufNames are the names that llama.cpp has for the tensors of a llama, in the order of its files. {} is the block.
var ggufNames = [][2]string{
	{"token_embd.weight", "model.embed_tokens.weight"},
	{"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"},
	{"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"},
	{"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"},
	{"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"},
	{"blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"},
	{"blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight"},
	{"blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight"},
	{"blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight"},
	{"blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight"},
	{"output_norm.weight", "model.norm.weight"},
}

// llama is what is needed of the configuration of the models that are written as GGUF.
type llama struct {
	types func(name string) gguf.Type // of matrices; nil: see [GGUF]

	Blocks     int     `json:"num_hidden_layers"`
	Hidden     int     `json:"hidden_size"`
	Inner      int     `json:"intermediate_size"`
	Heads      int     `json:"num_attention_heads"`
	KVHeads    int     `json:"num_key_value_heads"`
	HeadSize   int     `json:"head_dim"`
	Positions  int     `json:"max_position_embeddings"`
	Epsilon    float32 `json:"rms_norm_eps"`
	Vocabulary int     `json:"vocab_size"`
	Rope       struct {
		Theta float32 `json:"rope_theta"`
	} `json:"rope_parameters"`
}

// GGUF writes a small llama with tied embeddings as a GGUF file, its matrices as Q8_0 and its embeddings as BF16, and a
// folder with the same values as floating-point numbers. The files beside these are those that are made of the GGUF
// file.
func GGUF(t testing.TB, dir string) (path, plain string) {
	t.Helper()
	return writeGGUF(t, dir, nil)
}

// GGUFOf is [GGUF] with every matrix in the type that types gives for its name in the file, which must be one that is
// written.
func GGUFOf(t testing.TB, dir string, types func(name string) gguf.Type) (path, plain string) {
	t.Helper()
	return writeGGUF(t, dir, types)
}

func writeGGUF(t testing.TB, dir string, types func(name string) gguf.Type) (path, plain string) {
	t.Helper()
	src, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()

	c := llama{types: types}
	unmarshal(t, filepath.Join(dir, "config.json"), &c)

	var infos []gguf.Info
	var coded [][]byte
	var floats []tensor
	for _, b := range ggufNames {
		blocks := 1
		if strings.Contains(b[0], "{}") {
			blocks = c.Blocks
		}
		for l := range blocks {
			name := strings.Replace(b[0], "{}", fmt.Sprint(l), 1)
			info, data, value := c.tensor(t, src, name, strings.Replace(b[1], "{}", fmt.Sprint(l), 1))
			infos = append(infos, info)
			coded = append(coded, data)
			floats = append(floats, value)
		}
	}

	path = filepath.Join(t.TempDir(), "model.gguf")
	w, err := gguf.Create(path, infos, c.metadata(t, dir), gguf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, info := range infos {
		if err := w.WriteTensor(info.Name, coded[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	plain = t.TempDir()
	write(t, plain, plain, floats, nil)
	beside(t, path, plain)
	return path, plain
}

// tensor is how a tensor lies in the file, and its values in the checkpoint.
func (c *llama) tensor(t testing.TB, src *safetensors.Dir, name, from string) (gguf.Info, []byte, tensor) {
	t.Helper()
	info, _ := src.Info(from)
	data, err := src.Bytes(from)
	if err != nil {
		t.Fatal(err)
	}
	if name == "token_embd.weight" && c.types == nil {
		return gguf.Info{Name: name, Type: gguf.BF16, Shape: info.Shape}, data, tensor{info, data}
	}

	w := make([]float32, info.Elements())
	if err := dtype.Decode(w, data, info.DType); err != nil {
		t.Fatal(err)
	}
	if len(info.Shape) == 1 {
		value := encoded(t, from, safetensors.F32, info.Shape, w)
		return gguf.Info{Name: name, Type: gguf.F32, Shape: info.Shape}, value.data, value
	}

	kind := gguf.Q8_0
	var codes []byte
	var values []float32
	if c.types == nil {
		codes, values = q8(w)
	} else {
		kind = c.types(name)
		codes, values = blocked(t, kind, w, int(info.Shape[1]))
	}

	row := len(codes) / int(info.Shape[0])
	if strings.Contains(name, "attn_q") || strings.Contains(name, "attn_k") {
		codes = c.paired(codes, row)
	}
	return gguf.Info{Name: name, Type: kind, Shape: info.Shape}, codes,
		encoded(t, from, safetensors.F32, info.Shape, values)
}

// blocked is rows of cols elements in blocks of a type, and the values that these have.
func blocked(t testing.TB, kind gguf.Type, w []float32, cols int) (codes []byte, values []float32) {
	t.Helper()
	f, ok := quantized.BlockNamed(kind.String())
	if !ok {
		t.Fatalf("no blocks of %v", kind)
	}

	codes, values = make([]byte, f.Size(len(w))), make([]float32, len(w))
	if err := f.Encode(codes, w, cols, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Decode(values, codes); err != nil {
		t.Fatal(err)
	}
	return codes, values
}

// q8 is blocks of 32 elements: a scale, a float16, and integers of 8 bits.
func q8(w []float32) (codes []byte, values []float32) {
	const size = 32
	for i := 0; i < len(w); i += size {
		scale := power(w[i:i+size], 127)
		var d [2]byte
		_ = dtype.Encode(d[:], []float32{scale}, safetensors.F16)
		codes = append(codes, d[:]...)
		for _, v := range w[i : i+size] {
			q := nearest(v, scale, -127, 127)
			codes = append(codes, byte(int8(q)))
			values = append(values, float32(q)*scale)
		}
	}
	return codes, values
}

// paired is the rows of a projection of queries or keys as llama.cpp has them: of each head, channels that are rotated
// together beside each other.
func (c *llama) paired(codes []byte, row int) []byte {
	half := c.HeadSize / 2
	var out []byte
	for head := 0; head < len(codes); head += c.HeadSize * row {
		for i := range half {
			for _, channel := range []int{i, half + i} {
				out = append(out, codes[head+channel*row:][:row]...)
			}
		}
	}
	return out
}

// metadata is what a file says about the model and its tokenizer.
func (c *llama) metadata(t testing.TB, dir string) gguf.Metadata {
	t.Helper()
	var file struct {
		Model struct {
			Vocab  map[string]int    `json:"vocab"`
			Merges []json.RawMessage `json:"merges"`
		} `json:"model"`
		Added []struct {
			ID int `json:"id"`
		} `json:"added_tokens"`
	}
	unmarshal(t, filepath.Join(dir, "tokenizer.json"), &file)

	tokens := make([]string, c.Vocabulary)
	kinds := make([]int32, c.Vocabulary)
	for text, id := range file.Model.Vocab {
		tokens[id], kinds[id] = text, 1
	}
	for _, a := range file.Added {
		kinds[a.ID] = 3
	}

	var merges []string
	for _, m := range file.Model.Merges {
		var pair []string
		if err := json.Unmarshal(m, &pair); err != nil {
			pair = make([]string, 1)
			if err := json.Unmarshal(m, &pair[0]); err != nil {
				t.Fatal(err)
			}
		}
		merges = append(merges, strings.Join(pair, " "))
	}

	u32 := func(n int) gguf.Value { return gguf.Of(uint32(n)) }
	return gguf.Metadata{
		{Key: "general.architecture", Value: gguf.Of("llama")},
		{Key: "llama.block_count", Value: u32(c.Blocks)},
		{Key: "llama.context_length", Value: u32(c.Positions)},
		{Key: "llama.embedding_length", Value: u32(c.Hidden)},
		{Key: "llama.feed_forward_length", Value: u32(c.Inner)},
		{Key: "llama.attention.head_count", Value: u32(c.Heads)},
		{Key: "llama.attention.head_count_kv", Value: u32(c.KVHeads)},
		{Key: "llama.attention.key_length", Value: u32(c.HeadSize)},
		{Key: "llama.attention.value_length", Value: u32(c.HeadSize)},
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: gguf.Of(c.Epsilon)},
		{Key: "llama.rope.freq_base", Value: gguf.Of(c.Rope.Theta)},
		{Key: "llama.rope.dimension_count", Value: u32(c.HeadSize)},
		{Key: "llama.vocab_size", Value: u32(c.Vocabulary)},
		{Key: "general.quantization_version", Value: u32(2)},
		{Key: "tokenizer.ggml.model", Value: gguf.Of("gpt2")},
		{Key: "tokenizer.ggml.pre", Value: gguf.Of("qwen2")},
		{Key: "tokenizer.ggml.tokens", Value: gguf.List(tokens)},
		{Key: "tokenizer.ggml.token_type", Value: gguf.List(kinds)},
		{Key: "tokenizer.ggml.merges", Value: gguf.List(merges)},
		{Key: "tokenizer.ggml.eos_token_id", Value: u32(0)},
	}
}

func unmarshal(t testing.TB, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// beside copies what is made of a GGUF file.
func beside(t testing.TB, path, dst string) {
	t.Helper()
	x, err := weights.OpenFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()

	names, err := x.Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := x.Read(name, 1<<24)
		if err == nil {
			err = os.WriteFile(filepath.Join(dst, name), text, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
