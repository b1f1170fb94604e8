package lm

import (
	"context"
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// maxLogits bounds the logits that a loss holds at a time, in elements (32 MiB).
const maxLogits = 8 << 20

// Loss gives -log p, natural logarithm, of every predicted token of the sequences in the last hidden state, in
// order: position t of a sequence predicts label t+1, so a sequence of n tokens has n-1 values. Ignored labels
// give 0. The logits are computed for some rows at a time.
func (m *Model) Loss(ctx context.Context, h *Hidden, labels [][]int32) ([]float64, error) {
	if err := m.checkLabels(labels, h.Lens); err != nil {
		return nil, err
	}

	rows, want := layer.Predictions(h.Lens, labels)
	losses := make([]float64, len(rows))
	s := m.borrow()
	defer m.giveBack(s)

	p := m.outside(s, h.Lens)
	if err := p.losses(ctx, h, rows, want, losses); err != nil {
		return nil, err
	}

	return losses, m.checkLosses(h.Lens, losses)
}

// Logits gives the logits of the chosen rows of the last hidden state, of all when none is chosen: final norm, head and
// final cap. F32 [rows, vocabulary].
func (m *Model) Logits(h *Hidden, rows ...int) (kernels.Mat, error) {
	ids := make([]int32, 0, max(len(rows), 1))
	for _, r := range rows {
		if r < 0 || r >= h.X.Rows {
			return kernels.Mat{}, fmt.Errorf("%w: row %d of %d", ErrInput, r, h.X.Rows)
		}
		ids = append(ids, int32(r))
	}

	if len(rows) == 0 {
		ids = layer.Rows(h.X.Rows)
	}

	s := m.borrow()
	defer m.giveBack(s)

	p := m.outside(s, nil)
	return p.logits(context.Background(), h.X, ids)
}

// keepLogits computes the logits of all rows into the result.
func (p *pass) keepLogits(ctx context.Context, r *Result, h *Hidden) error {
	var err error
	r.Logits, err = p.logits(ctx, h.X, layer.Rows(h.X.Rows))
	return err
}

// logits computes the logits of some rows of x into a new matrix.
func (p *pass) logits(ctx context.Context, x kernels.Mat, rows []int32) (kernels.Mat, error) {
	v := p.m.config.Vocab
	buf, err := p.m.dev.Alloc(kernels.F32, len(rows)*v)
	if err != nil {
		return kernels.Mat{}, fmt.Errorf("logits of %d tokens: %w", len(rows), err)
	}
	out := kernels.MatOf(buf, len(rows), v)
	err = p.headChunks(ctx, x, rows, func(lo, hi int) kernels.Mat { return out.RowRange(lo, hi) },
		func(int, int, kernels.Mat) error { return nil })
	return out, err
}

// losses computes the losses of some rows of the last hidden state. Rows with an ignored label are not computed.
func (p *pass) losses(ctx context.Context, h *Hidden, rows, labels []int32, losses []float64) error {
	counted, want, at := layer.CountedRows(rows, labels)
	v := p.m.config.Vocab
	chunk := p.m.chunk(len(counted))
	if err := p.m.grow(&p.scratch.head[headLogits], kernels.F32, chunk*v); err != nil {
		return fmt.Errorf("logits of %d tokens: %w", chunk, err)
	}

	return p.headChunks(ctx, h.X, counted,
		func(lo, hi int) kernels.Mat { return kernels.MatOf(p.scratch.head[headLogits], hi-lo, v) },
		func(lo, hi int, logits kernels.Mat) error {
			some, err := p.crossEntropy(logits, want[lo:hi])
			for i, loss := range some {
				losses[at[lo+i]] = loss
			}
			return err
		})
}

// lossOf computes losses from logits that are there already, sequence by sequence.
func (p *pass) lossOf(logits kernels.Mat, labels []int32, losses []float64) error {
	row, at := 0, 0
	for _, n := range p.lens {
		if k := max(n-1, 0); k > 0 {
			some, err := p.crossEntropy(logits.RowRange(row, row+k), labels[at:at+k])
			if err != nil {
				return err
			}
			at += copy(losses[at:], some)
		}

		row += n
	}

	return nil
}

// crossEntropy gives the losses of a few rows on the host.
func (p *pass) crossEntropy(logits kernels.Mat, labels []int32) ([]float64, error) {
	n := len(labels)
	buf, err := p.lossBuffer(n)
	if err != nil {
		return nil, err
	}
	p.ops.CrossEntropy(kernels.MatOf(buf, 1, n), logits, labels)
	return p.m.setup.Float64s(buf, n)
}

// lossBuffer is where losses of n rows go.
func (p *pass) lossBuffer(n int) (*kernels.Buffer, error) {
	err := p.m.grow(&p.scratch.head[headLosses], kernels.F64, max(n, 64))
	return p.scratch.head[headLosses], err
}

// chunk is how many of n rows go through the head at a time.
func (m *Model) chunk(n int) int {
	return min(n, max(maxLogits/m.config.Vocab, 16))
}

// headChunks computes the logits of some rows of x chunk by chunk, each into the matrix that dst gives.
func (p *pass) headChunks(ctx context.Context, x kernels.Mat, rows []int32, dst func(lo, hi int) kernels.Mat,
	each func(lo, hi int, logits kernels.Mat) error,
) error {
	if len(rows) == 0 {
		return nil
	}

	// Chunks, since logits of all tokens over a large vocabulary would be the largest thing in memory by far.
	size := p.m.chunk(len(rows))
	if err := p.reserveHead(size); err != nil {
		return err
	}

	// A streamed head is brought to the device once for all chunks.
	if err := p.m.hold(p.m.output); err != nil {
		return err
	}
	defer p.m.done(p.m.output)

	for lo := 0; lo < len(rows); lo += size {
		if err := ctx.Err(); err != nil {
			return err
		}

		hi := min(lo+size, len(rows))
		logits := dst(lo, hi)
		if err := p.headRows(logits, x, rows[lo:hi]); err != nil {
			return err
		}
		if err := each(lo, hi, logits); err != nil {
			return err
		}
	}

	return p.ops.Sync()
}

// reserveHead makes room for some rows on their way through the head.
func (p *pass) reserveHead(rows int) error {
	c := p.m.config
	if err := p.m.grow(&p.scratch.head[headStream], kernels.F32, rows*c.Hidden); err != nil {
		return err
	}
	if c.LogitScale != 1 {
		if err := p.m.grow(&p.scratch.head[headScaled], kernels.F32, rows*c.EmbedDim); err != nil {
			return err
		}
	}
	if p.m.embedOut == nil {
		return nil
	}
	return p.m.grow(&p.scratch.head[headIn], kernels.F32, rows*c.EmbedDim)
}

// headRows computes the logits of some rows: final norm, head, final cap.
func (p *pass) headRows(logits, x kernels.Mat, rows []int32) error {
	h := kernels.MatOf(p.scratch.head[headStream], len(rows), x.Cols)
	p.ops.Gather(h, x, rows, 1)
	if p.m.finalNorm.W != nil {
		p.Norm(h, h, p.m.finalNorm)
	}
	if _, err := p.project(logits, h); err != nil {
		return err
	}
	if c := p.m.config.FinalSoftcap; c > 0 {
		p.ops.Softcap(logits, logits, c)
	}

	return nil
}

// project multiplies rows that have passed the final norm with the head, and gives what the head itself saw.
func (p *pass) project(logits, h kernels.Mat) (kernels.Mat, error) {
	o := kernels.MatMul{Precision: p.m.opts.Precision}
	if p.m.embedOut != nil {
		t := kernels.MatOf(p.scratch.head[headIn], h.Rows, p.m.config.EmbedDim)
		if err := p.MatMulNT(t, h, &p.m.embedOut.Weight, o); err != nil {
			return h, err
		}
		h = t
	}

	if s := p.m.config.LogitScale; s != 1 { // the head is linear, and its input the smaller matrix
		t := kernels.MatOf(p.scratch.head[headScaled], h.Rows, h.Cols)
		p.Scaled(t, h, s)
		h = t
	}

	if p.m.headBias != nil {
		o.Bias = p.m.headBias.Value
	}

	return h, p.Product(logits, h, &p.m.head.Weight, o)
}

// checkLosses finds the first loss that is no finite number, and why.
func (m *Model) checkLosses(lens []int, losses []float64) error {
	if i, t, loss, bad := layer.NotFinite(lens, losses); bad {
		return fmt.Errorf("loss of sequence %d, position %d: %w: %g: %s", i, t, ErrNonFinite, loss, m.blame())
	}
	return nil
}

// blame looks for the first parameter that holds a NaN or an infinity.
func (m *Model) blame() string {
	for _, name := range m.names {
		w, err := m.Param(name)
		if err != nil {
			continue
		}

		at := m.ops.NonFinite(w)

		if q := m.params[name]; m.opts.Stream || q.packed != nil || q.kept {
			m.mu.Lock()
			m.release(group{m.params[name]}, false)
			m.mu.Unlock()
		}

		if at >= 0 {
			return fmt.Sprintf("%s: %s is not finite at element %d", m.dense.File(name), name, at)
		}
	}

	return "all weights are finite, so an activation overflows"
}
