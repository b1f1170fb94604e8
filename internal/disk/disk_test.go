package disk

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/modelcompress/compress/internal/system"
)

func empty(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func size(t *testing.T, f *os.File) int64 {
	t.Helper()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// What cannot fit is refused before anything is reserved, with the free space as it is.
func TestTooLargeIsRefusedBeforeAnythingIsReserved(t *testing.T) {
	f := empty(t)
	if _, most := system.Space(f); most < 0 {
		t.Skip("the file system of temporary files does not tell its free space")
	}

	err := reserveWith(f, 1<<60, func(*os.File, int64) error {
		t.Error("the system was asked for the blocks")
		return syscall.ENOSPC
	})

	var short *ShortError
	if !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &short) || short.Need != 1<<60 || short.Free <= 0 ||
		size(t, f) != 0 {
		t.Errorf("%v (%+v), a file of %d bytes", err, short, size(t, f))
	}
}

// A system that takes blocks, and then finds too few, has them back at once, and the free space that is named
// is that from before.
func TestWhatWasReservedInVainIsGivenBack(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		f := empty(t)
		free, _ := system.Space(f)
		err := reserveWith(f, 1<<20, func(f *os.File, n int64) error { return errors.Join(f.Truncate(n/2), cause) })
		var short *ShortError
		if !errors.Is(err, cause) || !errors.As(err, &short) || size(t, f) != 0 {
			t.Fatalf("%v, a file of %d bytes", err, size(t, f))
		}

		if free > 0 && short.Free == 0 {
			t.Errorf("%d bytes were free, the error says %d", free, short.Free)
		}
	}
}

func TestReserveSetsTheSize(t *testing.T) {
	for name, reserve := range map[string]func(*os.File, int64) error{
		"blocks": reserve,
		"size":   func(*os.File, int64) error { return errors.ErrUnsupported },
	} {
		f := empty(t)
		if err := reserveWith(f, 4096, reserve); err != nil || size(t, f) != 4096 {
			t.Errorf("%s: %v, %d bytes", name, err, size(t, f))
		}
	}
}

// What is known not to fit is refused. File systems that say nothing, or that nothing is free, which some do
// that have room, are not believed, nor is what only the superuser may take kept from the superuser.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		need, own, free, most int64
		short                 bool
	}{
		{need: 10, free: 10, most: 10},
		{need: 11, free: 10, most: 10, short: true},
		{need: 11, own: 1, free: 10, most: 10},
		{need: 11, free: 10, most: 11},
		{need: 12, free: 10, most: 11, short: true},
		{need: 1 << 60, free: -1, most: -1},
		{need: 1 << 60, free: 0, most: 0},
	} {
		err := fits(c.need, c.own, c.free, c.most)
		var short *ShortError
		if errors.As(err, &short) != c.short ||
			c.short && (short.Need != c.need || short.Free != c.free || !errors.Is(err, syscall.ENOSPC)) {
			t.Errorf("%+v: %v", c, err)
		}
	}

	if err := Check(t.TempDir(), 1<<62, 0); err == nil {
		if free, _ := system.Space(empty(t)); free > 0 {
			t.Error("an output larger than any disk fits")
		}
	}
}
