//go:build unix

package systemtest

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

func pipe(path string) error { return unix.Mkfifo(path, 0o666) }

func limitFiles(size uint64) error {
	signal.Ignore(syscall.SIGXFSZ) // the limit is an error of the write
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	limit.Cur = size
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &limit)
}

func mostFiles() (uint64, bool) {
	var files unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	return files.Cur, err == nil
}
