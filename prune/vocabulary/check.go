package vocabulary

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/lm"
)

// step is how many tokens lie between the positions at which logits are compared.
const step = 16

// check runs the model and the trimmed one over runs of tokens that all stayed, and compares the logits of those.
func (w *work) check(ctx context.Context) error {
	small, err := lm.Load(ctx, w.Out, w.m.Device(), lm.Options{Stream: true, Decode: true})
	if err != nil {
		return fmt.Errorf("the trimmed model cannot be read: %w", err)
	}
	defer small.Close()

	w.report.BytesAfter = small.DataSize()
	pairs := w.keptRuns()
	if len(pairs) == 0 {
		w.note("the text has no two tokens that stay side by side, so that no logits were compared")
		return nil
	}

	r := &Logits{Equal: true}
	for _, ids := range pairs {
		if err := w.compareLogits(ctx, small, ids, r); err != nil {
			return err
		}
	}

	r.Sequences = len(pairs)
	r.Mass /= float64(r.Positions)
	w.report.Logits = r
	if !r.Equal {
		w.note("the logits of the tokens that stayed differ by up to %.3g: kernels round a product of fewer rows "+
			"another way", r.MaxAbs)
	}
	return nil
}

// keptRuns finds, in some of the texts, the longest run of tokens that all stayed.
func (w *work) keptRuns() (list [][]int32) {
	most := min(exampleTokens, w.m.Config().MaxPositions)
	for _, ids := range w.examples {
		if len(list) == maxExamples {
			break
		}

		mapped, _ := w.s.Map(ids)
		var longest []int32
		from := 0
		for i, id := range mapped {
			if id < 0 || i-from == most {
				from = i + 1
				continue
			}
			if i+1-from > len(longest) {
				longest = ids[from : i+1]
			}
		}
		if len(longest) > 1 {
			list = append(list, longest)
		}
	}
	return list
}

// compareLogits runs one sequence through both models.
func (w *work) compareLogits(ctx context.Context, small *lm.Model, ids []int32, r *Logits) error {
	mapped, _ := w.s.Map(ids)
	a, err := w.m.NewSession(lm.SessionOptions{})
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := small.NewSession(lm.SessionOptions{})
	if err != nil {
		return err
	}
	defer b.Close()

	for at := 0; at < len(ids); at += step {
		end := min(at+step, len(ids))
		x, err := a.Append(ctx, ids[at:end])
		if err != nil {
			return err
		}
		y, err := b.Append(ctx, mapped[at:end])
		if err != nil {
			return err
		}

		r.Positions++
		r.Mass += mass(x, w.s.Old)
		for i, old := range w.s.Old {
			if math.Float32bits(x[old]) != math.Float32bits(y[i]) {
				r.Equal = false
				r.MaxAbs = max(r.MaxAbs, math.Abs(float64(x[old])-float64(y[i])))
			}
		}
	}
	return nil
}

// mass is the probability that logits give to some tokens.
func mass(logits []float32, ids []int32) float64 {
	top := math.Inf(-1)
	for _, x := range logits {
		top = max(top, float64(x))
	}

	all, some := 0.0, 0.0
	for _, x := range logits {
		all += math.Exp(float64(x) - top)
	}
	for _, id := range ids {
		some += math.Exp(float64(logits[id]) - top)
	}
	return some / all
}
