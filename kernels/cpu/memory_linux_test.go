package cpu

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestInfoOfTheMachine: total memory and the processor's name are those that the kernel writes, and no more memory is
// free than there is.
func TestInfoOfTheMachine(t *testing.T) {
	find := func(path, pattern string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Skip(err)
		}
		if m := regexp.MustCompile(pattern).FindSubmatch(text); m != nil {
			return string(m[1])
		}
		return ""
	}

	i := New(Options{Threads: 1}).Info()
	if kb := find("/proc/meminfo", `(?m)^MemTotal: +(\d+) kB$`); strconv.FormatInt(i.Total>>10, 10) != kb {
		t.Errorf("%d bytes in total, want %s kB", i.Total, kb)
	}
	if i.Free <= 0 || i.Free > i.Total {
		t.Errorf("%d of %d bytes are free", i.Free, i.Total)
	}
	if name := find("/proc/cpuinfo", `(?m)^model name\s*: *(.*?)\s*$`); i.Model != name {
		t.Errorf("the processor is %q, want %q", i.Model, name)
	}
}

func BenchmarkInfo(b *testing.B) {
	d := New(Options{Threads: 1})
	for b.Loop() {
		d.Info()
	}
}
