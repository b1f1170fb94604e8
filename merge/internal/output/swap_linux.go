package output

import "golang.org/x/sys/unix"

// swap exchanges the names of two folders in one step, so that one of them is there at any moment.
func swap(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}
