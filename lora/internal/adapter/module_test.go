package adapter

import (
	"testing"

	"github.com/modelcompress/compress/lm/arch"
)

// TestKeyOf: tensors have the names that today's transformers gives their modules, also where the base calls
// them otherwise.
func TestKeyOf(t *testing.T) {
	neox := []Module{
		{Path: "gpt_neox.embed_in", Tensor: "gpt_neox.embed_in.weight", Table: true},
		{Path: "lm_head", Tensor: "embed_out.weight", Role: arch.Head},
	}
	bare := []Module{{
		Path: "transformer.h.0.attn.c_attn", Tensor: "h.0.attn.c_attn.weight",
		Bias: "h.0.attn.c_attn.bias",
	}, {Path: "lm_head", Tensor: "wte.weight", Role: arch.Head, Tied: true}}

	for _, c := range []struct {
		modules      []Module
		tensor, want string
	}{
		{neox, "embed_out.weight", "lm_head.weight"},
		{neox, "gpt_neox.embed_in.weight", "gpt_neox.embed_in.weight"},
		{neox, "gpt_neox.final_layer_norm.bias", "gpt_neox.final_layer_norm.bias"},
		{bare, "h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.bias"},
		{bare, "ln_f.weight", "transformer.ln_f.weight"},
		{bare, "wte.weight", "transformer.wte.weight"},
	} {
		if got := KeyOf(c.modules, c.tensor); got != c.want {
			t.Errorf("%s: %s, want %s", c.tensor, got, c.want)
		}
	}
}
