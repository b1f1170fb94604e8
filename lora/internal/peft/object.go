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

// isNull reports whether a key is there without a value.
func isNull(value json.RawMessage) bool { return string(value) == "null" }

// optional reads a value into v, which null leaves as it is: for keys that PEFT declares as Optional.
func optional[T any](key string, value json.RawMessage, v *T, want string) error {
	if isNull(value) {
		return nil
	}
	return decode(key, value, v, want)
}

// bad is the error about a key of the configuration.
func bad(key, format string, args ...any) error {
	return fmt.Errorf("%w: key %.100q: %s", adapter.ErrConfig, key, fmt.Sprintf(format, args...))
}

// decode reads a value into v. PEFT computes with what the key says, so that null is no way to ask for its default.
func decode[T any](key string, value json.RawMessage, v *T, want string) error {
	if isNull(value) {
		return bad(key, "null is not %s (HINT: remove the key to get PEFT's default)", want)
	}
	if err := json.Unmarshal(value, v); err != nil {
		return bad(key, "%.60s is not %s", value, want)
	}
	return nil
}
