//go:build !amd64 || noasm

package cpu

import "github.com/modelcompress/compress/internal/isa"

// detect reads the processor's instruction sets, less those that the comma-separated list switches off.
func detect(disable string) features { return features{Sets: isa.Usable(disable)} }
