package stream

import "golang.org/x/sys/unix"

// populate is the advice that maps pages at once.
const populate = unix.MADV_POPULATE_READ
