package editeval

import (
	"encoding/json"
	"math"
)

// Value is a figure; one that is not finite is null in JSON.
type Value float64

// MarshalJSON writes a number or null.
func (v Value) MarshalJSON() ([]byte, error) {
	if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return json.Marshal(f)
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads a number; null is NaN.
func (v *Value) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*v = Value(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(v))
}
