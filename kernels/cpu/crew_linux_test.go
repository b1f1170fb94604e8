package cpu

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/modelcompress/compress/internal/mmapsafe"
)

// TestShortenedFile: a file that is cut off under an operation is an error of whoever called it, on whichever
// thread that is noticed; the helpers work on.
func TestShortenedFile(t *testing.T) {
	const pages = 64
	page := os.Getpagesize()
	path := filepath.Join(t.TempDir(), "weights")
	if err := os.WriteFile(path, make([]byte, pages*page), 0o600); err != nil {
		t.Fatal(err)
	}

	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	data, err := syscall.Mmap(int(f.Fd()), 0, pages*page, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}

	lost := errors.New("lost")
	mmapsafe.Add(data, func(int64) error { return lost })
	defer func() {
		mmapsafe.Remove(data, false)
		if err := syscall.Munmap(data); err != nil {
			t.Error(err)
		}
	}()

	if err := os.Truncate(path, int64(pages/2*page)); err != nil {
		t.Fatal(err)
	}

	for _, threads := range []int{1, 4} {
		d := New(Options{Threads: threads})
		var read, sum atomic.Int64
		for range 100 {
			err := mmapsafe.Do(func() error {
				d.parallel(pages, func(i int) { sum.Add(int64(data[i*page])); read.Add(1) })
				return nil
			})
			if !errors.Is(err, lost) {
				t.Fatalf("%d threads: %v", threads, err)
			}
		}

		if n := read.Load(); threads > 1 && n != 100*pages/2 {
			t.Errorf("%d threads: %d pieces were done, want all that could be: %d", threads, n, 100*pages/2)
		}

		d.Close()
	}
}
