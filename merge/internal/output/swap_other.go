//go:build !linux

package output

import "os"

// swap puts folder a under the name of b, and b under that of a; for a moment neither has b's.
func swap(a, b string) error {
	aside := a + ".old"
	if err := os.Rename(b, aside); err != nil {
		return err
	}
	if err := os.Rename(a, b); err != nil {
		return err
	}
	return os.Rename(aside, a)
}
