// Package lint holds the repository's own rules as tests: which package may import which, names, documentation, sizes,
// and the promises about kernels and examples. It has no code of its own; run it with
//
//	go test ./internal/lint
//
// Sources are parsed for all build tags at once, so that no platform escapes. What a rule demands is said where it is
// tested.
package lint
