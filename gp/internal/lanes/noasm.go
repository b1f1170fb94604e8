//go:build (!amd64 && !arm64) || noasm

package lanes

import "github.com/modelcompress/compress/internal/isa"

// vector returns no loops: there is no assembly in this build.
func vector(isa.Sets) []*Loops { return nil }
