//go:build (!amd64 && !arm64) || noasm

package quantized

// choose returns the loops of this build.
func choose(string) *loops { return &portable }
