//go:build unix && !linux

package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

func reserve(*os.File, int64) error { return unix.EOPNOTSUPP }
