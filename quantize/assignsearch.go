package quantize

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// found is what a search has come to, in nats a token on the calibration text.
type found struct {
	choice       []int
	score, start float64
}

// judge measures assignments on the model itself, whose matrices it changes.
type judge struct {
	*candidates
	baselines []*lm.Baseline // of each stage
	now       []int          // the level that each part has in memory; -1: as in the files
}

// search looks for a better assignment by switching levels. Offspring are measured on an eighth of the calibration
// text, the best quarter of them on all of it.
func (c *candidates) search(ctx context.Context, calib corpus.Windows, start []int) (_ *found, err error) {
	dense, err := lm.Load(ctx, c.m.Path(), c.m.Device(), lm.Options{Stream: true, Precision: c.m.Precision()})
	if err != nil {
		return nil, err
	}
	defer dense.Close()

	j := &judge{candidates: c, now: make([]int, len(c.parts))}
	for i := range j.now {
		j.now[i] = -1
	}
	defer j.restore()

	little := calib
	little.IDs = calib.IDs[:max(1, len(calib.IDs)/8)]
	for _, w := range []corpus.Windows{little, calib} {
		b, err := dense.NewBaseline(ctx, w, nil)
		if err != nil {
			return nil, err
		}
		defer b.Free()
		j.baselines = append(j.baselines, b)
	}

	result := &found{}
	s := levels.Search{
		Problem: c.problem, Start: start, Generations: c.o.Generations, Offspring: c.o.Offspring,
		Survivors: []int{max(1, c.o.Offspring/4)}, Seed: c.o.Seed, Judge: j.judge,
		Note: func(g levels.Generation) {
			if g.Number == 0 {
				result.start = g.Score
			}
			c.o.Step(AssignStep{Stage: AssignSearch, Done: g.Number, Of: c.o.Generations, Score: g.Score})
		},
	}
	result.choice, result.score, err = s.Run(ctx)
	return result, err
}

// restore gives the model the values of its files again.
func (j *judge) restore() {
	for i, level := range j.now {
		if level < 0 {
			continue
		}
		for _, one := range j.parts[i].members {
			_ = j.m.Restore(one.name)
		}
	}
}

// judge measures the divergence of assignments at a stage.
func (j *judge) judge(ctx context.Context, stage int, choices [][]int) ([]float64, error) {
	figures := make([]float64, len(choices))
	for i, choice := range choices {
		key := keyOf(stage, choice)
		if v, ok := j.o.Known(key); ok {
			figures[i] = v
			continue
		}

		if err := j.apply(ctx, choice); err != nil {
			return nil, err
		}
		d, err := j.baselines[stage].Compare(ctx, j.m, nil)
		if err != nil {
			return nil, err
		}
		figures[i] = d.KL
		if err := j.o.Note(key, figures[i]); err != nil {
			return nil, err
		}
	}
	return figures, nil
}

// keyOf names a measurement.
func keyOf(stage int, choice []int) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d:", stage)
	for _, k := range choice {
		fmt.Fprintf(&text, "%d.", k)
	}
	return text.String()
}

// apply gives the matrices in memory the values of an assignment.
func (j *judge) apply(ctx context.Context, choice []int) error {
	for i, level := range choice {
		if j.now[i] == level {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}

		j.now[i] = level
		for _, one := range j.parts[i].members {
			w, err := j.read(one)
			if err != nil {
				return err
			}
			if err := one.round[level](w); err != nil {
				return fmt.Errorf("%s: tensor %q: %w", j.tensors.File(one.name), one.name, err)
			}
			own, err := j.m.MutableParam(one.name)
			if err != nil {
				return err
			}
			if err := hostmat.Store(j.m.Device(), own, w, one.transposed); err != nil {
				return err
			}
		}
	}
	return j.m.Device().Ops().Sync()
}
