package lm_test

import (
	"context"
	"testing"
)

// TestPace: a pass takes time, and no sequences take none.
func TestPace(t *testing.T) {
	m := open()
	defer m.Close()
	got, err := m.Pace(context.Background(), [][]int32{{1, 2, 3, 4}, {5, 6}})
	if err != nil || got <= 0 || got > 1 {
		t.Errorf("%g s a token, %v", got, err)
	}
	if got, err := m.Pace(context.Background(), nil); got != 0 || err != nil {
		t.Errorf("%g s for nothing, %v", got, err)
	}
}
