//go:build (!amd64 && !arm64) || noasm

package isa

// processor finds no instruction set to use: this build has portable kernels only.
func processor() Sets { return Sets{} }
