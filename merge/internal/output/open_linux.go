package output

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reopen opens f past the cache, for what f was opened for; nil if that cannot be done.
func reopen(f *os.File) *os.File {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil
	}
	t, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), flags&unix.O_ACCMODE|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return t
}

// refused reports whether an error says that the request had a form that the file system does not take.
func refused(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) }
