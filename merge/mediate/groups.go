package mediate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/lm/arch"
)

// granularities lists the ways to group tensors.
func granularities() []string { return []string{"layer", "block", "tensor"} }

// Names of the groups of tensors outside of layers.
const (
	groupBefore = "pre"  // token table and positions
	groupAfter  = "post" // final norm, head and whatever else is in no layer
)

// place is where a tensor belongs.
type place struct {
	Group string
	Layer int // -1 outside of layers
}

// placeOf groups a tensor of a layer (-1: none) with a role ("" if unknown) by a granularity: a layer, its
// attention or its MLP, or itself.
func placeOf(name string, layer int, role arch.Role, granularity string) place {
	if layer < 0 {
		switch role {
		case arch.Embed, arch.EmbedIn, arch.Positions:
			return place{groupBefore, -1}
		}

		// Models of an unknown architecture have no roles; their token tables go by name.
		if role == "" && strings.Contains(name, "embed") {
			return place{groupBefore, -1}
		}

		return place{groupAfter, -1}
	}

	group := fmt.Sprintf("layer %d", layer)
	if prefix := stack(name, layer); prefix != "" {
		group = prefix + " " + group
	}

	switch granularity {
	case "tensor":
		group = name
	case "block":
		group += " " + half(name, role)
	}

	return place{group, layer}
}

// stacks are the prefixes that ordinary models have before the number of a layer; others name a stack of its own.
var stacks = []string{
	"model.layers", "transformer.h", "h", "gpt_neox.layers", "layers", "model.decoder.layers",
	"decoder.layers", "model.language_model.layers", "language_model.model.layers",
}

// stack is the part of a name that tells several stacks of layers apart, "" for the usual one.
func stack(name string, layer int) string {
	prefix, _, ok := strings.Cut(name, "."+strconv.Itoa(layer)+".")
	if !ok {
		return ""
	}

	for _, s := range stacks {
		if prefix == s {
			return ""
		}
	}

	return prefix
}

// half tells attention from MLP.
func half(name string, role arch.Role) string {
	switch role {
	case arch.AttnNorm, arch.AttnPostNorm, arch.QNorm, arch.KNorm, arch.Q, arch.K, arch.V, arch.QKV, arch.O,
		arch.QA, arch.QB, arch.KVA, arch.KVB, arch.QANorm, arch.KVANorm, arch.Sinks:
		return "attention"
	case "":
		if strings.Contains(name, "attn") || strings.Contains(name, "attention") {
			return "attention"
		}
	}
	return "mlp"
}
