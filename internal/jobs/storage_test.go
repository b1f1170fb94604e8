package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/scratch"
)

// TestFailedStorage: where the server inside the process says that it can't store what it is given, the work
// ends with the reason; it does not wait.
func TestFailedStorage(t *testing.T) {
	s, c := open(t, ServerOptions{}, Events{})
	q := offer(t, c, Offer{Name: "q", Contract: "1"}, "")
	within(t, func(ctx context.Context) {
		_ = q.Work(ctx, 1, func(ctx context.Context, _ Item) ([]byte, error) {
			s.storage.Errorf("JetStream failed to store a msg on stream '%s > %s': %v", "a", "b",
				fmt.Errorf("block: %w", &os.PathError{Op: "write", Path: "1.blk", Err: syscall.EIO}))
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})

	if _, err := q.Do(t.Context(), squares(2), nil); !errors.Is(err, ErrStorage) || !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	if err := q.Withdraw(t.Context()); err != nil {
		t.Error("what is answered is no trouble:", err)
	}
}

// TestUnwritableStorage: a folder that can't be written is found out about.
func TestUnwritableStorage(t *testing.T) {
	s := &storage{dir: "/nowhere", failed: make(chan struct{})}
	if err := s.trouble(); !errors.Is(err, ErrStorage) || !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}

	s = &storage{dir: t.TempDir(), failed: make(chan struct{})}
	s.Warnf("%v", fmt.Errorf("unrelated"))
	if err := s.trouble(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
}

// TestStorageHears: what the server says of a stream that it cannot write ends the work, whichever way it is said.
func TestStorageHears(t *testing.T) {
	block := fmt.Errorf("Error creating msg block file: %v", &os.PathError{Op: "open", Path: "4.blk", Err: syscall.EIO})
	for _, said := range []func(*storage){
		func(s *storage) { s.Errorf("JetStream stream '%s > %s' critical write error: %v", "$G", "work", block) },
		func(s *storage) {
			s.Errorf("%s", "JetStream failed to store a msg on stream '$G > work': "+block.Error())
		},
		func(s *storage) { s.Errorf("Critical write error: %v", block) },
	} {
		s := &storage{dir: "the/queue", failed: make(chan struct{})}
		said(s)
		if err := s.trouble(); !errors.Is(err, ErrStorage) || !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
	}
}

// TestAbandonedFolder: the temporary folder of a killed process goes when the next server begins, that of a
// living one stays.
func TestAbandonedFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	left := filepath.Join(os.TempDir(), "compress-queue-1")
	if err := errors.Join(os.MkdirAll(filepath.Join(left, "jetstream"), 0o700), scratch.Mark(left)); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		s, err := Serve(ServerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
	}

	all, err := filepath.Glob(filepath.Join(os.TempDir(), "compress-queue-*"))
	if err != nil || len(all) != 2 || slices.Contains(all, left) {
		t.Errorf("%q, %v; want those of two living servers", all, err)
	}
}

// TestSilentServer: a server inside the process that stops to answer is not waited for without end.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{store: &storage{dir: t.TempDir(), failed: make(chan struct{})}}
		err := c.persist(t.Context(), func(context.Context) error { return nats.ErrTimeout })
		if !errors.Is(err, ErrStorage) || !errors.Is(err, nats.ErrTimeout) {
			t.Error(err)
		}
	})
}

// TestDamagedStorage: where a file of the folder is damaged the error names the folder, and what to do.
func TestDamagedStorage(t *testing.T) {
	c := &Conn{store: &storage{dir: "the/queue", failed: make(chan struct{})}}
	err := c.trouble(&jetstream.APIError{
		Code: 500, ErrorCode: 10194,
		Description: `stream is offline: stopped - unsupported consumer "workers"`,
	})
	if !errors.Is(err, ErrStorage) || !strings.Contains(err.Error(), "the/queue: stream is offline") ||
		strings.Contains(err.Error(), "--") ||
		!strings.HasPrefix(failure.Hint(err), "delete this folder and --resume") {
		t.Error(err, failure.Hint(err))
	}
}

// TestDamagedFile: a file of an earlier run that the server cannot read is no code of its protocol to people, but the
// folder, and what to do; without the folder the work goes on.
func TestDamagedFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queue")
	offered := func() error {
		s, err := Serve(ServerOptions{Dir: dir})
		if err != nil {
			return err
		}
		defer s.Close()

		c, err := Connect(t.Context(), Options{Server: s, Name: "coordinator"})
		if err != nil {
			return err
		}
		defer c.Close()

		_, err = c.Offer(t.Context(), Offer{Name: "q", Contract: "1"}, []byte("spec"))
		return err
	}
	if err := offered(); err != nil {
		t.Fatal(err)
	}

	files, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "*", "obs", "workers"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.WriteFile(filepath.Join(files[0], "o.dat"), []byte("rubbish\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	err = offered()
	if !errors.Is(err, ErrStorage) || !strings.Contains(err.Error(), dir+": ") ||
		!strings.HasSuffix(err.Error(), ": its files are damaged") || strings.Contains(err.Error(), "code") ||
		!strings.HasPrefix(failure.Hint(err), "delete this folder") {
		t.Fatalf("%v (HINT: %s)", err, failure.Hint(err))
	}

	if err := errors.Join(os.RemoveAll(dir), offered()); err != nil {
		t.Errorf("without the folder: %v", err)
	}
}
