//go:build !linux && !darwin && !noasm

package cpu

// hasBF16 knows no way to ask the system.
func hasBF16() bool { return false }
