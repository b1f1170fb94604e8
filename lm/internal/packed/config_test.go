package packed

import (
	"encoding/json"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// Only a configuration that says nothing but that matrices are packed loses the key that says so.
func TestPlain(t *testing.T) {
	const sparsity = `"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}`
	for settings, want := range map[string]bool{
		`{` + sparsity + `}`: true,
		`{` + sparsity + `, "format": "dense", "config_groups": {}, "kv_cache_scheme": null}`:  true,
		`{` + sparsity + `, "transform_config": {}, "version": "0.12.2", "ignore": []}`:        true,
		`{` + sparsity + `, "format": "int-quantized"}`:                                        false,
		`{` + sparsity + `, "config_groups": {"group_0": {}}}`:                                 false,
		`{` + sparsity + `, "kv_cache_scheme": {"num_bits": 8}}`:                               false,
		`{` + sparsity + `, "transform_config": {"u": 1}}`:                                     false,
		`{"sparsity_config": {"format": "sparse-bitmask"}}`:                                    false,
		`{"quant_method": "compressed-tensors", "sparsity_config": {"format": "dense"}}`:       false,
		`{"quant_method": "compressed-tensors", "sparsity_config": ["sparse-bitmask"]}`:        false,
		`{"quant_method": "compressed-tensors", "sparsity_config": null}`:                      false,
		`{"quant_method": "gptq", "bits": 4, "sparsity_config": {"format": "sparse-bitmask"}}`: false,
		`null`: false,
		`4`:    false,
	} {
		text := `{"a": [1, 2], "quantization_config": ` + settings + `, "b": 1e400}`
		plain, packed := Plain([]byte(text))
		if packed != want {
			t.Errorf("%s: %v", settings, packed)
		}
		if !packed && string(plain) != text || packed && string(plain) != `{"a":[1,2],"b":1e400}` {
			t.Errorf("%s: becomes %s", settings, plain)
		}
	}
}

func FuzzPlain(f *testing.F) {
	f.Add(
		[]byte(
			`{"quantization_config": {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}}}`))
	f.Add([]byte(`{"quantization_config": {"bits": 4}}`))
	f.Add([]byte(`null`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		plain, packed := Plain(text)
		var raw map[string]json.RawMessage
		switch {
		case !packed && string(plain) != string(text):
			t.Errorf("becomes %q", plain)
		case packed && (json.Unmarshal(plain, &raw) != nil || raw["quantization_config"] != nil):
			t.Errorf("becomes %q", plain)
		}
	})
}
