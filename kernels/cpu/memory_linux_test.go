package cpu

import (
	"testing"
	"time"
)

// TestInfoIsCheap: what a device is can be asked for every matrix; files of the kernel are read for the first answer
// alone. An answer of a moment ago is given again, an older one is not.
func TestInfoIsCheap(t *testing.T) {
	d := New(Options{Threads: 1})
	first := d.Info()
	if first.Total == 0 || first.Free == 0 || first.Free > first.Total {
		t.Errorf("%d of %d bytes are free", first.Free, first.Total)
	}

	g := memoryGauge{bytes: 7, until: time.Now().Add(time.Hour)}
	if n := g.read(); n != 7 {
		t.Errorf("a fresh answer was thrown away for %d", n)
	}

	g.until = time.Now().Add(-time.Second)
	if n := g.read(); n == 7 || !g.until.After(time.Now().Add(-time.Second)) {
		t.Errorf("an old answer was given again: %d", n)
	}
}
