//go:build !linux

package stage

// exchange gives the folder dir the name final; what was there before has the name dir afterwards.
func exchange(dir, final string) error { return exchangeByTwo(dir, final) }
