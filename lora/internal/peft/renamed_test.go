package peft

import (
	"testing"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// TestRenamed: the head of GPT-NeoX is found under both of its names, and the caller's list stays as it is.
func TestRenamed(t *testing.T) {
	list := []adapter.Module{
		{Path: "gpt_neox.embed_in", Role: arch.Embed},
		{Path: "embed_out", Tensor: "embed_out.weight", Role: arch.Head},
	}
	for key, want := range map[string]string{
		"lm_head.lora_A.weight": "lm_head", "embed_out.lora_A.weight": "embed_out", "lm_head.weight": "lm_head",
		"lm_header.weight": "embed_out", "gpt_neox.embed_in.weight": "embed_out",
	} {
		got := renamed(list, []string{prefix + key})
		if got[1].Path != want || got[1].Tensor != "embed_out.weight" || list[1].Path != "embed_out" {
			t.Errorf("%s: %v", key, got)
		}
	}
}
