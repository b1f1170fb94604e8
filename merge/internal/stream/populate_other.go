//go:build !linux

package stream

import "golang.org/x/sys/unix"

// populate is the nearest advice where pages cannot be mapped at once.
const populate = unix.MADV_WILLNEED
