package structure

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// greedy leaves one layer out after another.
func (d *depth) greedy(ctx context.Context) (*Depth, error) {
	r := &Depth{}
	stay := upTo(d.m.Blocks())
	for k := len(stay); k > d.keep; k-- {
		d.total += d.tokens() * d.roundWork(int64(k))
	}

	for len(stay) > d.keep {
		losses, err := d.without(ctx, stay)
		if err != nil {
			return nil, err
		}

		least := 0
		for i, v := range losses {
			if v < losses[least] {
				least = i
			}
		}
		if math.IsInf(losses[least], 0) {
			return nil, fmt.Errorf("%w: without any one of layers %v the loss is no number", lm.ErrNonFinite, stay)
		}

		r.Dropped, r.Loss = append(r.Dropped, stay[least]), append(r.Loss, losses[least])
		stay = slices.Delete(stay, least, least+1)
	}

	return r, nil
}

// roundWork is what a round over k layers takes for each token: the stream before each layer but the first once, and
// for each layer what comes behind it and the head.
func (d *depth) roundWork(k int64) int64 { return k - 1 + k*(k-1)/2 + k*d.m.HeadBlocks() }

// without gives, for each of some layers, the mean loss of the model that has the others; infinite where it is no
// number.
func (d *depth) without(ctx context.Context, stay []int) ([]float64, error) {
	losses := make([]float64, len(stay))
	missing := 0
	for i := range stay {
		v, ok := d.o.Known(keyOf("loss", stay, i))
		losses[i] = v
		if !ok {
			missing++
		}
	}
	if missing == 0 {
		d.did(d.tokens() * d.roundWork(int64(len(stay))))
		return losses, nil
	}

	sums := make([]lm.SequenceLosses, len(stay))
	for _, part := range d.batches() {
		if err := d.withoutOn(ctx, part, stay, sums); err != nil {
			return nil, err
		}
	}

	for i := range stay {
		losses[i], _ = sums[i].Mean()
		if math.IsNaN(losses[i]) {
			losses[i] = math.Inf(1)
		}
		if err := d.o.Note(keyOf("loss", stay, i), losses[i]); err != nil {
			return nil, err
		}
	}

	return losses, nil
}

// withoutOn adds the losses on some sequences.
func (d *depth) withoutOn(ctx context.Context, part corpus.Windows, stay []int, sums []lm.SequenceLosses) error {
	h, err := d.m.Embed(part.IDs)
	if err != nil {
		return err
	}
	defer h.Free()
	other, err := d.m.Embed(part.IDs) // as large; what it holds is overwritten
	if err != nil {
		return err
	}
	defer other.Free()

	for i, l := range stay {
		// What comes behind the layer runs on the stream before it. The first of it leaves the stream where it is.
		behind := stay[i+1:]
		end := h
		for k, next := range behind {
			if k == 0 {
				err = d.m.RunBlockTo(ctx, next, other, h, nil)
				end = other
			} else {
				err = d.m.RunBlock(ctx, next, other, nil)
			}
			if err != nil {
				return err
			}
			d.did(int64(h.X.Rows))
		}

		if err := d.losses(ctx, end, part, &sums[i]); err != nil {
			return err
		}
		d.did(int64(h.X.Rows) * d.m.HeadBlocks())

		if len(behind) == 0 {
			break
		}
		if err := d.m.RunBlock(ctx, l, h, nil); err != nil {
			return err
		}
		d.did(int64(h.X.Rows))
	}

	return nil
}

// losses adds those of a last hidden state, which stays as it is.
func (d *depth) losses(ctx context.Context, h *lm.Hidden, part corpus.Windows, sum *lm.SequenceLosses) error {
	labels := part.Labels
	if labels == nil {
		labels = part.IDs
	}
	all, err := d.m.Loss(ctx, h, labels)
	if err != nil {
		return err
	}

	for i, n := range h.Lens {
		n = max(n-1, 0)
		sum.Add(all[:n], labels[i])
		all = all[n:]
	}

	return nil
}

// keyOf names a measurement: of some layers without the i-th of them, or of all for -1.
func keyOf(what string, layers []int, i int) string {
	left := slices.Clone(layers)
	if i >= 0 {
		left = slices.Delete(left, i, i+1)
	}
	return fmt.Sprint(what, left)
}

// search begins with greedy's choice and goes on by exchanging layers.
func (d *depth) search(ctx context.Context) (*Depth, error) {
	n := d.m.Blocks()
	little := d.calib
	little.IDs = d.calib.IDs[:max(1, len(d.calib.IDs)/8)]
	stages := []corpus.Windows{little, d.calib}
	survivors := max(1, d.o.Offspring/4)

	// A generation measures all offspring on a little, and the best of them on all.
	each := (int64(d.keep) + d.m.HeadBlocks()) * d.tokens()
	searching := int64(d.o.Generations) * each * (int64(d.o.Offspring)/8 + int64(survivors))
	d.total += searching
	r, err := d.greedy(ctx)
	if err != nil {
		return nil, err
	}

	j := &judge{depth: d}
	for _, w := range stages {
		b, err := d.m.NewBaseline(ctx, w, nil)
		if err != nil {
			return nil, err
		}
		defer b.Free()
		j.baselines = append(j.baselines, b)
	}

	problem := levels.Problem{Budget: int64(d.keep)}
	start := make([]int, n)
	for l := range start {
		problem.Parts = append(problem.Parts, []levels.Level{{Size: 0}, {Size: 1}})
		if !slices.Contains(r.Dropped, l) {
			start[l] = 1
		}
	}

	first := d.done
	s := levels.Search{
		Problem: problem, Start: start, Generations: d.o.Generations, Offspring: d.o.Offspring,
		Survivors: []int{survivors}, Seed: d.o.Seed, Judge: j.judge,
		Note: func(g levels.Generation) {
			if g.Number == 0 {
				r.KL = []float64{g.Score}
			}
			d.done = first
			d.did(searching * int64(g.Number) / int64(d.o.Generations))
		},
	}
	best, score, err := s.Run(ctx)
	if err != nil {
		return nil, err
	}

	r.KL = append(r.KL, score)
	r.Dropped = nil
	for l, stays := range best {
		if stays == 0 {
			r.Dropped = append(r.Dropped, l)
		}
	}

	return r, nil
}

// judge measures which layers stay by the divergence from the whole model.
type judge struct {
	*depth
	baselines []*lm.Baseline // of each stage
}

func (j *judge) judge(ctx context.Context, stage int, choices [][]int) ([]float64, error) {
	figures := make([]float64, len(choices))
	for i, choice := range choices {
		var stay []int
		for l, stays := range choice {
			if stays == 1 {
				stay = append(stay, l)
			}
		}

		key := keyOf(fmt.Sprintf("kl %d", stage), stay, -1)
		if v, ok := j.o.Known(key); ok {
			figures[i] = v
			continue
		}

		found, err := j.baselines[stage].CompareLayers(ctx, j.m, stay, nil)
		if err != nil {
			return nil, err
		}
		figures[i] = found.KL
		if err := j.o.Note(key, found.KL); err != nil {
			return nil, err
		}
	}

	return figures, nil
}
