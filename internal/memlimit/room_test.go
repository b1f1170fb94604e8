package memlimit

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	if err := Check(1 << 10); err != nil {
		t.Errorf("a KiB: %v", err)
	}

	for _, need := range []float64{1 << 62, 1e30, math.Inf(1)} {
		if err := Check(need); !errors.Is(err, ErrMemory) ||
			runtime.GOOS == "linux" && !strings.Contains(err.Error(), "GiB are needed") {
			t.Errorf("%g bytes: %v", need, err)
		}
	}

	if free, known := Free(); runtime.GOOS == "linux" && (!known || free <= 0) {
		t.Errorf("%d %v", free, known)
	}
}
