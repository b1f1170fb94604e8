package lora

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// lost is what PEFT would leave out of an adapter.
type lost struct {
	sure bool   // it would; otherwise it may
	text string // "": nothing
}

// note adds the remark, if there is one.
func (l lost) note(list []string) []string {
	if l.text == "" {
		return list
	}
	return append(list, l.text)
}

// lostOn reports whether PEFT would leave out factors of modules. Version 5 of the transformers library has the
// experts of a block in one tensor; for those PEFT 0.21 renames factors architecture by architecture, and where
// a shared expert, whose matrices have the names of theirs, lies beside them, it takes that one alone and
// passes over the others without a word; so it does where the experts' tensors are not laid out as Mixtral's and
// Qwen's are. table is nil where no base is given: then the paths of the modules have to tell.
func lostOn(table *arch.Arch, modules []adapter.Module) lost {
	experts := slices.ContainsFunc(modules,
		func(m adapter.Module) bool { return m.Expert >= 0 || strings.Contains(m.Path, ".mlp.experts.") })
	shared := slices.ContainsFunc(modules,
		func(m adapter.Module) bool { return strings.Contains(m.Path, ".shared_expert") })
	if table != nil {
		shared = slices.ContainsFunc(table.Tensors,
			func(t arch.Tensor) bool {
				other := t.Role == arch.GateUp || !strings.Contains(t.Fused, ".mlp.experts.")
				return t.Role == arch.SharedGate || t.Role == arch.SharedGateUp || t.PerExpert() && other
			})
	}

	const passes = "PEFT 0.21 with transformers 5 passes over factors for the experts of a %s, and says nothing"
	switch {
	case !experts || table != nil && !shared:
		return lost{}
	case table != nil:
		return lost{true, fmt.Sprintf(passes, table.ModelType)}
	case shared:
		return lost{true, fmt.Sprintf(passes, "model that has a shared expert beside them")}
	}

	return lost{
		false,
		fmt.Sprintf(passes,
			"model that has a shared expert beside them, such as qwen2_moe") +
			"; the files do not tell whether the base is one (HINT: --model names it)",
	}
}

// lostIn is [lostOn] of an adapter's modules; base is nil where none is given.
func lostIn(base *adapter.Checkpoint, a *adapter.Adapter) lost {
	var table *arch.Arch
	if base != nil {
		table = base.Config.Arch
	}
	return lostOn(table, modulesOf(a))
}

// modulesOf lists the modules that an adapter has factors for.
func modulesOf(a *adapter.Adapter) []adapter.Module {
	var list []adapter.Module
	for _, l := range a.Low {
		list = append(list, l.Module)
	}
	return list
}

// Unread is a remark where the adapter, as [Adapter.Save] writes it, has factors that PEFT would not load on
// this model; "" where it loads all, or has no form for the adapter's kind anyway. An adapter that keeps zeros
// of the base does so here alone.
func (a *Adapter) Unread(table *arch.Arch) string {
	if a.inner.Config.Kind != adapter.LoRA {
		return ""
	}

	text := lostOn(table, modulesOf(a.inner)).text
	switch {
	case !a.inner.Config.KeepZeros:
		return text
	case text == "":
		return unmasked
	}

	return text + "; " + unmasked
}
