package modeltest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Anonymous is the memory of the process that no file stands behind.
func Anonymous(t testing.TB) int64 {
	t.Helper()
	return resident(t, "RssAnon:")
}

// Mapped is how much of mapped files is in the memory of the process.
func Mapped(t testing.TB) int64 {
	t.Helper()
	return resident(t, "RssFile:")
}

// resident is a figure of what is in memory.
func resident(t testing.TB, kind string) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skipf("no /proc: %v", err)
	}

	_, rest, ok := strings.Cut(string(text), kind)
	var n int64
	if _, err := fmt.Sscan(rest, &n); !ok || err != nil {
		t.Skipf("the system does not tell %s", kind)
	}

	return n << 10
}
