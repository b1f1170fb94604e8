//go:build !linux && !darwin && !noasm

package isa

// hasBF16 knows no way to ask the system.
func hasBF16() bool { return false }
