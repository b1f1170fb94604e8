package peft

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/modelcompress/compress/lora/internal/adapter"
)

// member is an entry of a JSON object, in the order of the text.
type member struct {
	key   string
	value json.RawMessage
}

// members reads a JSON object that has no key twice.
func members(text []byte) ([]member, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	start, err := d.Token()
	if err != nil {
		return nil, tidy(err)
	}
	if start != json.Delim('{') {
		return nil, fmt.Errorf("not a JSON object")
	}
	var list []member
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, tidy(err)
		}
		key, _ := token.(string)
		if seen[key] {
			return nil, fmt.Errorf("key %.100q stands there twice", key)
		}
		seen[key] = true
		m := member{key: key}
		if err := d.Decode(&m.value); err != nil {
			return nil, tidy(err)
		}
		list = append(list, m)
	}
	if _, err := d.Token(); err != nil {
		return nil, tidy(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("text after the end of the JSON object")
	}
	return list, nil
}

// tidy gives the end of a text a name.
func tidy(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("JSON ends too early")
	}
	return fmt.Errorf("invalid JSON: %w", err)
}

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
