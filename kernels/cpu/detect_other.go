//go:build (!amd64 && !arm64) || noasm

package cpu

// detect finds no instruction set to use: this build has the portable kernels only.
func detect(string) features { return features{} }
