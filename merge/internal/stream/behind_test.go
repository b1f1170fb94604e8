package stream

import (
	"context"
	"testing"
)

// readingSink is a sink that can read back.
type readingSink struct {
	sink
	began bool
}

func (s *readingSink) ReadBehind(int64) { s.began = true }

// TestReadBehind: what is written is read back beside the merging where there is a thread for it, which a
// single worker does not leave.
func TestReadBehind(t *testing.T) {
	for workers, want := range map[int]bool{1: false, 2: true} {
		s := &readingSink{}
		if _, err := Run(context.Background(), groups(item(t, "w", make([]byte, 400), func() {})), s,
			Options{Threads: workers}); err != nil {
			t.Fatal(err)
		}

		if s.began != want {
			t.Errorf("%d workers: began is %v", workers, s.began)
		}
	}
}
