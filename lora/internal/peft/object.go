package peft

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/modelcompress/compress/lora/internal/adapter"
)

// empty reports whether a value switches a feature off: null, false, or nothing in it.
func empty(value json.RawMessage) bool {
	switch string(bytes.Join(bytes.Fields(value), nil)) {
	case "null", "false", "{}", "[]", `""`:
		return true
	}
	return false
}

// bad is the error about a key of the configuration.
func bad(key, format string, args ...any) error {
	return fmt.Errorf("%w: key %.100q: %s", adapter.ErrConfig, key, fmt.Sprintf(format, args...))
}

// decode reads a value into v; null leaves it as it is.
func decode[T any](key string, value json.RawMessage, v *T, want string) error {
	if string(value) == "null" {
		return nil
	}
	if err := json.Unmarshal(value, v); err != nil {
		return bad(key, "%.60s is not %s", value, want)
	}
	return nil
}
