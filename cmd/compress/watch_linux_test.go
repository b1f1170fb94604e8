package main

import (
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// watch reports on a channel that something below a folder has changed: a file or folder appeared or was written to.
// Asking in a loop instead would cost as much of the processors as the program that is waited for.
func watch(t *testing.T, dir string) (changed <-chan struct{}, stop func()) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Skipf("no notification of changes: %v", err)
	}

	w := &watcher{fd: fd, folders: map[uint32]string{}}
	w.add(dir)

	ready := make(chan struct{}, 1)
	f := os.NewFile(uintptr(fd), "inotify") // not blocking, so that Close ends Read
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for events := make([]byte, 64<<10); ; {
			n, err := f.Read(events)
			if err != nil {
				return
			}

			w.see(events[:n])
			select {
			case ready <- struct{}{}:
			default: // it is told already that something has changed
			}
		}
	}()

	return ready, func() {
		_ = f.Close()
		<-ended
	}
}

// watcher knows the folders of watch descriptors.
type watcher struct {
	fd      int
	folders map[uint32]string
}

// add watches a folder and those in it. What is made in a new one before it is watched is found by the walk.
func (w *watcher) add(dir string) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // it has gone again
		}
		mask := uint32(unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_ONLYDIR)
		if wd, err := unix.InotifyAddWatch(w.fd, path, mask); err == nil {
			w.folders[uint32(wd)] = path
		}
		return nil
	})
}

// see follows new folders. An event is a descriptor, a mask, a cookie, the length of the name, and the name padded
// with zeros.
func (w *watcher) see(events []byte) {
	for len(events) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name := unix.ByteSliceToString(events[unix.SizeofInotifyEvent:end])
		if binary.NativeEndian.Uint32(events[4:])&unix.IN_ISDIR != 0 {
			w.add(filepath.Join(w.folders[binary.NativeEndian.Uint32(events)], name))
		}
		events = events[end:]
	}
}
