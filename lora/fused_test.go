package lora

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/modeltest"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// writeMixture writes an OLMoE of two blocks with three experts each.
func writeMixture(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	config :=
		`{"model_type":"olmoe","vocab_size":31,"hidden_size":16,"intermediate_size":12,"num_hidden_layers":2,"num_attention_heads":2,` +
			`"num_key_value_heads":2,"num_experts":3,"num_experts_per_tok":2,"max_position_embeddings":32,"tie_word_embeddings":false}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}

	var infos []safetensors.Info
	add := func(name string, shape ...int64) {
		infos = append(infos, safetensors.Info{Name: name + ".weight", DType: safetensors.BF16, Shape: shape})
	}
	add("model.embed_tokens", 31, 16)

	for l := range 2 {
		p := fmt.Sprintf("model.layers.%d.", l)
		for _, n := range []string{
			"input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
			"self_attn.k_norm",
		} {
			add(p+n, 16)
		}

		for _, n := range []string{"q", "k", "v", "o"} {
			add(p+"self_attn."+n+"_proj", 16, 16)
		}

		add(p+"mlp.gate", 3, 16)

		for e := range 3 {
			q := fmt.Sprintf("%smlp.experts.%d.", p, e)
			add(q+"gate_proj", 12, 16)
			add(q+"up_proj", 12, 16)
			add(q+"down_proj", 16, 12)
		}
	}

	add("model.norm", 16)
	add("lm_head", 31, 16)
	w, err := safetensors.CreateDir(dir, infos, nil, safetensors.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}

	state := uint32(3)
	for _, info := range infos {
		var data []byte
		for range info.Elements() {
			state = state*1664525 + 1013904223
			v := (float32(state>>8)/(1<<24) - 0.5) * 0.6
			if len(info.Shape) == 1 {
				v++
			}
			data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
		}

		if err := w.WriteTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}

	return dir
}

// TestFusedExperts: on a mixture that keeps the experts of a block in one tensor, adapters are trained, folded
// and extracted to the same bytes as on one that does not; what is folded keeps the layout of the base.
func TestFusedExperts(t *testing.T) {
	split := writeMixture(t)
	joint := modeltest.FuseExperts(t, split)
	for name, targets := range map[string][]string{"all": nil, "some": {"down", "q"}} {
		var adapters, folds [2]string
		for i, dir := range []string{split, joint} {
			m := openModel(t, dir, "cpu", lm.Options{})
			a, err := Train(t.Context(), m, sequences(31, 6, 12),
				Options{Kind: "lora", Rank: 2, Steps: 3, Batch: 2, LR: 0.05, Targets: targets})
			if err != nil {
				t.Fatal(err)
			}

			adapters[i], folds[i] = filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "f")
			if err := a.Save(adapters[i], false); err != nil {
				t.Fatal(err)
			}
			// whose base has the same fingerprint
			if _, err := Fold(t.Context(), dir, adapters[0], folds[i], FoldOptions{}); err != nil {
				t.Fatal(err)
			}
		}

		sameFiles(t, filepath.Join(adapters[0], "adapter_model.safetensors"),
			filepath.Join(adapters[1], "adapter_model.safetensors"))
		sameTensors(t, modeltest.FuseExperts(t, folds[0]), folds[1])

		var back [2]string
		for i, pair := range [][2]string{{split, folds[0]}, {joint, folds[0]}} {
			back[i] = filepath.Join(t.TempDir(), "x")
			r, err := Extract(t.Context(), pair[0], pair[1], back[i], ExtractOptions{Rank: 2})
			if err != nil {
				t.Fatal(err)
			}

			if r.Energy < 0.9 {
				t.Errorf("%s: extracted %g of the change", name, r.Energy)
			}
		}

		sameFiles(t, filepath.Join(back[0], "adapter_model.safetensors"),
			filepath.Join(back[1], "adapter_model.safetensors"))
	}
}

// sameTensors compares two checkpoints.
func sameTensors(t *testing.T, a, b string) {
	t.Helper()
	x, err := safetensors.OpenDir(a)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()

	y, err := safetensors.OpenDir(b)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()

	if !slices.Equal(slices.Sorted(slices.Values(x.Names())), slices.Sorted(slices.Values(y.Names()))) {
		t.Fatalf("%v and %v", x.Names(), y.Names())
	}

	for _, name := range x.Names() {
		p, err := x.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		q, err := y.Bytes(name)
		if err != nil {
			t.Fatal(err)
		}

		if !slices.Equal(p, q) {
			t.Errorf("%s differs", name)
		}
	}
}
