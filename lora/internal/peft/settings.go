package peft

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress/lora/internal/adapter"
)

// places are keys that say where a base was found, not what it is.
var places = []string{"base_model_name_or_path", "revision"}

// Settings is the configuration of an adapter folder of any kind in one spelling, without where its base was
// found: equal for adapters that compute the same from the same weights.
func Settings(dir string) ([]byte, error) {
	text, err := readConfig(dir)
	if err != nil {
		return nil, err
	}

	var keys map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&keys); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", filepath.Join(dir, ConfigName), adapter.ErrConfig, err)
	}
	for _, key := range places {
		delete(keys, key)
	}

	return json.Marshal(keys)
}
