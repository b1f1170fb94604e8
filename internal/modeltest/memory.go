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
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skipf("no /proc: %v", err)
	}

	_, rest, ok := strings.Cut(string(text), "RssAnon:")
	var n int64
	if _, err := fmt.Sscan(rest, &n); !ok || err != nil {
		t.Skip("the system does not tell anonymous memory")
	}

	return n << 10
}
