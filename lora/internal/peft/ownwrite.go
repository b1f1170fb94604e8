package peft

import (
	"encoding/binary"
	"encoding/json"
	"slices"

	"github.com/modelcompress/compress/lora/internal/adapter"
)

// ownText is the adapter_config.json of a kind other than LoRA in its own form.
func ownText(a *adapter.Adapter) ([]byte, error) {
	c := &a.Config
	f := formOf(c.Kind)
	keys := map[string]any{
		"peft_type": f.peftType, "task_type": "CAUSAL_LM", "base_model_name_or_path": nil, "inference_mode": true,
		"r": c.Rank, "target_modules": targets(a), "modules_to_save": c.WholeModules,
	}
	f.write(c, keys)

	set := func(key string, value any, wanted bool) {
		if wanted {
			keys[key] = value
		}
	}

	set("task_type", c.TaskType, c.TaskType != "")
	set("base_model_name_or_path", c.Base, c.Base != "")
	set("fan_in_fan_out", transposed(a), slices.Contains(f.common, "fan_in_fan_out"))
	set("bias", ownBias(c), slices.Contains(f.common, "bias"))

	// What a kind has no key for, the paths of the modules say.
	lacks := !c.Exclude.IsZero() && !slices.Contains(f.common, "exclude_modules") ||
		c.Layers != nil && !slices.Contains(f.common, "layers_to_transform")
	if lacks {
		var paths []string
		for _, l := range a.Low {
			paths = append(paths, l.Module.Path)
		}
		keys["target_modules"] = paths
	} else {
		set("exclude_modules", matchValue(c.Exclude), !c.Exclude.IsZero())
		set("layers_to_transform", c.Layers, c.Layers != nil)
		set("layers_pattern", c.LayersPattern, c.LayersPattern != nil)
	}

	text, err := json.MarshalIndent(keys, "", "  ")
	return append(text, '\n'), err
}

// ownBias is which biases were trained, in the words of the kind.
func ownBias(c *adapter.Config) string {
	switch {
	case c.Biases == "":
		return string(adapter.NoBias)
	case c.Biases != adapter.LoRABias:
		return string(c.Biases)
	case c.Kind == adapter.MiSS:
		return "MiSS_only"
	}
	return string(c.Kind) + "_only"
}

// ownTensors are the tensors of a module's change in its kind's own form.
func ownTensors(l *adapter.Low) (list []entry) {
	for _, p := range l.Parameters() {
		list = append(list, entry{key: prefix + p.Name, shape: p.FileShape(), value: stored(p)})
	}
	if s, sparse := l.Factors.(adapter.Sparse); sparse {
		list = append(list, entry{
			key: prefix + l.Module.Path + ".shira_indices", shape: []int64{2, int64(len(s.Rows))},
			raw: func() []byte { return append(integers(s.Rows), integers(s.Cols)...) },
		})
	}
	return list
}

func integers(x []int32) []byte {
	p := make([]byte, 0, 4*len(x))
	for _, v := range x {
		p = binary.LittleEndian.AppendUint32(p, uint32(v))
	}
	return p
}
