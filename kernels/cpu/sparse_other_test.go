//go:build !amd64 || noasm

package cpu

// oldSparseDevices are the processors that only some builds know.
func oldSparseDevices(int) map[string]*Device { return nil }
