package jobs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// ErrStorage: the folder of the server inside this process cannot be written any more. What is stored stays;
// the work can be gone on with once the folder can be written again.
var ErrStorage = errors.New("the queue cannot be stored")

// storage watches over the folder of a server. A server of its own accord only logs what fails there, and
// answers as if it might pass.
type storage struct {
	dir    string
	once   sync.Once
	err    error
	failed chan struct{} // closed once err is set
}

// fail keeps the first error.
func (s *storage) fail(err error) {
	s.once.Do(func() {
		s.err = fmt.Errorf("%w: %s: %w", ErrStorage, s.dir, err)
		close(s.failed)
	})
}

// trouble is the error that the storage has, nil if it has none. It writes some bytes to find out.
func (s *storage) trouble() error {
	select {
	case <-s.failed:
		return s.err
	default:
	}

	path := filepath.Join(s.dir, "probe")
	if err := errors.Join(os.WriteFile(path, make([]byte, 1<<16), 0o600), os.Remove(path)); err != nil {
		_ = os.Remove(path)
		s.fail(reason(err))
		return s.err
	}

	return nil
}

// reason is what the system says of a file, without the name of that file.
func reason(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// The storage is the logger of its server, and hears of writes that failed.

// Noticef is not heard.
func (s *storage) Noticef(string, ...any) {}

// Debugf is not heard.
func (s *storage) Debugf(string, ...any) {}

// Tracef is not heard.
func (s *storage) Tracef(string, ...any) {}

// Warnf hears like Errorf.
func (s *storage) Warnf(format string, args ...any) { s.Errorf(format, args...) }

// Fatalf hears like Errorf.
func (s *storage) Fatalf(format string, args ...any) { s.Errorf(format, args...) }

// Errorf takes an error of a file for a failure of the storage. Some come as text only: then it is what the
// server says of a stream that takes nothing any more.
func (s *storage) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if strings.Contains(text, "out of space") {
		s.fail(errors.New("no space is left"))
		return
	}

	for _, a := range args {
		var path *os.PathError
		if err, ok := a.(error); ok && errors.As(err, &path) && !errors.Is(err, os.ErrNotExist) {
			s.fail(reason(err))
		}
	}

	if strings.Contains(text, "ritical write error: ") || strings.Contains(text, "failed to store a msg") {
		s.fail(last(text))
	}
}

// last is the error that a text ends with.
func last(text string) error {
	for _, errno := range []syscall.Errno{
		syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE,
		syscall.EROFS, syscall.EFBIG,
	} {
		if strings.HasSuffix(text, errno.Error()) {
			return errno
		}
	}
	return fmt.Errorf("its server writes no more: %s", text[strings.LastIndex(text, ": ")+len(": "):])
}
