package output

import "golang.org/x/sys/unix"

// huge asks for huge pages.
func huge(p []byte) { _ = unix.Madvise(p, unix.MADV_HUGEPAGE) } // only advice
