//go:build !linux && !noasm

package cpu

// enableAMX reports that tile registers are not available: only Linux hands them out on request.
func enableAMX() bool { return false }
