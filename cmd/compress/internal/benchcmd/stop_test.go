package benchcmd

import (
	"context"
	"errors"
	"testing"
)

// A case is not even warmed up once the work is to stop.
func TestCasesStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := timed{run: func() error { t.Error("the case ran"); return nil }}
	if err := c.repeat(ctx, 0, nil, &clocks{}, &clocks{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
