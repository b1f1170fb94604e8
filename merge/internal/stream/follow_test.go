package stream

import "testing"

// TestFollow: a wake is shown, and so is the end.
func TestFollow(t *testing.T) {
	wake, shown := make(chan struct{}, 1), make(chan struct{}, 2)
	stop := Follow(wake, func() { shown <- struct{}{} })
	wake <- struct{}{}
	<-shown
	stop()
	if len(shown) != 1 {
		t.Errorf("%d calls at the end, want 1", len(shown))
	}
}
