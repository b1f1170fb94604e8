package memlimit

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestFields: what is not there, or no number, is no memory and no limit.
func TestFields(t *testing.T) {
	const info = "MemTotal:       16323456 kB\nMemAvailable:    1024 kB\nSwapFree:  0 kB\nBroken: x kB\n"
	for name, want := range map[string]int64{
		"MemAvailable:": 1 << 20, "MemTotal:": 16323456 << 10, "SwapFree:": 0, "Broken:": 0, "Nothing:": 0,
	} {
		if got := field(info, name); got != want {
			t.Errorf("%s %d, want %d", name, got, want)
		}
	}

	dir := t.TempDir()
	for text, want := range map[string]int64{"4096\n": 4096, "0": 0, "max\n": -1, "": -1} {
		path := filepath.Join(dir, "limit")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if got := number(path); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := number(filepath.Join(dir, "none")); got != -1 {
		t.Errorf("no file: %d", got)
	}
}

// TestSums: no limit stays none, and sizes are written in the unit that people would take.
func TestSums(t *testing.T) {
	for _, c := range [][3]int64{
		{1, 2, 3},
		{math.MaxInt64, 1, math.MaxInt64},
		{math.MaxInt64 - 1, 1, math.MaxInt64},
		{math.MaxInt64 - 1, 2, math.MaxInt64},
		{0, 0, 0},
	} {
		if got := plus(c[0], c[1]); got != c[2] {
			t.Errorf("%d + %d is %d", c[0], c[1], got)
		}
	}

	for n, want := range map[float64]string{
		512: "0.5 KiB", 4096: "4 KiB", 1023 << 10: "0.999 MiB", 16 << 20: "16 MiB", 3 << 40: "3072 GiB",
	} {
		if got := size(n); got != want {
			t.Errorf("%g bytes: %q, want %q", n, got, want)
		}
	}
}
