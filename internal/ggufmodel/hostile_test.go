package ggufmodel

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/quantized"
	"github.com/modelcompress/compress/lm/arch"
)

// draft is a file that a test changes before it is written.
type draft struct {
	meta  gguf.Metadata
	infos []gguf.Info
	data  map[string][]byte
}

// load reads a file of testdata, with a tokenizer of its vocabulary.
func load(t testing.TB, name string) *draft {
	t.Helper()
	f, err := gguf.Open(filepath.Join("testdata", name+".gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	d := &draft{data: map[string][]byte{}}
	for _, e := range f.Metadata() {
		if e.Key != modelKey {
			d.meta = append(d.meta, e)
		}
	}
	for _, name := range f.Names() {
		info, _ := f.Info(name)
		data, err := f.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}
		d.infos = append(d.infos, info)
		d.data[name] = slices.Clone(data)
	}

	return d
}

func (d *draft) set(key string, v gguf.Value) {
	d.remove(key)
	d.meta = append(d.meta, gguf.Entry{Key: key, Value: v})
}

func (d *draft) remove(key string) {
	d.meta = slices.DeleteFunc(d.meta, func(e gguf.Entry) bool { return e.Key == key })
}

func (d *draft) drop(name string) {
	d.infos = slices.DeleteFunc(d.infos, func(i gguf.Info) bool { return i.Name == name })
}

// add puts a tensor of zeros, or of the given factors, into the file.
func (d *draft) add(name string, shape []int64, data []byte) {
	d.drop(name)
	info := gguf.Info{Name: name, Type: gguf.F32, Shape: shape}
	size, _ := gguf.F32.ByteSize(shape)
	d.infos = append(d.infos, info)
	d.data[name] = append(data, make([]byte, int(size)-len(data))...)
}

// write writes the file.
func (d *draft) write(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "x.gguf")
	w, err := gguf.Create(path, d.infos, d.meta, gguf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range d.infos {
		if err := w.WriteTensor(info.Name, d.data[info.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return path
}

// open writes the file and reads it.
func (d *draft) open(t *testing.T) (*Model, error) {
	t.Helper()
	g, err := gguf.OpenModel(d.write(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })

	return New(g)
}

// pieceVocabulary gives a file the tokens of a SentencePiece model: as many as its table has rows.
func (d *draft) pieceVocabulary() {
	tokens := []string{"<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab", "<|im_end|>"}
	kinds := []int32{2, 3, 3, 1, 1, 1, 1, 1, 4}
	scores := []float32{0, 0, 0, -3, -4, -5, -1, -2, 0}
	for b := len(tokens); b < 24; b++ {
		tokens = append(tokens, fmt.Sprintf("<0x%02X>", b))
		kinds = append(kinds, 6)
		scores = append(scores, 0)
	}
	d.set(modelKey, gguf.Of("llama"))
	d.set(tokensKey, gguf.List(tokens))
	d.set(typesKey, gguf.List(kinds))
	d.set(scoresKey, gguf.List(scores))
	d.set("tokenizer.ggml.bos_token_id", gguf.Of(uint32(1)))
	d.set("tokenizer.ggml.eos_token_id", gguf.Of(uint32(2)))
}

// byteVocabulary gives it those of a byte-level one.
func (d *draft) byteVocabulary() {
	tokens := []string{"a", "b", "c", "Ġ", "ab", "Ġab", "abc", "<|end|>", "<think>"}
	kinds := []int32{1, 1, 1, 1, 1, 1, 1, 3, 4}
	d.set(modelKey, gguf.Of("gpt2"))
	d.set(preKey, gguf.Of("llama-bpe"))
	d.set(tokensKey, gguf.List(tokens))
	d.set(typesKey, gguf.List(kinds))
	d.set(mergesKey, gguf.List([]string{"a b", "Ġ ab", "ab c"}))
	d.set("tokenizer.ggml.eos_token_id", gguf.Of(uint32(7)))
}

// refusals are changes to a sound file, and what the error must name.
var refusals = []struct {
	name   string
	file   string
	change func(d *draft)
	want   error
	words  []string
}{
	{
		"no architecture", "llama", func(d *draft) { d.remove("general.architecture") }, ErrMetadata,
		[]string{"general.architecture", "missing"},
	},
	{
		"architecture that is a number", "llama", func(d *draft) { d.set("general.architecture", gguf.Of(uint8(3))) },
		ErrMetadata,
		[]string{"general.architecture", "not a string"},
	},
	{
		"unknown architecture", "llama", func(d *draft) { d.set("general.architecture", gguf.Of("mamba9")) },
		arch.ErrUnknown,
		[]string{"mamba9", "llama", "command-r"},
	},
	{
		"blocks missing", "llama", func(d *draft) { d.remove("llama.block_count") }, ErrMetadata,
		[]string{"llama.block_count", "missing"},
	},
	{
		"2^63 blocks", "llama", func(d *draft) { d.set("llama.block_count", gguf.Of(uint64(1)<<63)) }, ErrMetadata,
		[]string{"llama.block_count"},
	},
	{
		"no blocks", "llama", func(d *draft) { d.set("llama.block_count", gguf.Of(uint32(0))) }, ErrMetadata,
		[]string{`key "llama.block_count"`, "at least 1"},
	},
	{
		"all blocks predict", "llama", func(d *draft) { d.set("llama.nextn_predict_layers", gguf.Of(uint32(2))) },
		ErrMetadata,
		[]string{`key "llama.nextn_predict_layers"`, "llama.block_count is 2"},
	},
	{
		"more blocks than there are", "llama", func(d *draft) { d.set("llama.block_count", gguf.Of(uint32(7))) },
		ErrMissing,
		[]string{"blk.2.attn_norm.weight", "7 blocks"},
	},
	{
		"fewer blocks", "llama", func(d *draft) { d.set("llama.block_count", gguf.Of(uint32(1))) }, ErrExtra,
		[]string{"blk.1.", "and 4 more"},
	},
	{
		"no heads", "llama", func(d *draft) { d.set("llama.attention.head_count", gguf.Of(uint32(0))) }, ErrMetadata,
		[]string{"num_attention_heads"},
	},
	{
		"heads in a string", "llama", func(d *draft) { d.set("llama.attention.head_count", gguf.Of("4")) }, ErrMetadata,
		[]string{"llama.attention.head_count"},
	},
	{"heads that differ", "llama", func(d *draft) {
		d.set("llama.attention.head_count_kv", gguf.List([]uint32{2, 1}))
	}, ErrMetadata, []string{"llama.attention.head_count_kv", "differs between blocks"}},
	{
		"other heads", "llama", func(d *draft) { d.set("llama.attention.head_count_kv", gguf.Of(uint32(4))) }, ErrShape,
		[]string{"blk.0.attn_k.weight", "llama.attention.head_count_kv"},
	},
	{
		"width of heads", "llama", func(d *draft) { d.set("llama.attention.value_length", gguf.Of(uint32(3))) },
		ErrMetadata,
		[]string{"llama.attention.value_length", "3"},
	},
	{
		"inner width", "llama", func(d *draft) { d.set("llama.feed_forward_length", gguf.Of(uint32(25))) }, ErrShape,
		[]string{"blk.0.ffn_gate.weight", "llama.feed_forward_length"},
	},
	{
		"words", "llama", func(d *draft) { d.set("llama.vocab_size", gguf.Of(uint32(23))) }, ErrShape,
		[]string{"llama.vocab_size", "token_embd.weight", "23"},
	},
	{"epsilon", "llama", func(d *draft) {
		d.set("llama.attention.layer_norm_rms_epsilon", gguf.Of(float32(math.NaN())))
	}, ErrMetadata, []string{"llama.attention.layer_norm_rms_epsilon", "NaN"}},
	{
		"not causal", "llama", func(d *draft) { d.set("llama.attention.causal", gguf.Of(false)) }, ErrMetadata,
		[]string{"llama.attention.causal", "not supported"},
	},
	{
		"tensor missing", "llama", func(d *draft) { d.drop("blk.1.ffn_up.weight") }, ErrMissing,
		[]string{"blk.1.ffn_up.weight"},
	},
	{
		"table missing", "llama", func(d *draft) { d.drop("token_embd.weight") }, ErrMissing,
		[]string{"token_embd.weight"},
	},
	{
		"tensor of another model", "llama", func(d *draft) { d.add("blk.0.ssm_a", []int64{4}, nil) }, ErrExtra,
		[]string{"blk.0.ssm_a", "llama does not have"},
	},
	{"type without decoder", "llama", func(d *draft) {
		i := slices.IndexFunc(d.infos, func(i gguf.Info) bool { return i.Name == "output_norm.weight" })
		d.infos[i].Type = gguf.I32
	}, gguf.ErrNotDecodable, []string{"output_norm.weight", "I32"}},
	{
		"rotated channels", "llama", func(d *draft) {
			d.set("llama.rope.dimension_count", gguf.Of(uint32(2)))
		}, ErrRope,
		[]string{"llama.rope.dimension_count", "rotates all"},
	},
	{
		"kind of rotation", "llama", func(d *draft) { d.set("llama.rope.scaling.type", gguf.Of("spiral")) }, ErrRope,
		[]string{"spiral", "yarn"},
	},
	{"factors of rotation", "llama", func(d *draft) {
		d.add("rope_freqs.weight", []int64{2}, []byte{0, 0, 0x40, 0x40, 0, 0, 0x80, 0x3f}) // 3, 1
	}, ErrRope, []string{"rope_freqs.weight", "from 1 to 3"}},
	{
		"factor 0", "llama", func(d *draft) { d.add("rope_freqs.weight", []int64{2}, nil) }, ErrRope,
		[]string{"rope_freqs.weight", "not positive"},
	},
	{
		"shape of factors", "llama", func(d *draft) { d.add("rope_freqs.weight", []int64{2, 2}, nil) }, ErrShape,
		[]string{"rope_freqs.weight"},
	},
	{
		"experts", "qwen3_moe", func(d *draft) { d.set("qwen3moe.expert_count", gguf.Of(uint32(2))) }, ErrShape,
		[]string{"expert"},
	},
	{
		"experts chosen", "qwen3_moe", func(d *draft) { d.set("qwen3moe.expert_used_count", gguf.Of(uint32(9))) },
		ErrMetadata,
		[]string{"qwen3moe.expert_used_count"},
	},
	{"width of latents", "deepseek_v3", func(d *draft) {
		d.set("deepseek2.attention.value_length_mla", gguf.Of(uint32(7)))
	}, ErrShape, []string{"blk.0."}},
	{
		"scoring", "deepseek_v3", func(d *draft) { d.set("deepseek2.expert_gating_func", gguf.Of(uint32(1))) },
		ErrMetadata,
		[]string{"deepseek2.expert_gating_func"},
	},
	{"windows", "gemma3", func(d *draft) {
		d.set("gemma3.attention.sliding_window_pattern", gguf.List([]bool{true}))
	}, ErrMetadata, []string{"gemma3.attention.sliding_window_pattern"}},

	{
		"tokenizer's model", "llama", func(d *draft) {
			d.byteVocabulary()
			d.set(modelKey, gguf.Of("t5"))
		}, ErrTokenizer,
		[]string{modelKey, "t5", "gpt2"},
	},
	{
		"unknown pre", "llama", func(d *draft) { d.byteVocabulary(); d.set(preKey, gguf.Of("nobody")) }, ErrTokenizer,
		[]string{preKey, "nobody", "qwen2"},
	},
	{
		"tokens of another kind", "llama", func(d *draft) {
			d.byteVocabulary()
			d.set(tokensKey, gguf.List([]int32{1}))
		},
		ErrTokenizer,
		[]string{tokensKey},
	},
	{"more tokens than rows", "llama", func(d *draft) {
		d.byteVocabulary()
		d.set(tokensKey, gguf.List(strings.Split(strings.Repeat("x ", 99), " ")))
	}, ErrTokenizer, []string{tokensKey, "24 rows"}},
	{"a token twice", "llama", func(d *draft) {
		d.byteVocabulary()
		d.set(tokensKey, gguf.List([]string{"a", "b", "a", "d", "e", "f", "g", "h", "i"}))
	}, ErrTokenizer, []string{`"a" is token 0 and token 2`}},
	{"a token that is no text", "llama", func(d *draft) {
		d.byteVocabulary()
		d.set(tokensKey, gguf.List([]string{"\xff", "b", "a", "d", "e", "f", "g", "h", "i"}))
	}, ErrTokenizer, []string{"token 0", "UTF-8"}},
	{
		"too few types", "llama", func(d *draft) { d.byteVocabulary(); d.set(typesKey, gguf.List([]int32{1})) },
		ErrTokenizer,
		[]string{typesKey},
	},
	{
		"types of another kind", "llama", func(d *draft) { d.byteVocabulary(); d.set(typesKey, gguf.Of(true)) },
		ErrTokenizer,
		[]string{typesKey},
	},
	{
		"a merge of one token", "llama", func(d *draft) {
			d.byteVocabulary()
			d.set(mergesKey, gguf.List([]string{"ab"}))
		},
		ErrTokenizer,
		[]string{mergesKey, "merge 0"},
	},
	{"a merge of unknown tokens", "llama", func(d *draft) {
		d.byteVocabulary()
		d.set(mergesKey, gguf.List([]string{"a b", "z b"}))
	}, ErrTokenizer, []string{mergesKey, "merge 1", `"z"`}},
	{
		"merges that are numbers", "llama", func(d *draft) { d.byteVocabulary(); d.set(mergesKey, gguf.Of(uint32(1))) },
		ErrTokenizer,
		[]string{mergesKey},
	},
	{"id behind the tokens", "llama", func(d *draft) {
		d.byteVocabulary()
		d.set("tokenizer.ggml.eos_token_id", gguf.Of(uint32(9)))
	}, ErrTokenizer, []string{"tokenizer.ggml.eos_token_id", "9 tokens"}},
	{"id of 2^63", "llama", func(d *draft) {
		d.byteVocabulary()
		d.set("tokenizer.ggml.eos_token_id", gguf.Of(uint64(1)<<63))
	}, ErrMetadata, []string{"tokenizer.ggml.eos_token_id"}},
	{
		"no scores", "llama", func(d *draft) { d.pieceVocabulary(); d.remove(scoresKey) }, ErrTokenizer,
		[]string{scoresKey},
	},
	{"scores that are none", "llama", func(d *draft) {
		d.pieceVocabulary()
		scores := make([]float32, 24)
		scores[5] = float32(math.NaN())
		d.set(scoresKey, gguf.List(scores))
	}, ErrTokenizer, []string{scoresKey, "token 5"}},
	{"a flag that is a number", "llama", func(d *draft) {
		d.pieceVocabulary()
		d.set("tokenizer.ggml.add_space_prefix", gguf.Of(uint8(1)))
	}, ErrTokenizer, []string{"add_space_prefix"}},
	{"a template that is a number", "llama", func(d *draft) {
		d.pieceVocabulary()
		d.set(templateKey, gguf.Of(uint8(1)))
	}, ErrMetadata, []string{templateKey}},
}

// TestRefused: every fault is one line that names the file, the key or the tensor.
func TestRefused(t *testing.T) {
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			d := load(t, c.file)
			c.change(d)
			m, err := d.open(t)
			if err == nil {
				_, err = m.Files()
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, expected %v", err, c.want)
			}

			text := err.Error()
			if strings.Contains(text, "\n") || !strings.Contains(text, "x.gguf") {
				t.Errorf("not one line that names the file: %q", text)
			}
			for _, word := range c.words {
				if !strings.Contains(text, word) {
					t.Errorf("%q does not say %q", text, word)
				}
			}
		})
	}
}

// TestBlocksThatFail: what is wrong with a block is told of the tensor of the model and of that of the file.
func TestBlocksThatFail(t *testing.T) {
	x := &tensor{
		name: "of.model", shape: []int64{1, 32}, stack: 1, rows: 1, cols: 32,
		pieces: []piece{{
			info:   gguf.Info{Name: "of.file", Type: gguf.Q8_0, Shape: []int64{1, 32}},
			stride: 1, cols: 32, stack: 1, rows: 1,
		}},
	}
	m := x.matrix(func(string) ([]byte, error) { return slices.Concat([]byte{0, 0x7e}, make([]byte, 32)), nil })
	_, err := m.Whole()

	const begin = `tensor "of.model": of.file of the file: a scale is not finite`
	if !errors.Is(err, quantized.ErrNotFinite) || !strings.HasPrefix(err.Error(), begin) {
		t.Errorf("%v, want %s …", err, begin)
	}
}

// TestAccepted: what llama.cpp reads without a word is read here too.
func TestAccepted(t *testing.T) {
	for name, change := range map[string]func(d *draft){
		"arrays of equal numbers": func(d *draft) {
			d.set("llama.attention.head_count_kv", gguf.List([]uint32{2, 2}))
			d.set("llama.feed_forward_length", gguf.List([]int32{24, 24}))
		},
		"rotation by default": func(d *draft) {
			d.remove("llama.rope.dimension_count")
			d.remove("llama.rope.freq_base")
		},
		"factors that are 1": func(d *draft) {
			d.add("rope_freqs.weight", []int64{2}, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f})
		},
		"a key of a new version": func(d *draft) { d.set("llama.attention.future", gguf.Of(uint32(1))) },
		"tokens that are missing": func(d *draft) {
			d.byteVocabulary()
			d.set("tokenizer.ggml.eos_token_id", gguf.Of(uint32(math.MaxUint32)))
			d.set(tokensKey, gguf.List([]string{"a", "b", "c", "Ġ", "ab", "Ġab", "abc", "", "<think>"}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := load(t, "llama")
			change(d)
			m, err := d.open(t)
			if err == nil {
				_, err = m.Files()
			}
			if err != nil {
				t.Fatal(err)
			}
			if name == "a key of a new version" && !slices.Equal(m.Unknown(), []string{"llama.attention.future"}) {
				t.Error(m.Unknown())
			}
		})
	}
}
