// Package retry has what clients of HTTP servers share that ask again where a server is busy: how long it wants them to
// wait, waiting that an interrupt ends, and what it said, in a line.
package retry

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Sleep waits, unless ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// After reads the header Retry-After: seconds, or a date; 0 where it says nothing.
func After(header string) time.Duration {
	if n, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, time.Until(at)).Round(time.Second)
	}
	return 0
}

// longestSaid is how many bytes of what a server says are repeated.
const longestSaid = 200

// Said is what a server says as it may stand in an error: one line, shortened, without characters that would steer a
// terminal.
func Said(text string) string {
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)), " ")
	if len(text) > longestSaid {
		return strings.ToValidUTF8(text[:longestSaid], "") + "…"
	}
	return text
}
