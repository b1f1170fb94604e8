package modelcmd

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// routed runs sequences, of which those of a mediated folder are routed. Where they go different ways there is
// one pass with several experts at once, or one for each way, whichever costs less; a gradient is of one set of
// weights.
func routed(j *cli.Job, m *lm.Model, experts *openmodel.Experts, ids [][]int32, o lm.ForwardOptions,
	gradient bool,
) (*lm.Result, error) {
	if experts == nil {
		return m.Forward(j.Ctx, ids, o)
	}

	if experts.BySentence() {
		if gradient {
			return nil, cli.Usagef("--grad: experts by sentence compute no gradients (HINT: leave out by=sentence)")
		}
		if err := experts.Sentences(j.Ctx, ids); err != nil {
			return nil, err
		}
		return m.Forward(j.Ctx, ids, o)
	}

	groups, err := experts.Groups(j.Ctx, ids)
	if err != nil {
		return nil, err
	}

	if len(groups) > 1 && gradient {
		return nil, cli.Usagef("--grad: its sequences go to %d different mixtures of experts, %s and %s among them "+
			"(HINT: --experts chooses one for all, or split the file)",
			len(groups), openmodel.WeightsText(experts.Names(), groups[0].Weights),
			openmodel.WeightsText(experts.Names(), groups[1].Weights))
	}

	together, err := experts.Together(ids, groups)
	if err != nil {
		return nil, err
	}

	if together {
		return m.Forward(j.Ctx, ids, o)
	}

	all := &lm.Result{LossPerToken: make([][]float64, len(ids))}
	for _, g := range groups {
		if err := experts.Use(g.Weights); err != nil {
			return nil, err
		}

		part := o
		if part.Labels != nil {
			part.Labels = picked(o.Labels, g.At)
		}

		r, err := m.Forward(j.Ctx, picked(ids, g.At), part)
		if err != nil {
			return nil, fmt.Errorf("sequences of %s: %w", openmodel.WeightsText(experts.Names(), g.Weights), err)
		}

		join(all, r, g.At, len(ids[0]))
	}

	return all, nil
}

// picked are some elements of a list.
func picked[T any](list []T, at []int) []T {
	var out []T
	for _, i := range at {
		out = append(out, list[i])
	}
	return out
}

// join puts the results of some sequences of a length in their places.
func join(all, r *lm.Result, at []int, length int) {
	rows := len(all.LossPerToken) * length
	place := func(dst *kernels.Mat, src kernels.Mat) {
		if src.Rows == 0 {
			return
		}
		if dst.Rows == 0 {
			*dst = kernels.MatOf(kernels.WrapF32(make([]float32, rows*src.Cols)), rows, src.Cols)
		}

		for k, i := range at {
			for p := range length {
				copy(dst.RowF32(i*length+p), src.RowF32(k*length+p))
			}
		}
	}

	place(&all.Logits, r.Logits)
	all.Hidden = slices.Grow(all.Hidden, len(r.Hidden))[:len(r.Hidden)]
	for i, h := range r.Hidden {
		place(&all.Hidden[i], h)
	}
	for k, i := range at {
		all.LossPerToken[i] = r.LossPerToken[k]
	}

	if n := all.Counted + r.Counted; n > 0 {
		all.Loss = (all.Loss*float64(all.Counted) + r.Loss*float64(r.Counted)) / float64(n)
		all.Counted = n
	}
}
