//go:build !linux

package stage

import "os"

// exchange swaps the names of two folders. There is a moment in which neither has the name b.
func exchange(a, b string) error {
	old := b + ".old"
	if err := os.Rename(b, old); err != nil {
		return err
	}
	if err := os.Rename(a, b); err != nil {
		return err
	}
	return os.Rename(old, a)
}
