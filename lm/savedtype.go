package lm

import (
	"bytes"
	"encoding/json"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/safetensors"
)

// renameDType changes the values of dtype and torch_dtype in a configuration and nothing else.
func renameDType(text []byte, t safetensors.DType) []byte {
	name := `"` + dtype.Torch(t) + `"`
	// By tokens, not decoded and encoded: numbers, order and spaces of the file stay as they are.
	d := json.NewDecoder(bytes.NewReader(text))

	depth, key := 0, ""
	var out []byte
	copied := 0
	for expectKey := true; ; {
		start := int(d.InputOffset())
		token, err := d.Token()
		if err != nil {
			return append(out, text[copied:]...)
		}

		end := int(d.InputOffset())
		switch v := token.(type) {
		case json.Delim:
			depth += map[json.Delim]int{'{': 1, '[': 1, '}': -1, ']': -1}[v]
			expectKey = depth == 1
			continue
		case string:
			// Only at the top: parts of a configuration have types of their own.
			if depth == 1 && !expectKey && (key == "dtype" || key == "torch_dtype") {
				at := start + bytes.IndexByte(text[start:end], '"')
				out = append(append(out, text[copied:at]...), name...)
				copied = end
			}
			key = v
		}

		if depth == 1 {
			expectKey = !expectKey
		}
	}
}
