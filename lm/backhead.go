package lm

import (
	"context"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/internal/layer"
)

// The head of the backward pass: logits z = W·norm(x) (with a cap where there is one), loss -log softmax(z)[label],
// dz = (softmax(z) - onehot(label))/n. Rows without a label that counts have no gradient and no logits are computed for
// them.

// head computes the losses and takes their gradient to the last hidden state, some rows at a time: the logits of all
// positions are never there.
func (b *backward) head(ctx context.Context, h *Hidden) (*Result, error) {
	m := b.m
	rows, labels := layer.Predictions(h.Lens, b.o.Labels)
	losses := make([]float64, len(rows))
	counted, want, at := layer.CountedRows(rows, labels)
	if err := b.openHead(h.X, m.chunk(len(counted))); err != nil {
		return nil, err
	}

	scale := float32(1)
	if n := b.o.Denominator; n > 0 {
		scale = float32(1 / n)
	} else if len(counted) > 0 {
		scale = float32(1 / float64(len(counted)))
	}

	if err := m.hold(m.output); err != nil {
		return nil, err
	}
	defer m.done(m.output)

	// The loss is divided by the number of labels of all chunks, which is known beforehand, so that the gradients of a
	// chunk are final when it is done.
	size := m.chunk(len(counted))
	for lo := 0; lo < len(counted); lo += size {
		if err := ctx.Err(); err != nil {
			return nil, err
		}

		hi := min(lo+size, len(counted))
		some, err := b.headChunk(h.X, counted[lo:hi], want[lo:hi], scale)
		if err != nil {
			return nil, err
		}

		for i, loss := range some {
			losses[at[lo+i]] = loss
		}
	}

	r := &Result{}
	if err := m.summarize(r, h.Lens, labels, losses); err != nil {
		return nil, err
	}

	return r, b.deliver(b.outputs())
}

// outputs lists the parameters of the head in the order in which their gradients come; a tied table is not among them.
func (b *backward) outputs() group {
	return slices.DeleteFunc(slices.Clone(b.m.output), func(p *param) bool { return p == b.m.embed })
}

// openHead makes room for the head's gradients and for some rows on the way there and back.
func (b *backward) openHead(x kernels.Mat, rows int) error {
	m := b.m
	var err error
	if b.needs[len(m.blocks)] {
		if b.d, err = b.take(x.Rows, x.Cols); err != nil {
			return err
		}
	}

	if m.head == m.embed && b.wants(m.embed) {
		if b.table, err = b.tableRoom(); err != nil {
			return err
		}
	}

	if err := b.openGrads(b.outputs()); err != nil {
		return err
	}

	for _, g := range b.Grads {
		if err := m.setup.Zero(g); err != nil { // every chunk adds to them
			return err
		}
	}

	width := map[int]int{
		headStream: x.Cols, headNormed: x.Cols, headLogits: m.config.Vocab, headGrad: x.Cols, headGradNormed: x.Cols,
	}
	if m.config.FinalSoftcap > 0 {
		width[headCapped] = m.config.Vocab
	}
	if m.config.LogitScale != 1 {
		width[headScaled], width[headGradScaled] = m.config.EmbedDim, m.config.EmbedDim
	}
	if m.embedOut != nil {
		width[headIn], width[headGradIn] = m.config.EmbedDim, m.config.EmbedDim
	}

	for slot, n := range width {
		if err := m.grow(&b.scratch.head[slot], kernels.F32, rows*n); err != nil {
			return fmt.Errorf("logits of %d tokens: %w", rows, err)
		}
	}

	return nil
}

// headChunk computes the losses of some rows and their gradients.
func (b *backward) headChunk(x kernels.Mat, rows, labels []int32, scale float32) ([]float64, error) {
	m, n := b.m, len(rows)
	stream := b.headMat(headStream, n, x.Cols)
	normed := stream
	b.ops.Gather(stream, x, rows, 1)

	if m.finalNorm.W != nil {
		normed = b.headMat(headNormed, n, x.Cols)
		b.Norm(normed, stream, m.finalNorm)
	}

	logits := b.headMat(headLogits, n, m.config.Vocab)
	in, err := b.project(logits, normed)
	if err != nil {
		return nil, err
	}

	// Softcapping's derivative needs both sides of it, so losses get a matrix of their own.
	dlogits := logits
	if c := m.config.FinalSoftcap; c > 0 {
		b.ops.Softcap(logits, logits, c)
		dlogits = b.headMat(headCapped, n, m.config.Vocab)
	}

	losses, err := b.objective(dlogits, logits, labels, scale)
	if err != nil {
		return nil, err
	}

	if c := m.config.FinalSoftcap; c > 0 {
		b.ops.SoftcapBackward(dlogits, dlogits, logits, c)
	}

	return losses, b.headBackward(dlogits, in, normed, stream, rows)
}

// objective writes the gradients of the logits and gives the losses.
func (b *backward) objective(dlogits, logits kernels.Mat, labels []int32, scale float32) ([]float64, error) {
	if f := b.o.Objective; f != nil {
		if dlogits.Buf != logits.Buf {
			b.ops.Convert(dlogits, logits)
		}
		losses := make([]float64, len(labels))
		return losses, f(dlogits, labels, losses)
	}

	buf, err := b.lossBuffer(len(labels))
	if err != nil {
		return nil, err
	}

	b.ops.CrossEntropyBackward(dlogits, kernels.MatOf(buf, 1, len(labels)), logits, labels, scale)
	return b.m.setup.Float64s(buf, len(labels))
}

// headBackward takes the gradients of some logits back to the rows of the stream that they came from.
func (b *backward) headBackward(dlogits, in, normed, stream kernels.Mat, rows []int32) error {
	m := b.m

	// The losses of rows that are left out count, their gradients don't.
	if i, _ := slices.BinarySearch(rows, int32(b.From)); i > 0 { // of one sequence
		n := len(rows)
		rows = rows[i:]
		dlogits = dlogits.RowRange(i, n)
		in = in.RowRange(i, n)
		normed = normed.RowRange(i, n)
		stream = stream.RowRange(i, n)
	}

	g := b.grad(m.head)
	if m.head == m.embed {
		g = b.table
	}

	b.addOuter(g, dlogits, in, m.head)
	if g := b.grad(m.headBias); !g.IsZero() {
		b.ops.ColSum(g, dlogits)
	}
	if b.d.IsZero() && !b.wantsAny(b.outputs()) {
		return nil
	}

	o := kernels.MatMul{Precision: m.opts.Precision}
	dnormed := b.headMat(headGradNormed, len(rows), stream.Cols)
	if m.embedOut == nil {
		if err := b.headProductBackward(dnormed, dlogits, o); err != nil {
			return err
		}
	} else {
		din := b.headMat(headGradIn, len(rows), in.Cols)
		if err := b.headProductBackward(din, dlogits, o); err != nil {
			return err
		}
		b.addOuter(b.grad(m.embedOut), din, normed, m.embedOut)
		b.ops.MatMulNN(dnormed, din, m.embedOut.Value, o)
	}

	d := dnormed
	if m.finalNorm.W != nil {
		d = b.headMat(headGrad, len(rows), stream.Cols)
		if err := m.setup.Zero(d); err != nil {
			return err
		}
		b.NormBackward(d, dnormed, stream, m.finalNorm)
	}

	if !b.d.IsZero() {
		b.ops.ScatterAdd(b.d, d, rows, layer.Ones(len(rows)))
	}

	return nil
}

// headProductBackward computes the gradient of what goes into the head from that of the logits.
func (b *backward) headProductBackward(din, dlogits kernels.Mat, o kernels.MatMul) error {
	t := din
	s := b.m.config.LogitScale
	if s != 1 {
		t = b.headMat(headGradScaled, din.Rows, din.Cols)
	}

	err := b.scratch.blocks.ProductBackward(b.m.setup, t, dlogits, &b.m.head.Weight, o)
	if err == nil && s != 1 {
		b.Scaled(din, t, s)
	}
	return err
}

// addOuter adds dyᵀ·x to the gradient of p, if that is wanted.
func (b *backward) addOuter(g, dy, x kernels.Mat, p *param) {
	if !g.IsZero() {
		b.Outer(g, dy, x, &p.Weight, true)
	}
}

func (b *backward) headMat(slot, rows, cols int) kernels.Mat {
	return kernels.MatOf(b.scratch.head[slot], rows, cols)
}
