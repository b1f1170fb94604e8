package cpu

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// TestCrewPanic: where the caller's own piece panics, the pieces that helpers have taken end before the panic goes on,
// since they may use what the caller then gives back; the crew works on afterwards.
func TestCrewPanic(t *testing.T) {
	d := New(Options{Threads: 4})
	defer d.Close()

	for range 100 {
		var running, begun atomic.Int32
		func() {
			defer func() {
				if r := recover(); r != "caller's mistake" {
					t.Errorf("recovered %v", r)
				}
				if n := running.Load(); n != 0 {
					t.Errorf("%d pieces run on", n)
				}
			}()

			caller := goroutine()
			d.parallel(64, func(int) {
				if goroutine() == caller {
					for begun.Load() == 0 { // until a helper is at work
						runtime.Gosched()
					}
					panic("caller's mistake")
				}
				running.Add(1)
				defer running.Add(-1)
				begun.Add(1)
				for range 1000 { // so that a panic that does not wait goes first
					runtime.Gosched()
				}
			})
		}()
	}

	var done atomic.Int32
	d.parallel(64, func(int) { done.Add(1) })
	if done.Load() != 64 {
		t.Errorf("%d pieces of 64", done.Load())
	}
}

// goroutine names the goroutine that calls it.
func goroutine() string {
	text := make([]byte, 32)
	return string(text[:runtime.Stack(text, false)])[:20]
}
