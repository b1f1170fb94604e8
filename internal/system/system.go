// Package system is what operating systems do differently with files and memory, where package os leaves it open:
// ways to open a file, locks that end with their process, mappings, room on a disk, processor time, and what an error
// says. On every system a name means the same, or says what it lacks there.
//
// On Windows files are opened so that they may be renamed and removed meanwhile, as elsewhere; a name of a mapped file
// cannot be given to another file there, nor can a folder be renamed in which a file is open. There is no durable
// folder but the file system's own journal, and nobody is told when a mapped file is cut off, since it cannot be.
package system

import (
	"errors"
	"os"
	"syscall"
)

// Errors of locks.
var (
	// ErrLocked: another process, or another open file of this one, has the lock.
	ErrLocked = errors.New("locked by another process")
	// ErrNoLocks: the file system has no locks, as some network ones.
	ErrNoLocks = errors.New("the file system has no locks")
)

// Lock locks an open file until it is closed, and waits for those that have it. The error may wrap [ErrNoLocks].
func Lock(f *os.File) error { return lockFile(f, true) }

// TryLock locks an open file until it is closed. The error wraps [ErrLocked] or [ErrNoLocks], or is one of the system.
func TryLock(f *os.File) error { return lockFile(f, false) }

// again repeats a system call that a signal has interrupted.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// Full reports whether an error says that a disk or a quota is full.
func Full(err error) bool { return Is(err, syscall.ENOSPC) || Is(err, syscall.EDQUOT) }

// Failing reports whether an error says that files cannot be written now, and may be another time: there is no room,
// the device fails, or it may only be read.
func Failing(err error) bool {
	return Full(err) || Is(err, syscall.EFBIG) || Is(err, syscall.EIO) || Is(err, syscall.EROFS)
}
