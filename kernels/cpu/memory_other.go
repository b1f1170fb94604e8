//go:build !linux

package cpu

// memory is unknown on this system.
func memory() (total, free int64) { return 0, 0 }

// model is unknown on this system.
func model() string { return "" }
