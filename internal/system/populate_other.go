//go:build !linux

package system

// Populate is the nearest to mapping pages at once: they are read ahead.
func Populate(data []byte) { Prefetch(data) }
