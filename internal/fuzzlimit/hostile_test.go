package fuzzlimit

import (
	"bytes"
	"runtime"
	"testing"
	"time"
)

// TestCheck: what is allowed grows with the input.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		used uint64
		size int
		ok   bool
	}{{Free, 0, true}, {Free + 1, 0, false}, {Free + 100*PerByte, 100, true}, {Free + 100*PerByte + 1, 100, false}} {
		if err := Check(c.used, c.size); (err == nil) != c.ok {
			t.Errorf("%d bytes for %d: %v", c.used, c.size, err)
		}
	}
}

// TestTotal: what is freed again counts too.
func TestTotal(t *testing.T) {
	before := total()
	for range 10 {
		runtime.KeepAlive(make([]byte, 1<<20))
	}
	if got := total() - before; got < 10<<20 {
		t.Errorf("%d bytes counted of 10 MiB", got)
	}
}

// TestFile: a file taken apart and put together is the same.
func TestFile(t *testing.T) {
	file := File(`{"a":1}`, []byte{1, 2, 3})
	if header, data := Parts(file); header != `{"a":1}` || !bytes.Equal(data, []byte{1, 2, 3}) ||
		!bytes.Equal(File(header, data), file) {
		t.Errorf("%q, %v", header, data)
	}

	if header, data := Parts([]byte{255, 255, 255, 255, 255, 255, 255, 255, 'x'}); header != "x" || len(data) > 0 {
		t.Errorf("%q, %v", header, data)
	}
	if header, data := Parts(nil); header != "" || data != nil {
		t.Errorf("%q, %v", header, data)
	}
}

func TestAliases(t *testing.T) {
	const want = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\na1: &a1 [*a0, *a0, *a0, *a0, *a0, *a0, *a0, *a0, *a0, *a0]\n"
	if got := Aliases(1); got != want {
		t.Error(got)
	}
}

// TestLimit: an input that computes without end is late by the time of the processor that it takes, one that waits by
// the clock.
func TestLimit(t *testing.T) {
	late := make(chan time.Duration, 1)
	tell := func(took time.Duration) { late <- took }

	stop := limit(10*time.Millisecond, time.Hour, tell)
	for x := uint64(1); len(late) == 0; x++ {
		runtime.KeepAlive(x * x)
	}
	if took := <-late; took < 10*time.Millisecond {
		t.Errorf("late after %s of the processor", took)
	}
	stop()

	stop = limit(5*time.Millisecond, 20*time.Millisecond, tell)
	if took := <-late; took < 5*time.Millisecond {
		t.Errorf("late after %s", took)
	}
	stop()
}
