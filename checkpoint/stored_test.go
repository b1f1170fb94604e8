package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// smallGGUF writes a llama of one block with matrices of 256×256 elements whose bytes are equal, so that its values
// are easily counted.
func smallGGUF(t *testing.T, architecture, pre string, down gguf.Type) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "model.gguf")
	key := func(name string, v gguf.Value) gguf.Entry {
		return gguf.Entry{Key: architecture + "." + name, Value: v}
	}
	number := func(n uint32) gguf.Value { return gguf.Of(n) }
	meta := gguf.Metadata{
		{Key: "general.architecture", Value: gguf.Of(architecture)},
		{Key: "general.quantization_version", Value: number(2)},
		key("block_count", number(1)), key("context_length", number(64)), key("embedding_length", number(256)),
		key("feed_forward_length", number(256)), key("attention.head_count", number(4)),
		key("attention.head_count_kv", number(4)),
		key("attention.layer_norm_rms_epsilon", gguf.Of(float32(1e-5))),
		{Key: "tokenizer.ggml.model", Value: gguf.Of("gpt2")},
		{Key: "tokenizer.ggml.pre", Value: gguf.Of(pre)},
		{Key: "tokenizer.ggml.tokens", Value: gguf.List([]string{"a", "b", "ab"})},
		{Key: "tokenizer.ggml.token_type", Value: gguf.List([]int32{1, 1, 1})},
		{Key: "tokenizer.ggml.merges", Value: gguf.List([]string{"a b"})},
	}

	infos := []gguf.Info{{Name: "token_embd.weight", Type: gguf.F32, Shape: []int64{3, 256}}}
	for _, name := range []string{"attn_norm", "ffn_norm"} {
		infos = append(infos, gguf.Info{Name: "blk.0." + name + ".weight", Type: gguf.F32, Shape: []int64{256}})
	}
	for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"} {
		infos = append(infos, gguf.Info{Name: "blk.0." + name + ".weight", Type: gguf.Q4_0, Shape: []int64{256, 256}})
	}
	infos = append(infos, gguf.Info{Name: "blk.0.ffn_down.weight", Type: down, Shape: []int64{256, 256}},
		gguf.Info{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{256}})

	w, err := gguf.Create(path, infos, meta, gguf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		size, err := info.Type.ByteSize(info.Shape)
		if err != nil {
			t.Fatal(err)
		}

		data := make([]byte, size) // of Q4_0: scales of 0
		if info.Type == gguf.F32 {
			one := binary.LittleEndian.AppendUint32(nil, 0x3f800000)
			data = bytes.Repeat(one, int(size)/len(one))
		}
		if err := w.WriteTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return path
}

// TestInspectStored: a GGUF file is shown as far as it is understood: one with a type that nothing decodes, or of an
// unknown architecture, by its own tensors; one with an unknown tokenizer as the model that it is. Each says why, with
// its metadata, and is refused where values are needed.
func TestInspectStored(t *testing.T) {
	for _, c := range []struct {
		name         string
		architecture string
		pre          string
		down         gguf.Type
		note         string
		err          error
		tensor       TensorReport
		zeros        int64 // of the last tensor; -1: not counted
	}{
		{
			"type", "llama", "qwen2", gguf.IQ2_XXS, "tensors are those that are stored: ", gguf.ErrNotDecodable,
			TensorReport{Name: "blk.0.ffn_down.weight", DType: "IQ2_XXS", Format: "IQ2_XXS", Size: 16896},
			-1,
		},
		{
			"architecture", "mamba9", "qwen2", gguf.Q4_0, `unknown architecture: general.architecture "mamba9"`, nil,
			TensorReport{Name: "blk.0.ffn_down.weight", DType: "F32", Format: "Q4_0", Size: 36864},
			1 << 16,
		},
		{
			"tokenizer", "llama", "martian", gguf.Q4_0, `unknown name "martian"`, nil,
			TensorReport{Name: "model.layers.0.mlp.down_proj.weight", DType: "F32", Format: "Q4_0"},
			1 << 16,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := smallGGUF(t, c.architecture, c.pre, c.down)
			r, err := Inspect(t.Context(), path, InspectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(r.Note, c.note) || strings.Contains(r.Note, "\n") || len(r.Metadata) != 14 {
				t.Errorf("note %q, %d pairs of metadata", r.Note, len(r.Metadata))
			}
			if (r.Architecture != "") != (c.name == "tokenizer") || r.Tensors != 11 || r.Parameters != 7*1<<16+1536 {
				t.Errorf("architecture %q, %d tensors, %d parameters", r.Architecture, r.Tensors, r.Parameters)
			}

			i := slices.IndexFunc(r.List, func(x TensorReport) bool { return x.Name == c.tensor.Name })
			if i < 0 {
				t.Fatalf("no tensor %q", c.tensor.Name)
			}
			got := r.List[i]
			if got.DType != c.tensor.DType || got.Format != c.tensor.Format || got.Size != c.tensor.Size ||
				!slices.Equal(got.Shape, []int64{256, 256}) {
				t.Errorf("%+v, want %+v", got, c.tensor)
			}
			if (got.Zeros == nil) != (c.zeros < 0) || got.Zeros != nil && *got.Zeros != c.zeros {
				t.Errorf("zeros %v, want %d", got.Zeros, c.zeros)
			}

			_, err = Verify(t.Context(), path, InspectOptions{})
			if err == nil || c.err != nil && !errors.Is(err, c.err) || !strings.Contains(r.Note, err.Error()) {
				t.Errorf("verified: %v", err)
			}
			out := filepath.Join(t.TempDir(), "out")
			if _, err := Convert(t.Context(), path, out, ConvertOptions{}); err == nil {
				t.Error("it was converted")
			}
		})
	}
}

// TestDiffStored: GGUF files of an unknown architecture are compared by their own tensors, but not with one that is
// understood, whose names are others, and not without their values.
func TestDiffStored(t *testing.T) {
	odd := smallGGUF(t, "mamba9", "qwen2", gguf.Q4_0)
	d, err := Diff(t.Context(), odd, odd, DiffOptions{})
	if err != nil || !d.Equal || d.Same != 11 {
		t.Errorf("%+v, %v", d, err)
	}

	if _, err := Diff(t.Context(), odd, smallGGUF(t, "llama", "qwen2", gguf.Q4_0), DiffOptions{}); !errors.Is(err,
		arch.ErrUnknown) && (err == nil || !strings.Contains(err.Error(), "unknown architecture")) {
		t.Errorf("compared with a model: %v", err)
	}

	closed := smallGGUF(t, "mamba9", "qwen2", gguf.IQ3_S)
	if _, err := Diff(t.Context(), closed, closed, DiffOptions{}); err == nil {
		t.Error("values were compared that nothing decodes")
	}
}

// TestConvertNarrow: a conversion of blocks to bfloat16 in one step gives the bytes of one by float32, and counts
// values that are not finite as that does.
func TestConvertNarrow(t *testing.T) {
	path := smallGGUF(t, "llama", "qwen2", gguf.MXFP4)
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	info, _ := f.Info("blk.0.ffn_down.weight")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	down := data[info.Offset:][:info.Size]
	for i := range down {
		down[i] = byte(i * 37)
		if i%17 == 0 {
			down[i] = 127 + byte(i%9) // the scale of a block
		}
	}
	const block = 40
	down[block*17] = 254
	down[block*17+1] = 0x71 // 6 and 0.5, times 2^127
	for i := range 15 {
		down[block*17+2+i] = 0
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}

	convert := func(from string, d safetensors.DType) (string, *Conversion) {
		out := filepath.Join(t.TempDir(), "out")
		r, err := Convert(t.Context(), from, out, ConvertOptions{DType: d})
		if err != nil {
			t.Fatal(err)
		}
		return out, r
	}
	once, direct := convert(path, safetensors.BF16)
	wide, _ := convert(path, safetensors.F32)
	twice, steps := convert(wide, safetensors.BF16)

	a, errA := os.ReadFile(filepath.Join(once, "model.safetensors"))
	b, errB := os.ReadFile(filepath.Join(twice, "model.safetensors"))
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("%v, %v, equal %v", errA, errB, bytes.Equal(a, b))
	}
	if direct.NonFinite != 1 || steps.NonFinite != 1 || !slices.Equal(direct.NonFiniteIn, steps.NonFiniteIn) {
		t.Errorf("%d in %q, by float32 %d in %q", direct.NonFinite, direct.NonFiniteIn, steps.NonFinite,
			steps.NonFiniteIn)
	}
}
