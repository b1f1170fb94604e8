package plan

import (
	"testing"

	"github.com/modelcompress/compress/lm/arch"
)

func TestLayer(t *testing.T) {
	for name, want := range map[string]struct {
		stack string
		block int
		rest  string
	}{
		"model.layers.12.mlp.experts.3.w": {"model.layers", 12, "mlp.experts.3.w"},
		"model.norm.weight":               {"", -1, ""},
		"h.007.w":                         {"", -1, ""}, // no number as a program writes it
		"h.100000.w":                      {"", -1, ""},
		"h.1":                             {"", -1, ""},
		"":                                {"", -1, ""},
	} {
		stack, block, rest := splitLayer(name)
		if stack != want.stack || block != want.block || rest != want.rest {
			t.Errorf("%q: %q %d %q", name, stack, block, rest)
		}
	}
}

func TestRole(t *testing.T) {
	for name, want := range map[string]arch.Role{
		"model.embed_tokens.weight": arch.Embed, "lm_head.weight": arch.Head,
		"norm.weight": "",
	} {
		if role, bias := usualRole(name); role != want || bias {
			t.Errorf("%s: %q", name, role)
		}
	}
	if role, bias := usualRole("lm_head.bias"); role != arch.Head || !bias {
		t.Errorf("%q %v", role, bias)
	}
}

func TestLookup(t *testing.T) {
	table, err := arch.Lookup("llama")
	if err != nil {
		t.Fatal(err)
	}

	index := templateIndex(table)
	if x := lookupTemplate(index, "model.layers.3.mlp.up_proj.weight"); x == nil ||
		x.Name != "model.layers.{l}.mlp.up_proj.weight" {
		t.Errorf("%v", x)
	}

	if x := lookupTemplate(index, "model.layers.3.mlp.other.weight"); x != nil {
		t.Errorf("%v", x)
	}
}
