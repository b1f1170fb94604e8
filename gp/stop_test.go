package gp

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
)

// soon is a context that is cancelled after it was asked a number of times.
type soon struct {
	context.Context
	left atomic.Int64
}

// Err implements [context.Context].
func (s *soon) Err() error {
	if s.left.Add(-1) < 0 {
		return context.Canceled
	}
	return s.Context.Err()
}

// The first population is not drawn to its end once the search is to stop.
func TestFirstPopulationStops(t *testing.T) {
	ctx := &soon{Context: t.Context()}
	ctx.left.Store(50)
	o := toy()
	o.Population = 1 << 12
	var judged atomic.Int64
	fit := Func(func(context.Context, *Expr) (float64, error) { return float64(judged.Add(1)), nil })
	if _, err := Search(ctx, PaperGrammar(), fit, o); !errors.Is(err, context.Canceled) || judged.Load() > 50 {
		t.Errorf("error %v, %d candidates judged", err, judged.Load())
	}
}
