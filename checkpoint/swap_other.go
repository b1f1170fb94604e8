//go:build !linux

package checkpoint

// swap gives the folder dir the name final; what was there before has the name dir afterwards.
func swap(dir, final string) error { return swapByTwo(dir, final) }
