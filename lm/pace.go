package lm

import (
	"context"
	"time"
)

// Tokens that [Model.Pace] runs: fewer make products that are slower for each token.
const paceTokens = 1024

// Least time that [Model.Pace] measures over: on a machine that others use too, shorter ones say little.
const paceTime = 500 * time.Millisecond

// Pace is how long a token of such sequences takes to pass a decoder layer now, in seconds by the clock: from running
// the layer in the middle over the first of them, which takes about half a second, or as long as one run does. With
// [Model.LossWork] it says how long a measurement takes, and before long work, how long that will be.
func (m *Model) Pace(ctx context.Context, ids [][]int32) (float64, error) {
	n, tokens := 0, 0
	for n < len(ids) && tokens < paceTokens {
		tokens += len(ids[n])
		n++
	}
	if tokens == 0 {
		return 0, nil
	}

	// The first time, the layer comes from the disk; few tokens are enough for that.
	const few = 16
	if _, err := m.pass(ctx, [][]int32{ids[0][:min(few, len(ids[0]))]}); err != nil {
		return 0, err
	}

	runs, took := 0, time.Duration(0)
	for runs == 0 || took < paceTime {
		one, err := m.pass(ctx, ids[:n])
		if err != nil {
			return 0, err
		}
		runs++
		took += one
	}

	return took.Seconds() / float64(runs*tokens), nil
}

// pass runs sequences through the layer in the middle.
func (m *Model) pass(ctx context.Context, ids [][]int32) (time.Duration, error) {
	h, err := m.Embed(ids)
	if err != nil {
		return 0, err
	}
	defer h.Free()

	start := time.Now()
	err = m.RunBlock(ctx, m.Blocks()/2, h, nil)
	if err == nil {
		// Work on a graphics processor goes on until somebody asks for its result.
		err = m.dev.Download(make([]byte, h.X.Buf.DType.Size()), h.X.Buf, h.X.Off)
	}
	return time.Since(start), err
}
