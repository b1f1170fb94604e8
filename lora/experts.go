package lora

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/peft"
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
// experts of a block in one tensor; for those PEFT 0.21 renames factors architecture by architecture, and what it does
// not rename it passes over without a word:
//
//   - experts whose tensors are not laid out as Mixtral's and Qwen's are, and those of qwen2_moe, which its list lacks
//     (it alone calls its shared expert so, in the singular);
//   - of all other mixtures the matrices beside the experts, in dense layers and shared experts, that have the names of
//     the experts' own: it takes these names for experts alone.
//
// table is nil where no base is given: then the paths of the modules have to tell.
func lostOn(table *arch.Arch, modules []adapter.Module) lost {
	const passes = "PEFT 0.21 with transformers 5 passes over factors for the %s, and says nothing"
	experts := slices.ContainsFunc(modules, inExpert)
	beside := slices.ContainsFunc(modules, besideExperts)
	// With the architecture known, only what really happens is said; paths alone can merely suspect.
	if table != nil {
		mixture, unread := mixtureOf(table)
		switch {
		case unread && experts:
			return lost{true, fmt.Sprintf(passes, "experts of a "+table.ModelType)}
		case mixture && !unread && beside:
			return lost{true, fmt.Sprintf(passes, "dense layers and shared experts of a "+table.ModelType)}
		}
		return lost{}
	}

	named := func(part string) bool {
		return slices.ContainsFunc(modules, func(m adapter.Module) bool { return strings.Contains(m.Path, part) })
	}
	switch {
	case experts && named(".shared_expert."):
		return lost{true, fmt.Sprintf(passes, "experts of a model that has a shared expert beside them")}
	case named(".shared_experts."):
		return lost{true, fmt.Sprintf(passes, "dense layers and shared experts of a mixture")}
	case experts && beside:
		return lost{true, fmt.Sprintf(passes, "experts of a mixture, or for its dense layers")}
	case experts:
		// Mixtral's experts look the same from outside, and load well: no refusal, only a remark.
		return lost{
			false,
			fmt.Sprintf(passes, "experts of a model that has a shared expert beside them, such as qwen2_moe") +
				"; the files do not tell whether the base is one, and no base is given",
		}
	}

	return lost{}
}

// inExpert reports whether a module is one of an expert's.
func inExpert(m adapter.Module) bool {
	return m.Expert >= 0 || strings.Contains(m.Path, ".mlp.experts.")
}

// besideExperts reports whether a module is called as one of an expert's, but is none.
func besideExperts(m adapter.Module) bool {
	name := m.Path[strings.LastIndexByte(m.Path, '.')+1:]
	return !inExpert(m) && (name == "gate_proj" || name == "up_proj" || name == "down_proj")
}

// mixtureOf reports whether an architecture has experts, and whether they are some that PEFT passes over.
func mixtureOf(table *arch.Arch) (mixture, unread bool) {
	for _, t := range table.Tensors {
		mixture = mixture || t.PerExpert()
		other := t.Role == arch.GateUp || !strings.Contains(t.Fused, ".mlp.experts.")
		unread = unread || t.PerExpert() && other || strings.Contains(t.Name, ".shared_expert.")
	}
	return mixture, unread
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
	if !peft.Handles(a.inner.Config.Kind) {
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
