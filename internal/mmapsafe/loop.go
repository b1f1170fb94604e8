package mmapsafe

import (
	"runtime"
	"sync/atomic"
)

// The loops below share their work among goroutines as [Group] does: a fault in a mapping, on whichever
// goroutine, comes out of the call as a panic for the [Do] above, and no goroutine of the loop is left when it
// does. What a piece covers must not depend on the number of threads; then neither do results.

// Each calls f for every piece in [0, n), on up to threads goroutines; 0 means GOMAXPROCS. The next free
// goroutine takes the next piece, which suits pieces that take differently long.
func Each(threads, n int, f func(i int)) {
	threads = workers(threads, n)
	if threads <= 1 {
		for i := range n {
			f(i)
		}
		return
	}

	EachWith(threads, n, func() struct{} { return struct{}{} }, func(_ struct{}, i int) { f(i) })
}

// EachWith is [Each] with what scratch gives every goroutine to work in.
func EachWith[T any](threads, n int, scratch func() T, f func(s T, i int)) {
	threads = workers(threads, n)
	if threads <= 1 {
		if n > 0 {
			s := scratch()
			for i := range n {
				f(s, i)
			}
		}

		return
	}

	var g Group
	var next atomic.Int64
	run := func() {
		s := scratch()
		for i := next.Add(1) - 1; i < int64(n) && !g.first.Kept(); i = next.Add(1) - 1 {
			f(s, int(i))
		}
	}

	for range threads - 1 {
		g.Go(run)
	}

	g.here(run)
	g.Wait()
}

// Split calls f on consecutive ranges of nearly equal size that cover [0, n), as many as threads and no more
// than n; 0 means GOMAXPROCS. It suits many small pieces that take equally long.
func Split(threads, n int, f func(lo, hi int)) {
	threads = workers(threads, n)
	if threads <= 1 {
		if n > 0 {
			f(0, n)
		}
		return
	}

	var g Group
	for k := range threads - 1 {
		g.Go(func() { f(k*n/threads, (k+1)*n/threads) })
	}

	g.here(func() { f((threads-1)*n/threads, n) })
	g.Wait()
}

// workers is how many goroutines n pieces are for.
func workers(threads, n int) int {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	return min(threads, n)
}

// here calls f on the calling goroutine as one of the group. Where f panics for a reason of its own, the others
// end first: they may use what the caller gives back on its way out.
func (g *Group) here(f func()) {
	done := false
	defer func() {
		if !done {
			g.wait.Wait()
		}
	}()

	g.first.Keep(Catch(f))
	done = true
}
