//go:build !linux

package direct

// huge does nothing where huge pages cannot be asked for.
func huge([]byte) {}
