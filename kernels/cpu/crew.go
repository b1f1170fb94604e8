package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcompress/compress/internal/mmapsafe"
)

// crew is the helpers of a device. Waking a sleeping thread takes tens of microseconds, more than many operations; so a
// helper that has run out of work looks out for more during the next watch, and ends if there is none: nothing is left
// behind when a device is no longer used. Operations that run at the same time share the helpers.
type crew struct {
	once    sync.Once
	helpers []helper
	watch   time.Duration
}

// watch is how long a helper looks for more work, where every helper has a processor of its own.
const watch = 50 * time.Microsecond

// helper is the place of one goroutine: nil while there is none, idle while it looks for work, else what it works on.
type helper struct {
	job atomic.Pointer[job]
	_   [56]byte // keep two helpers off one cache line
}

var idle = new(job)

// job is one parallel loop.
type job struct {
	f    func(i int)
	n    int64
	next atomic.Int64 // first piece that nobody has taken
	done atomic.Int64
	wait sync.WaitGroup // pieces that are not done
	lost mmapsafe.First // pieces of mapped files that could not be read
}

// parallel runs f(i) for every piece i in [0, n). Pieces are handed out one at a time, so a piece should be
// worth tens of microseconds; what a piece covers must not depend on the number of threads. A fault of a mapped
// file, on whichever thread, panics here.
func (d *Device) parallel(n int, f func(i int)) {
	workers := min(d.threads, n)
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}

	c := &d.crew
	c.once.Do(func() { c.start(d.threads - 1) })
	j := &job{f: f, n: int64(n)}
	j.wait.Add(n)
	for i := range workers - 1 {
		c.recruit(&c.helpers[i], j)
	}

	ended := false
	defer func() {
		if !ended { // by a panic: the helpers may use what the caller gives back on its way out
			j.abandon()
		}
	}()
	j.run()
	j.finish(c.watch)
	ended = true
	j.lost.Raise()
}

func (c *crew) start(n int) {
	c.helpers = make([]helper, n)
	if n < runtime.GOMAXPROCS(0) {
		c.watch = watch
	}
}

// recruit gives j to a helper, unless it works for another operation. One whose job is all done is about to
// look for work, which is worth a moment: operations follow each other within less than that.
func (c *crew) recruit(h *helper, j *job) {
	for range 1000 {
		switch old := h.job.Load(); {
		case old == nil:
			if h.job.CompareAndSwap(nil, j) {
				go c.help(h)
				return
			}
		case old == idle:
			if h.job.CompareAndSwap(idle, j) {
				return
			}
		case old.done.Load() < old.n:
			return
		}
	}
}

// help works on the helper's job and on those that follow within the watch.
func (c *crew) help(h *helper) {
	for {
		h.job.Load().run()
		h.job.Store(idle)
		lookOut(c.watch, func() bool { return h.job.Load() != idle })
		if h.job.CompareAndSwap(idle, nil) {
			return
		}
	}
}

// run works on pieces until all are taken. One that is left by a fault of a mapped file counts as done, so that
// nobody waits for it.
func (j *job) run() {
	for all := false; !all; {
		if fault := mmapsafe.Catch(func() { j.pieces(); all = true }); fault != nil {
			j.lost.Keep(fault)
			j.count()
		}
	}
}

func (j *job) pieces() {
	for i := j.next.Add(1) - 1; i < j.n; i = j.next.Add(1) - 1 {
		j.f(int(i))
		j.count()
	}
}

func (j *job) count() {
	j.done.Add(1)
	j.wait.Done()
}

// abandon waits for the pieces that helpers have taken, behind a panic in one of the caller's own; the others are left.
func (j *job) abandon() {
	for range j.n - min(j.next.Swap(j.n), j.n) {
		j.count()
	}
	j.count() // the caller's
	j.wait.Wait()
}

// finish waits for the pieces that helpers have taken.
func (j *job) finish(watch time.Duration) {
	if !lookOut(watch, func() bool { return j.done.Load() == j.n }) {
		j.wait.Wait()
	}
}

// lookOut polls until found or until the watch is over, leaving the processor to other goroutines now and then,
// and reports whether found.
func lookOut(watch time.Duration, found func() bool) bool {
	for start := time.Now(); ; {
		for range 100 {
			if found() {
				return true
			}
		}

		if time.Since(start) >= watch {
			return false
		}

		runtime.Gosched()
	}
}
