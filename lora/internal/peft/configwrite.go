package peft

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/lora/internal/adapter"
)

// configText is the adapter_config.json of an adapter as plain LoRA: the keys that every version of PEFT knows,
// others only where they are needed.
func configText(a *adapter.Adapter, o WriteOptions) ([]byte, error) {
	c := &a.Config
	keys := map[string]any{
		"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": nil, "inference_mode": true,
		"r": c.Rank, "lora_alpha": whole(c.Alpha), "lora_dropout": c.Dropout, "bias": adapter.NoBias,
		"init_lora_weights": true,
		"target_modules":    targets(a), "modules_to_save": c.WholeModules, "fan_in_fan_out": transposed(a),
		"rank_pattern": map[string]any{}, "alpha_pattern": map[string]any{}, "use_rslora": c.RSLoRA && !o.Bake,
		"use_dora": c.DoRA,
	}

	// Older versions of PEFT refuse keys that they don't know, so a key stands here only if it says something.
	set := func(key string, value any, wanted bool) {
		if wanted {
			keys[key] = value
		}
	}

	set("task_type", c.TaskType, c.TaskType != "")
	set("base_model_name_or_path", c.Base, c.Base != "")
	set("bias", c.Biases, c.Biases != "")
	set("lora_bias", true, c.OutputBias)
	set("ensure_weight_tying", true, c.Tying)
	set("exclude_modules", matchValue(c.Exclude), !c.Exclude.IsZero())
	set("layers_to_transform", c.Layers, c.Layers != nil)
	set("layers_pattern", c.LayersPattern, c.LayersPattern != nil)
	set("trainable_token_indices", tokenLists(a), len(a.Rows) > 0)
	scales(a, o, keys)
	text, err := json.MarshalIndent(keys, "", "  ")

	return append(text, '\n'), err
}

// targets is the value of target_modules: what the configuration says, or the paths of the modules.
func targets(a *adapter.Adapter) any {
	if m := a.Config.Targets; !m.IsZero() && !m.All {
		return matchValue(m)
	}

	names := []string{}
	for _, l := range a.Low {
		name := l.Module.Path
		if a.Config.Targets.All {
			name = name[strings.LastIndexByte(name, '.')+1:]
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}

	return names
}

// matchValue is a match as the file says it.
func matchValue(m adapter.Match) any {
	if m.Regex != "" {
		return m.Regex
	}
	return m.Names
}

// transposed reports whether the adapted matrices are stored [in, out].
func transposed(a *adapter.Adapter) bool {
	return slices.ContainsFunc(a.Low, func(l *adapter.Low) bool { return l.Module.Transposed })
}

// tokenLists maps the last part of a table's path to its trained rows.
func tokenLists(a *adapter.Adapter) map[string][]int32 {
	ids := map[string][]int32{}
	for _, r := range a.Rows {
		ids[r.Module.Path[strings.LastIndexByte(r.Module.Path, '.')+1:]] = r.IDs
	}
	return ids
}

// scales writes r and lora_alpha, those of the first module, and patterns of whole paths for modules that differ.
func scales(a *adapter.Adapter, o WriteOptions, keys map[string]any) {
	if len(a.Low) == 0 {
		return
	}

	rank, alpha := a.Low[0].Rank, alphaOf(a, a.Low[0], o.Bake)
	ranks, alphas := map[string]int{}, map[string]any{}
	for _, l := range a.Low {
		if l.Rank != rank {
			ranks[l.Module.Path] = l.Rank
		}
		if x := alphaOf(a, l, o.Bake); x != alpha {
			alphas[l.Module.Path] = whole(x)
		}
	}

	keys["r"] = rank
	keys["lora_alpha"] = whole(alpha)
	keys["rank_pattern"] = ranks
	keys["alpha_pattern"] = alphas
}

// alphaOf is the alpha from which a reader gets the module's scale.
func alphaOf(a *adapter.Adapter, l *adapter.Low, bake bool) float64 {
	lora := a.Config
	lora.Kind = adapter.LoRA

	switch {
	case bake:
		return float64(l.Rank)
	case lora.ScaleOf(l.Rank, l.Alpha) == l.Scale:
		return l.Alpha
	case lora.RSLoRA:
		return l.Scale * math.Sqrt(float64(l.Rank))
	}

	return l.Scale * float64(l.Rank)
}

// whole is a number as JSON has it: without a point where it is an integer, since some readers insist.
func whole(x float64) any {
	if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
		return int64(x)
	}
	return x
}
