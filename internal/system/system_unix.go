//go:build unix

package system

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Ways to open a file, to be joined with those of package os; 0 on a system that has no such way.
const (
	NoFollow   = unix.O_NOFOLLOW  // a link is an error
	NonBlock   = unix.O_NONBLOCK  // a pipe holds nobody up
	NoTerminal = unix.O_NOCTTY    // a terminal does not become the process's own
	directory  = unix.O_DIRECTORY // anything but a folder is an error
)

// OpenFile is [os.OpenFile] of a file that others may rename and remove meanwhile.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag, perm)
}

// Rename is [os.Rename].
func Rename(from, to string) error { return os.Rename(from, to) }

// OpenIn opens a file by its name in a folder that is open, whatever name the folder has by now.
func OpenIn(folder *os.File, name string, flag int) (*os.File, error) {
	fd := -1
	err := again(func() (err error) {
		fd, err = unix.Openat(int(folder.Fd()), name, flag|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Duplicate is another handle of what this process has open as a descriptor.
func Duplicate(fd int) (*os.File, error) {
	n, err := unix.Dup(fd)
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(n)
	return os.NewFile(uintptr(n), fmt.Sprintf("/dev/fd/%d", fd)), nil
}

func lockFile(f *os.File, wait bool) error {
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}

	err := again(func() error { return unix.Flock(int(f.Fd()), how) })
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return ErrLocked
	case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: %w", ErrNoLocks, err)
	}

	return err
}

// Folder is a folder that is open.
type Folder struct{ *os.File }

// OpenFolder opens a folder, but not what a link leads to.
func OpenFolder(dir string) (Folder, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|directory|NoFollow, 0)
	return Folder{f}, err
}

// TryLock locks the folder until it is closed; see the function [TryLock].
func (f Folder) TryLock() error { return TryLock(f.File) }

// Is reports whether an error is one of that number.
func Is(err error, number syscall.Errno) bool { return errors.Is(err, number) }

// SyncFolder makes the names in an open folder durable, where the file system has such a thing.
func SyncFolder(d *os.File) error {
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}

// Mine reports whether a file or folder belongs to the user of this process.
func Mine(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}

// Writable returns nil if this process may make names in a folder.
func Writable(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }

// Allocated is how many bytes of the disk a file takes, which are fewer than its size where it has holes.
func Allocated(st fs.FileInfo) int64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return int64(sys.Blocks) * 512
	}
	return 0
}

// State names a state of a file: its device, number, size and times. changed is when it last changed, which includes
// changes of its name and mode.
func State(path string) (name string, changed time.Time, err error) {
	var s unix.Stat_t
	if err := again(func() error { return unix.Stat(path, &s) }); err != nil {
		return "", time.Time{}, err
	}
	name = fmt.Sprintf("%d:%d:%d:%d.%d:%d.%d", s.Dev, s.Ino, s.Size, s.Mtim.Sec, s.Mtim.Nsec, s.Ctim.Sec, s.Ctim.Nsec)
	return name, time.Unix(s.Ctim.Unix()), nil
}

// Space is the bytes that a process without privileges may still write beside a file or into a folder, and those that
// this process may, which the superuser's reserve may add to; -1 where the file system does not tell.
func Space(f *os.File) (free, most int64) {
	var stat unix.Statfs_t
	if err := again(func() error { return unix.Fstatfs(int(f.Fd()), &stat) }); err != nil {
		return -1, -1
	}
	return space(&stat)
}

// space is [Space] of what a file system says of itself.
func space(stat *unix.Statfs_t) (free, most int64) {
	if stat.Blocks == 0 {
		return -1, -1
	}
	free, most = int64(stat.Bavail)*int64(stat.Bsize), int64(stat.Bavail)*int64(stat.Bsize)
	if os.Geteuid() == 0 {
		most = int64(stat.Bfree) * int64(stat.Bsize)
	}
	return free, most
}

// Map maps a file of that size, which is not 0, to be read.
func Map(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE)
}

// Anonymous is memory of whole pages, all zero, that the collector does not manage.
func Anonymous(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

// Unmap gives back what [Map] or [Anonymous] gave, whole.
func Unmap(data []byte) error { return unix.Munmap(data) }

// Drop gives back the memory behind whole pages of a mapped file. They are read anew when they are touched.
func Drop(data []byte) error { return unix.Madvise(data, unix.MADV_DONTNEED) }

// Prefetch asks the system to read whole pages of a mapped file ahead of their use. It is advice, and may fail.
func Prefetch(data []byte) { _ = unix.Madvise(data, unix.MADV_WILLNEED) }

// LimitsAreErrors makes a limit on the size of files an error of the write that meets it, and not the end of the
// process.
func LimitsAreErrors() { signal.Ignore(syscall.SIGXFSZ) }

// ProcessorTime is the processor time of this process, on all of its threads.
func ProcessorTime() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// PeakMemory is the largest resident size that the process has had, in bytes; 0 where the system does not tell.
func PeakMemory() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return int64(u.Maxrss) // bytes there, KiB elsewhere
	}
	return int64(u.Maxrss) << 10
}
