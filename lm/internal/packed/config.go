package packed

import "encoding/json"

// Format is the name of the packed form in a configuration.
const Format = "sparse-bitmask"

// settings is what a quantization_config says that matters here.
type settings struct {
	Method   string `json:"quant_method"`
	Format   string `json:"format"`
	Sparsity struct {
		Format string `json:"format"`
	} `json:"sparsity_config"`
	Groups    map[string]json.RawMessage `json:"config_groups"`
	Cache     any                        `json:"kv_cache_scheme"`
	Transform map[string]json.RawMessage `json:"transform_config"`
}

// only reports whether the settings say nothing but that matrices are packed.
func (q *settings) only() bool {
	return q.Method == "compressed-tensors" && q.Sparsity.Format == Format && (q.Format == "" || q.Format == "dense") &&
		len(q.Groups) == 0 && len(q.Transform) == 0 && q.Cache == nil
}

// Plain takes from the text of a config.json the key quantization_config if that says nothing but that matrices
// are packed, and reports whether it does. Any other text comes back as it is.
func Plain(config []byte) (plain []byte, packed bool) {
	var raw map[string]json.RawMessage
	var q settings
	if json.Unmarshal(config, &raw) != nil || json.Unmarshal(raw["quantization_config"], &q) != nil || !q.only() {
		return config, false
	}

	delete(raw, "quantization_config")
	plain, err := json.Marshal(raw)
	if err != nil {
		return config, false
	}

	return plain, true
}
