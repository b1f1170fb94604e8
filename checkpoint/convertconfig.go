package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/weights"
)

// maxConfig bounds what is read of a configuration.
const maxConfig = 4 << 20

// readConfig reads the config.json of a model with its keys in order; nil for one without, such as a single file of
// safetensors.
func readConfig(path string) (*orderedjson.Object, error) {
	return parsedConfig(path, func() ([]byte, error) { return weights.ReadFile(path, "config.json", maxConfig) })
}

// readStoredConfig is [readConfig] of a folder whose quantisation is not known: the file as it is.
func readStoredConfig(path string) (*orderedjson.Object, error) {
	return parsedConfig(path, func() ([]byte, error) { return safefile.ReadIn(path, "config.json", maxConfig) })
}

func parsedConfig(path string, read func() ([]byte, error)) (*orderedjson.Object, error) {
	data, err := read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}

	config, err := orderedjson.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", weights.Place(path, "config.json"), err)
	}

	return config, nil
}

// newConfig changes what the configuration says about element type and packing.
func (r *rewriter) newConfig(config *orderedjson.Object) (*orderedjson.Object, error) {
	if config == nil {
		return nil, nil
	}

	if r.DType != 0 {
		key := "torch_dtype"
		if config.Has("dtype") {
			key = "dtype"
		}
		if err := config.Put(key, dtype.Torch(r.DType)); err != nil {
			return nil, err
		}
	}

	if raw := config.Get("quantization_config"); raw != nil {
		if !onlyPacked(raw) {
			if r.report.Packed+r.report.Unpacked > 0 {
				return nil, fmt.Errorf("%s: config.json: quantization_config describes more than a bitmask, which "+
					"can't be rewritten", r.src.Path())
			}
			return config, nil
		}

		config.Delete("quantization_config")
	}

	if r.report.Packed == 0 {
		return config, nil
	}

	r.report.Structure = "2:4"
	if r.off24 {
		r.report.Structure = "unstructured"
	}

	return config, config.Put("quantization_config", map[string]any{
		"quant_method": "compressed-tensors", "version": "0.12.2", "transform_config": map[string]any{},
		"sparsity_config": map[string]any{
			"format": sparseBitmask, "targets": []string{"Linear"}, "ignore": []string{"lm_head"},
			"global_sparsity": float64(r.zeros) / float64(r.params), "sparsity_structure": r.report.Structure,
		},
	})
}

// quantization is the part of a quantization_config that says how matrices are packed.
type quantization struct {
	Sparsity struct {
		Format string `json:"format"`
	} `json:"sparsity_config"`
	Groups map[string]any `json:"config_groups"`
}

// onlyPacked reports whether a quantization_config says nothing but that matrices are packed as bitmasks.
func onlyPacked(raw json.RawMessage) bool {
	var q quantization
	return json.Unmarshal(raw, &q) == nil && slices.Contains([]string{sparseBitmask, "dense"}, q.Sparsity.Format) &&
		len(q.Groups) == 0
}

// isPacked reports whether a configuration says that matrices are packed as bitmasks.
func isPacked(config *orderedjson.Object) bool {
	var q quantization
	raw := config.Get("quantization_config")
	return raw != nil && json.Unmarshal(raw, &q) == nil && q.Sparsity.Format == sparseBitmask
}
