package cputime

import (
	"testing"
	"time"
)

// TestFree: on a quiet machine there are as many processors as threads, on a busy one those that the process
// had and those that nobody used; where nothing is known, all.
func TestFree(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Span
		want float64
	}{
		{"quiet", Span{Wall: time.Second, CPU: 2 * time.Second, Idle: 14 * time.Second}, 4},
		{"busy", Span{Wall: 10 * time.Second, CPU: 5 * time.Second, Idle: 10 * time.Second}, 1.5},
		{"starved", Span{Wall: 100 * time.Second}, 0.2},
		{"unknown", Span{Wall: time.Second, CPU: time.Millisecond, Idle: -1}, 4},
		{"too short", Span{Wall: time.Millisecond}, 4},
	} {
		if got := c.s.Free(4); got != c.want {
			t.Errorf("%s: %g, want %g", c.name, got, c.want)
		}
	}
}

// TestParse: idle time is that without work and that of waiting for disks; what is no such line is not known.
func TestParse(t *testing.T) {
	got, ok := parse([]byte("cpu  10 1 5 300 40 0 2 0 0 0\ncpu0 1 2 3 4 5\n"), 10*time.Millisecond)
	if !ok || got != 3400*time.Millisecond {
		t.Errorf("%v, %t", got, ok)
	}
	for _, text := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5", "cpu 1 2 3 x 5", "cpu 1 2 3 -4 5"} {
		if _, ok := parse([]byte(text), time.Second); ok {
			t.Errorf("%q is known", text)
		}
	}
}

// TestWatch: work of the process is counted.
func TestWatch(t *testing.T) {
	w := Start()
	sum := 0
	for Process() == w.cpu {
		sum++
	}
	if s := w.Stop(); s.CPU <= 0 || s.Wall <= 0 {
		t.Errorf("%+v after %d rounds", s, sum)
	}

	both := Span{Wall: 1, CPU: 2, Idle: 3}.Add(Span{Wall: 1, CPU: 1, Idle: -1})
	if both != (Span{Wall: 2, CPU: 3, Idle: -1}) {
		t.Errorf("%+v", both)
	}
}
