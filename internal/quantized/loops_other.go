//go:build (!amd64 && !arm64) || noasm

package quantized

import "github.com/modelcompress/compress/internal/isa"

// choose returns the loops of this build.
func choose(isa.Sets) *loops { return &portable }
