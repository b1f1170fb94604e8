package optim

import (
	"errors"
	"fmt"
	"math"
)

// ErrSchedule is the error of a schedule that is not known or does not hold together.
var ErrSchedule = errors.New("schedule")

// Schedule gives the factor on the learning rate for a step, counted from 0.
type Schedule func(step int) float64

// ScheduleNames are the kinds that [NewSchedule] knows.
var ScheduleNames = []string{"constant", "linear", "cosine"}

// NewSchedule returns a schedule by its name: constant, linear (down to 0 at step total) or cosine (half a wave
// down to 0 there), each after a linear rise from 0 over the warm-up steps. They equal
// get_constant_schedule_with_warmup, get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup of the
// transformers library. The error wraps [ErrSchedule].
func NewSchedule(kind string, warmup, total int) (Schedule, error) {
	if warmup < 0 || total < 0 {
		return nil, fmt.Errorf("%w: %d warm-up steps of %d; want 0 or more", ErrSchedule, warmup, total)
	}

	switch kind {
	case "constant":
		return Constant(warmup), nil
	case "linear":
		return Linear(warmup, total), nil
	case "cosine":
		return Cosine(warmup, total), nil
	}

	return nil, fmt.Errorf("%w %.50q is not known; known: %q", ErrSchedule, kind, ScheduleNames)
}

// Constant is 1 after the warm-up.
func Constant(warmup int) Schedule {
	return warm(warmup, func(int) float64 { return 1 })
}

// Linear falls from 1 after the warm-up to 0 at step total, and stays there.
func Linear(warmup, total int) Schedule {
	return warm(warmup, func(step int) float64 {
		return max(0, float64(total-step)/float64(max(1, total-warmup)))
	})
}

// Cosine falls along half a cosine wave from 1 after the warm-up to 0 at step total. Later steps, as in the
// original, climb the wave again.
func Cosine(warmup, total int) Schedule {
	return warm(warmup, func(step int) float64 {
		progress := float64(step-warmup) / float64(max(1, total-warmup))
		return max(0, 0.5*(1+math.Cos(math.Pi*0.5*2*progress)))
	})
}

// warm puts a linear rise before a schedule.
func warm(steps int, after Schedule) Schedule {
	return func(step int) float64 {
		if step < steps {
			return float64(step) / float64(max(1, steps))
		}
		return after(step)
	}
}
