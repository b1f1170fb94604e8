package mmapsafe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/system"
)

var errLost = errors.New("lost")

// torn maps a file of two pages and cuts it to nothing.
func torn(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weights")
	size := 2 * os.Getpagesize()
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}

	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	data, err := system.Map(f, size)
	if err != nil {
		t.Fatal(err)
	}

	Add(data, func(at int64) error { return fmt.Errorf("byte %d: %w", at, errLost) })
	t.Cleanup(func() {
		Remove(data, false)
		if err := system.Unmap(data); err != nil {
			t.Error(err)
		}
	})

	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}

	return data
}

var sink byte

func TestFaultIsAnError(t *testing.T) {
	data := torn(t)
	at := os.Getpagesize() + 7
	for name, f := range map[string]func() error{
		"here": func() error { sink = data[at]; return nil },
		"in a group": func() error {
			var g Group
			for range 3 {
				g.Go(func() { sink = data[at] })
			}
			g.Wait()
			return nil
		},
		"among errors": func() error {
			g := NewErrors()
			g.Go(func() error { sink = data[at]; return nil })
			return g.Wait()
		},
	} {
		err := Do(f)
		if want := fmt.Sprintf("byte %d: lost", at); !errors.Is(err, errLost) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

// TestFaultAfterClosing: a deferred Close may come before the fault has got to those who wait for it.
func TestFaultAfterClosing(t *testing.T) {
	data := torn(t)
	err := Do(func() error {
		defer Remove(data, true)
		sink = data[0]
		return nil
	})
	if !errors.Is(err, errLost) {
		t.Errorf("got %v", err)
	}

	table.torn = nil
}

func TestOtherPanicsStay(t *testing.T) {
	for name, f := range map[string]func(){
		"a text":      func() { panic("caller's mistake") },
		"nil pointer": func() { var p *int; sink = byte(*p) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_ = Do(func() error { f(); return nil })
		}()
	}

	if err := Do(func() error { return errLost }); err != errLost {
		t.Errorf("got %v", err)
	}
}
