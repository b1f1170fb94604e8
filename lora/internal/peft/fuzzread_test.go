package peft_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/peft"
	"github.com/modelcompress/compress/safetensors"
)

// FuzzRead: the two files of an adapter from a stranger, for a base and without one. What is taken has finite
// values, and can be written again.
func FuzzRead(f *testing.F) {
	for _, m := range []*made{
		good(),
		good().set("use_dora", true).add(first+".lora_magnitude_vector", 6).add(second+".lora_magnitude_vector", 6),
		good().set("modules_to_save", []string{"lm_head"}).add("base_model.model.lm_head.weight", 5, 4),
		good().set("rank_pattern", map[string]int{"layers.1.self_attn.q_proj": 1}).add(second+".lora_A.weight", 1,
			4).add(second+".lora_B.weight", 6, 1),
		good().set("trainable_token_indices", map[string]any{"embed_tokens": []int{1, 4}}).add(
			table+".token_adapter.trainable_tokens_delta", 2, 4),
		good().set("bias", "all").add("base_model.model.model.layers.0.self_attn.q_proj.bias", 6),
		good().set("target_modules", []string{"q_proj", "embed_tokens"}).add(table+".lora_embedding_A", 2, 5).add(
			table+".lora_embedding_B", 4, 2),
		good().set("init_lora_weights", "pissa"),
	} {
		dir := m.write(f)
		config, err := os.ReadFile(filepath.Join(dir, peft.ConfigName))
		if err != nil {
			f.Fatal(err)
		}

		file, err := os.ReadFile(filepath.Join(dir, peft.WeightsName))
		if err != nil {
			f.Fatal(err)
		}

		header, data := fuzzlimit.Parts(file)
		f.Add(config, header, data)
	}

	dir, out := f.TempDir(), filepath.Join(f.TempDir(), "again")
	f.Fuzz(func(t *testing.T, config []byte, header string, data []byte) {
		defer fuzzlimit.Watch(t, len(config)+len(header)+len(data))()

		for name, text := range map[string][]byte{
			peft.ConfigName:  config,
			peft.WeightsName: fuzzlimit.File(header, data),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
				t.Fatal(err)
			}
		}

		a, _, err := peft.ReadNoted(dir, base)
		if err == nil {
			for _, p := range a.Params() {
				for _, v := range p.Data() {
					if v-v != 0 {
						t.Fatalf("%s holds %g", p.Name, v)
					}
				}
			}

			err := peft.Write(out, a, peft.WriteOptions{DType: safetensors.F32, Overwrite: true})
			if err != nil && !errors.Is(err, adapter.ErrUnsupported) && !errors.Is(err, adapter.ErrConfig) {
				t.Errorf("written again: %v", err)
			}
		}

		_, _, _ = peft.ReadAlone(dir)
	})
}
