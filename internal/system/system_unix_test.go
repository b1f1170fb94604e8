//go:build unix

package system

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestSpaceOfNothing: a file system that says nothing of itself is not taken for a full one.
func TestSpaceOfNothing(t *testing.T) {
	if free, most := space(&unix.Statfs_t{Bsize: 4096, Bfree: 1, Bavail: 1}); free != -1 || most != -1 {
		t.Errorf("a file system without blocks has %d and %d bytes", free, most)
	}
}
