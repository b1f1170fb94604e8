package distil

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/batches"
)

// Resident is a teacher that runs beside the student.
type Resident struct {
	Model *lm.Model
	// Vocab is how many tokens of the teacher's count: those that the student has too.
	Vocab       int
	Temperature float64
	Top         int // of each row, at most Vocab; 0: all

	ids    [][]int32 // of the batch
	hidden *lm.Hidden
	rows   []int
	labels []int32
	logits *kernels.Buffer // of the latest targets
	losses *kernels.Buffer
	probs  *kernels.Buffer
}

// Begin implements [Source]: the teacher runs over the batch.
func (r *Resident) Begin(ctx context.Context, b batches.Batch) error {
	// A step that measures the norm of the gradients first takes two passes over one batch.
	if r.hidden != nil && slices.EqualFunc(r.ids, b.IDs, slices.Equal) {
		r.rows, r.labels = rowsOf(b)
		return nil
	}

	r.Free()
	h, err := r.Model.Embed(b.IDs)
	if err != nil {
		return fmt.Errorf("teacher: %w", err)
	}
	for l := range r.Model.Blocks() {
		if err := r.Model.RunBlock(ctx, l, h, nil); err != nil {
			h.Free()
			return fmt.Errorf("teacher: %w", err)
		}
	}

	r.ids, r.hidden = b.IDs, h
	r.rows, r.labels = rowsOf(b)
	return nil
}

// Free gives the memory of the batch back.
func (r *Resident) Free() {
	if r.hidden != nil {
		r.hidden.Free()
	}
	for _, b := range []*kernels.Buffer{r.logits, r.losses, r.probs} {
		if b != nil {
			b.Free()
		}
	}
	r.ids, r.hidden = nil, nil
	r.logits = nil
	r.losses = nil
	r.probs = nil
}

// Targets implements [Source].
func (r *Resident) Targets(ctx context.Context, lo, hi int) (*Targets, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	logits, err := r.Model.Logits(r.hidden, r.rows[lo:hi]...)
	if err != nil {
		return nil, fmt.Errorf("teacher: %w", err)
	}

	dev := r.Model.Device()
	ops := dev.Ops()
	if logits.Cols > r.Vocab {
		few, err := dev.Alloc(kernels.F32, logits.Rows*r.Vocab)
		if err != nil {
			return nil, err
		}
		m := kernels.MatOf(few, logits.Rows, r.Vocab)
		ops.Convert(m, logits.ColRange(0, r.Vocab))
		logits.Buf.Free()
		logits = m
	}

	// The targets refer to it.
	if r.logits != nil {
		r.logits.Free()
	}
	r.logits = logits.Buf

	cool(ops, logits, r.Temperature)
	if r.Top == 0 {
		return r.whole(logits, r.labels[lo:hi])
	}
	return r.some(logits, r.labels[lo:hi])
}

// some takes the likeliest tokens of each row.
func (r *Resident) some(logits kernels.Mat, labels []int32) (*Targets, error) {
	dev, n := r.Model.Device(), logits.Rows
	info := dev.Info()
	t := &Targets{
		Top: r.Top, IDs: make([]int32, n*r.Top), LogP: make([]float64, n*r.Top), Rest: make([]float64, n),
	}

	z, err := hostOf(dev, info, logits)
	if err != nil {
		return nil, err
	}
	own := r.own(labels)
	lse := make([]float64, n)
	mmapsafe.Split(info.Threads, n, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, ids := z.RowF32(i), t.IDs[i*r.Top:][:r.Top]
			top(row, ids)
			for j, id := range ids {
				t.LogP[i*r.Top+j] = float64(row[id])
			}
			lse[i] = float64(row[own[i]])
		}
	})

	at := slices.Clone(lse)
	if err := r.softmax(logits, logits, own, lse, at); err != nil {
		return nil, err
	}
	if z, err = hostOf(dev, info, logits); err != nil {
		return nil, err
	}

	mmapsafe.Split(info.Threads, n, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, first := z.RowF32(i), i*r.Top
			row[own[i]] = float32(math.Exp(at[i] - lse[i]))
			t.Rest[i] = rest(row, t.IDs[first:][:r.Top])
			for j := range r.Top {
				t.LogP[first+j] -= lse[i]
			}
		}
	})

	return t, nil
}

// own gives each row a token whose logit tells what the sum of all exponentials is: the label, as for the student.
func (r *Resident) own(labels []int32) []int32 {
	own := slices.Clone(labels)
	for i, y := range own {
		if int(y) >= r.Vocab {
			own[i] = 0
		}
	}
	return own
}

// softmax writes the probabilities of logits, less 1 at own, to p, and log Σ exp to lse; at are the logits at own.
func (r *Resident) softmax(p, logits kernels.Mat, own []int32, lse, at []float64) (err error) {
	dev := r.Model.Device()
	if r.losses == nil || r.losses.Len < len(own) {
		if r.losses != nil {
			r.losses.Free()
		}
		if r.losses, err = dev.Alloc(kernels.F64, max(len(own), 64)); err != nil {
			return err
		}
	}
	if err := crossEntropy(dev, r.losses, p, logits, own, 1, lse); err != nil {
		return err
	}

	for i := range lse {
		lse[i] += at[i]
		if err := checkFinite(r.Model.Path(), lse[i]); err != nil {
			return fmt.Errorf("%w: %w", lm.ErrNonFinite, err)
		}
	}
	return nil
}

// whole takes all tokens of each row.
func (r *Resident) whole(logits kernels.Mat, labels []int32) (t *Targets, err error) {
	dev, n := r.Model.Device(), logits.Rows
	info := dev.Info()
	t = &Targets{LSE: make([]float64, n)}
	if t.Logits, err = hostOf(dev, info, logits); err != nil {
		return nil, err
	}

	own := r.own(labels)
	at := make([]float64, n)
	for i, y := range own {
		at[i] = float64(t.Logits.RowF32(i)[y])
	}

	if r.probs == nil || r.probs.Len < logits.Len() {
		if r.probs != nil {
			r.probs.Free()
		}
		if r.probs, err = dev.Alloc(kernels.F32, logits.Len()); err != nil {
			return nil, err
		}
	}

	p := kernels.MatOf(r.probs, n, logits.Cols)
	if err := r.softmax(p, logits, own, t.LSE, at); err != nil {
		return nil, err
	}
	if t.P, err = hostOf(dev, info, p); err != nil {
		return nil, err
	}
	for i, y := range own {
		t.P.RowF32(i)[y] = float32(math.Exp(at[i] - t.LSE[i]))
	}

	return t, nil
}
