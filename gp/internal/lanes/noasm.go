//go:build (!amd64 && !arm64) || noasm

package lanes

// vector returns no loops: there is no assembly in this build.
func vector(func(set string) bool) []*Loops { return nil }
