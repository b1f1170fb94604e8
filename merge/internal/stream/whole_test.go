package stream

import (
	"runtime/debug"
	"testing"
)

// TestTight: calls that overlap, the first ending before the second, leave the process with the memory limit
// that it had.
func TestTight(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	began := make(chan struct{})
	ended := make(chan struct{})
	last := make(chan error)
	go func() {
		<-began
		last <- tight(func() error {
			close(ended)
			<-began
			if now := debug.SetMemoryLimit(-1); now != min(before, wholeHeap) {
				t.Errorf("a limit of %d while a call runs", now)
			}
			return nil
		})
	}()

	if err := tight(func() error {
		began <- struct{}{}
		<-ended
		return nil
	}); err != nil {
		t.Error(err)
	}

	close(began)
	if err := <-last; err != nil {
		t.Error(err)
	}
	if now := debug.SetMemoryLimit(-1); now != before {
		t.Errorf("a limit of %d, not %d as before", now, before)
	}
}
