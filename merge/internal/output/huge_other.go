//go:build !linux

package output

// huge does nothing where huge pages cannot be asked for.
func huge([]byte) {}
