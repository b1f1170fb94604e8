package mmapsafe

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
)

// TestLoopsCover: every piece once, whatever the number of threads; scratch belongs to one goroutine; ranges
// follow one another.
func TestLoopsCover(t *testing.T) {
	for _, threads := range []int{-1, 0, 1, 2, 3, 16} {
		for _, n := range []int{0, 1, 2, 7, 100} {
			each := make([]atomic.Int32, n)
			with := make([]atomic.Int32, n)
			split := make([]atomic.Int32, n)
			Each(threads, n, func(i int) { each[i].Add(1) })

			EachWith(threads, n, func() *int { return new(int) }, func(own *int, i int) {
				*own++ // the race detector sees two goroutines with the same
				with[i].Add(1)
			})

			Split(threads, n, func(lo, hi int) {
				if hi <= lo {
					t.Errorf("an empty range of %d", n)
				}
				for i := lo; i < hi; i++ {
					split[i].Add(1)
				}
			})

			for i := range n {
				if each[i].Load() != 1 || with[i].Load() != 1 || split[i].Load() != 1 {
					t.Fatalf("%d threads: piece %d of %d: %d, %d and %d times", threads, i, n, each[i].Load(),
						with[i].Load(), split[i].Load())
				}
			}
		}
	}
}

// TestSplitIsTheSame: the ranges depend on threads and n alone.
func TestSplitIsTheSame(t *testing.T) {
	ends := make([]int, 11)
	Split(3, 11, func(lo, hi int) { ends[lo] = hi })
	if !slices.Equal(ends, []int{0: 3, 3: 7, 7: 11, 10: 0}) {
		t.Error(ends)
	}
}

// loops run f for four pieces on up to four goroutines.
var loops = map[string]func(f func(i int)){
	"each":  func(f func(i int)) { Each(4, 4, f) },
	"split": func(f func(i int)) { Split(4, 4, func(lo, _ int) { f(lo) }) },
}

// TestLoopFault: a fault in any piece is an error of the Do above, and nothing of the loop runs on.
func TestLoopFault(t *testing.T) {
	for name, loop := range loops {
		for faulty := range 4 {
			data := torn(t)
			var running atomic.Int32

			err := Do(func() error {
				loop(func(i int) {
					running.Add(1)
					defer running.Add(-1)
					if i == faulty {
						sink = data[os.Getpagesize()]
					}
				})
				return nil
			})
			if !errors.Is(err, errLost) || running.Load() != 0 {
				t.Errorf("%s, piece %d: %v, %d run on", name, faulty, err, running.Load())
			}
		}
	}
}

// TestLoopPanic: where the caller's own piece panics for another reason, the other goroutines end before the
// panic goes on.
func TestLoopPanic(t *testing.T) {
	var other atomic.Bool
	started, leave := make(chan struct{}), make(chan struct{})

	func() {
		defer func() {
			if r := recover(); r != "caller's mistake" {
				t.Errorf("recovered %v", r)
			}
			if !other.Load() {
				t.Error("another goroutine of the loop runs on")
			}
		}()

		// The last range is the caller's.
		Split(2, 2, func(lo, _ int) {
			if lo == 1 {
				<-started
				close(leave)
				panic("caller's mistake")
			}

			close(started)
			<-leave
			for range 1000 { // so that a panic that does not wait goes first
				runtime.Gosched()
			}

			other.Store(true)
		})
	}()
}
