package safefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/modelcompress/compress/internal/system"
)

// ErrLinks: a link leads to a link that leads back to it, or there are too many of them.
var ErrLinks = errors.New("too many links")

// maxLinks is how many links are followed, one after the other: as many as the kernel follows.
const maxLinks = 40

// Target finds where an output is to be written whose name a user gave. Links are followed, also to a file that
// is not there yet, so that a link stays and the file that it leads to is written. direct tells that this is no
// file of a folder that could be replaced, but a device, a pipe, or what a process has open (such as
// /dev/stdout, whatever it leads to): it is to be written into.
func Target(path string) (to string, direct bool, err error) {
	for range maxLinks {
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return path, false, nil
		}

		if err != nil {
			return path, false, err
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			return path, !st.Mode().IsRegular() && !st.IsDir(), nil
		}

		dir, name := filepath.Split(path) // parts of a path are not cut out before the links in it are followed
		if dir == "" {
			dir = "."
		}
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return path, false, err
		}
		if opened.MatchString(dir) {
			return filepath.Join(dir, name), true, nil
		}

		next, err := os.Readlink(path)
		if err != nil {
			return path, false, err
		}

		if !filepath.IsAbs(next) {
			next = dir + string(filepath.Separator) + next
		}

		path = next
	}

	return path, false, fmt.Errorf("%s: %w", path, ErrLinks)
}

// opened are the folders of what processes have open. Links in them lead to an open file rather than to a name.
var opened = regexp.MustCompile(`^/proc/(\d+)(/task/\d+)?/fd$|^/dev/fd$`)

// WriteInto writes to a direct target, as [Target] gave it. A file that this process has open is written on
// from where it stands; others are written on at their end. A pipe that nobody reads is waited for until ctx is
// cancelled.
func WriteInto(ctx context.Context, to string, data []byte) error {
	f, err := into(ctx, to)
	if err != nil {
		return err
	}

	// has no effect on files that never make a writer wait
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Now()) })
	defer stop()

	_, err = f.Write(data)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = context.Cause(ctx)
	}

	return errors.Join(err, f.Close())
}

// into opens a direct target.
func into(ctx context.Context, to string) (*os.File, error) {
	if of := opened.FindStringSubmatch(filepath.Dir(to)); of != nil &&
		(of[1] == "" || of[1] == strconv.Itoa(os.Getpid())) {
		n, err := strconv.Atoi(filepath.Base(to))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", to, err)
		}

		f, err := system.Duplicate(n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", to, err)
		}

		return f, nil
	}

	for {
		f, err := system.OpenFile(to, os.O_WRONLY|os.O_APPEND|system.NonBlock|system.NoTerminal, 0)
		if !system.Is(err, syscall.ENXIO) {
			return f, err
		}

		if st, err := os.Stat(to); err != nil || st.Mode()&fs.ModeNamedPipe == 0 {
			return nil, fmt.Errorf("%s: cannot be written to: %w", to, syscall.ENXIO)
		}

		select { // there is no event to wait for until a reader opens the pipe
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: nobody reads the pipe: %w", to, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
