package output

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// TestDirectSameBytes: parts at any position, in buffers laid out for it or not, give the file that plain writes
// give, and are read back at any position.
func TestDirectSameBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, 3<<20+777)
	for i := range want {
		want[i] = byte(r.Uint32())
	}

	path := filepath.Join(t.TempDir(), "x")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	if err := f.Truncate(int64(len(want))); err != nil {
		t.Fatal(err)
	}

	var files Files
	buf := make([]byte, 1<<20+Slack)
	for off := 0; off < len(want); {
		n := min(len(want)-off, []int{1, 100, 5000, 70000, 300000, 1 << 20}[r.IntN(6)])
		p := Buffer(buf, int64(off), int64(n))
		if r.IntN(3) == 0 {
			p = buf[r.IntN(Slack):][:n]
		}

		copy(p, want[off:])
		if got, err := files.WriteAt(f, p, int64(off)); err != nil || got != n {
			t.Fatal(got, err)
		}

		off += n
	}

	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the file differs (%v)", err)
	}

	in, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()

	for range 200 {
		off := r.IntN(len(want))
		n := min(len(want)-off, 1+r.IntN(1<<20))
		got, err := in.Read(buf, int64(off), int64(n))
		if err != nil || !bytes.Equal(got, want[off:off+n]) {
			t.Fatalf("%d bytes at %d differ (%v)", n, off, err)
		}
	}

	if _, err := in.Read(buf, int64(len(want)-10), 20); err == nil {
		t.Error("bytes beyond the end are read")
	}
}

// TestDirectFull: a file that may not grow ends in the system's error, and nothing is counted that was not written.
func TestDirectFull(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("/dev/full is not there")
	}
	defer f.Close()

	var files Files
	defer files.Close()

	buf := make([]byte, 1<<20+Slack)
	if n, err := files.WriteAt(f, Buffer(buf, 5, 1<<20), 5); err == nil || n > 0 {
		t.Errorf("%d bytes written, %v", n, err)
	}
}
