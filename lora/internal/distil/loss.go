package distil

import (
	"context"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/batches"
)

// Source is what a teacher predicts for the rows of batches.
type Source interface {
	// Begin turns to a batch of n rows that count.
	Begin(ctx context.Context, b batches.Batch) error
	// Targets are those of the rows [lo, hi) of the batch, valid until the next call.
	Targets(ctx context.Context, lo, hi int) (*Targets, error)
}

// Targets are what a teacher predicts for some rows: its likeliest tokens and the rest of each, or all logits.
type Targets struct {
	Top  int       // tokens of a row
	IDs  []int32   // [rows, Top]
	LogP []float64 // [rows, Top], at the temperature
	Rest []float64 // [rows], the probability of all other tokens together
	// Logits, F32 [rows, tokens], are all of them, divided by the temperature, and LSE log Σ exp of each row; absent
	// where the others are given. P are the probabilities.
	Logits, P kernels.Mat
	LSE       []float64
}

// Loss is the objective of a student. It serves one backward pass at a time.
type Loss struct {
	Settings
	Source Source

	dev     kernels.Device
	info    kernels.Info
	scratch [buffers]*kernels.Buffer
}

// The buffers of a [Loss].
const (
	ofLoss   = iota // losses of the cross-entropy
	ofPlain         // gradients of the cross-entropy where the temperature is another
	ofLogits        // a copy of the student's logits, where all count
	buffers
)

// Free gives the memory back.
func (l *Loss) Free() {
	if l == nil {
		return
	}
	if s, ok := l.Source.(interface{ Free() }); ok {
		s.Free()
	}
	for i, b := range l.scratch {
		if b != nil {
			b.Free()
			l.scratch[i] = nil
		}
	}
}

// Objective is that of a pass over a batch, of a step in which counted labels count; nil for no Loss, which stands for
// the cross-entropy.
func (l *Loss) Objective(ctx context.Context, m *lm.Model, b batches.Batch, counted int) (
	func(logits kernels.Mat, labels []int32, losses []float64) error, error,
) {
	if l == nil {
		return nil, nil
	}
	if l.dev == nil {
		l.dev, l.info = m.Device(), m.Device().Info()
	}
	if err := l.Source.Begin(ctx, b); err != nil {
		return nil, err
	}

	// The head comes with some rows at a time, in order.
	at := 0
	return func(logits kernels.Mat, labels []int32, losses []float64) error {
		t, err := l.Source.Targets(ctx, at, at+len(labels))
		if err != nil {
			return err
		}
		at += len(labels)
		return l.rows(t, logits, labels, losses, 1/float64(counted))
	}, nil
}

// rows writes the losses of some rows, which are 0 before, and replaces their logits by the gradients of scale times
// the sum.
func (l *Loss) rows(t *Targets, logits kernels.Mat, labels []int32, losses []float64, scale float64) error {
	ops := l.dev.Ops()
	x := &chunk{Loss: l, t: t, labels: labels, losses: losses, scale: scale, ce: l.CE}

	// At another temperature the cross-entropy is one of other logits, and has gradients of its own.
	plain := kernels.Mat{}
	if l.Temperature != 1 {
		if l.CE > 0 {
			var err error
			if plain, err = l.buffer(ofPlain, logits.Rows, logits.Cols); err != nil {
				return err
			}
			ops.Convert(plain, logits)
			if err := l.crossEntropy(plain, plain, labels, l.CE*scale, losses); err != nil {
				return err
			}
			for i := range losses {
				losses[i] *= l.CE
			}
		}
		x.ce = 0
		cool(ops, logits, l.Temperature)
	}

	if err := x.student(logits); err != nil {
		return err
	}
	mmapsafe.Split(l.info.Threads, len(labels), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			x.row(i)
		}
	})
	if err := x.deliver(logits); err != nil {
		return err
	}

	if !plain.IsZero() {
		ops.Add(logits, logits, plain, 1)
	}
	return ops.Sync()
}

// cool divides logits by the temperature. Of every two models it does the same, so that equal ones stay equal.
func cool(ops *kernels.Ops, logits kernels.Mat, temperature float64) {
	if temperature != 1 {
		ops.Add(logits, logits, logits, float32(1/temperature-1))
	}
}

// buffer is a matrix of the loss's own.
func (l *Loss) buffer(slot, rows, cols int) (kernels.Mat, error) {
	b := l.scratch[slot]
	if b == nil || b.Len < rows*cols {
		if b != nil {
			b.Free()
		}
		var err error
		if b, err = l.dev.Alloc(kernels.F32, rows*cols); err != nil {
			l.scratch[slot] = nil
			return kernels.Mat{}, fmt.Errorf("distillation of %d tokens: %w", rows, err)
		}
		l.scratch[slot] = b
	}
	return kernels.MatOf(b, rows, cols), nil
}

// crossEntropy writes scale·(softmax(logits) - onehot(label)) to d, which may be logits, and the losses.
func (l *Loss) crossEntropy(d, logits kernels.Mat, labels []int32, scale float64, losses []float64) error {
	n := len(labels)
	b := l.scratch[ofLoss]
	if b == nil || b.Len < n {
		if b != nil {
			b.Free()
		}
		var err error
		if b, err = l.dev.Alloc(kernels.F64, max(n, 64)); err != nil {
			l.scratch[ofLoss] = nil
			return err
		}
		l.scratch[ofLoss] = b
	}
	return crossEntropy(l.dev, b, d, logits, labels, scale, losses)
}

// chunk is some rows on their way through a [Loss].
type chunk struct {
	*Loss
	t      *Targets
	labels []int32
	losses []float64
	scale  float64 // of the gradients
	ce     float64 // weight of the cross-entropy of the same logits

	lse  []float64   // log Σ exp of the student's logits
	own  []float64   // the student's logits of the labels
	topZ []float64   // and of the teacher's likeliest tokens
	z    kernels.Mat // all of them in host memory, where all count
	q    kernels.Mat // the student's probabilities in host memory, less 1 at the labels; then the gradients
}

// student turns the student's logits into probabilities, and keeps what is needed of the logits.
func (x *chunk) student(logits kernels.Mat) error {
	z, err := hostOf(x.dev, x.info, logits)
	if err != nil {
		return err
	}

	n := len(x.labels)
	x.own = make([]float64, n)
	for i, y := range x.labels {
		x.own[i] = float64(z.RowF32(i)[y])
	}

	if x.t.Logits.IsZero() {
		x.topZ = make([]float64, len(x.t.IDs))
		for i, id := range x.t.IDs {
			x.topZ[i] = float64(z.RowF32(i / x.t.Top)[id])
		}
	} else if x.z = z; x.info.Host { // otherwise it is a copy already
		if x.z, err = x.buffer(ofLogits, logits.Rows, logits.Cols); err != nil {
			return err
		}
		x.dev.Ops().Convert(x.z, logits)
	}

	x.lse = make([]float64, n)
	if err := x.crossEntropy(logits, logits, x.labels, 1, x.lse); err != nil {
		return err
	}
	for i := range x.lse {
		x.lse[i] += x.own[i]
	}

	x.q, err = hostOf(x.dev, x.info, logits)
	return err
}

// deliver brings the gradients to where the logits were.
func (x *chunk) deliver(logits kernels.Mat) error {
	if x.info.Host {
		logits.Buf.Changed()
		return nil
	}
	return x.dev.Upload(logits.Buf, logits.Off, x.q.Buf.Bytes()[:4*x.q.Len()])
}

// row writes the loss and the gradients of a row.
func (x *chunk) row(i int) {
	q, y := x.q.RowF32(i), x.labels[i]
	// What is there is less by 1.
	q[y] = float32(math.Exp(x.own[i] - x.lse[i]))

	kl := 0.0
	if x.t.Logits.IsZero() {
		kl = x.some(i, q)
	} else {
		kl = x.all(i, q)
	}

	// Added to the cross-entropy of another temperature, where that is there already.
	x.losses[i] += x.Temperature*x.Temperature*kl + x.ce*(x.lse[i]-x.own[i])
	q[y] -= float32(x.ce * x.scale)
}

// some takes the divergence of the likeliest tokens and the rest, and turns probabilities into gradients: of the
// factor τ² one τ is left, since z/τ was differentiated.
func (x *chunk) some(i int, q []float32) (kl float64) {
	t := x.t
	ids := t.IDs[i*t.Top : (i+1)*t.Top]
	most := rest(q, ids)

	// A rest whose probability a float32 cannot hold has gradients that it cannot hold either.
	a := 1.0
	if r := t.Rest[i]; r > 0 {
		most = max(most, math.SmallestNonzeroFloat32)
		kl = r * math.Log(r/most)
		a = 1 - r/most
	}

	for j := range ids {
		logP := t.LogP[i*t.Top+j]
		logQ := x.topZ[i*t.Top+j] - x.lse[i]
		p, was := math.Exp(logP), math.Exp(logQ)
		if p > 0 {
			kl += p * (logP - logQ)
		}
		// Not yet: the others of the row are multiplied first.
		x.topZ[i*t.Top+j] = x.scale * (x.Temperature*(was-p) + x.ce*was)
	}

	multiply(q, float32(x.scale*(x.Temperature*a+x.ce)))
	for j, id := range ids {
		q[id] = float32(x.topZ[i*t.Top+j])
	}
	return kl
}

// all takes the divergence of all tokens, and turns probabilities into gradients.
func (x *chunk) all(i int, q []float32) (kl float64) {
	t, z, p := x.t.Logits.RowF32(i), x.z.RowF32(i), x.t.P.RowF32(i)
	shift := x.t.LSE[i] - x.lse[i]
	forQ, forP := float32(x.scale*(x.Temperature+x.ce)), float32(x.scale*x.Temperature)

	for j, v := range p {
		// Logits may differ by a constant, which the sums of exponentials take out before it is multiplied.
		if v > 0 {
			kl += float64(v) * (float64(t[j]) - float64(z[j]) - shift)
		}
		q[j] = forQ*q[j] - forP*v
	}

	// Tokens that the teacher does not have.
	multiply(q[len(p):], forQ)
	return kl
}

// rest sums the probabilities of a row without those of some tokens.
func rest(q []float32, ids []int32) float64 {
	// Taken out rather than subtracted: the rest may be less than the rounding of the sum of all.
	var kept [64]float32
	out := kept[:0]
	for _, id := range ids {
		out = append(out, q[id])
		q[id] = 0
	}

	// In four sums, which the processor can add to at once.
	var s [4]float64
	j := 0
	for ; j+4 <= len(q); j += 4 {
		s[0] += float64(q[j])
		s[1] += float64(q[j+1])
		s[2] += float64(q[j+2])
		s[3] += float64(q[j+3])
	}
	for ; j < len(q); j++ {
		s[0] += float64(q[j])
	}

	for i, id := range ids {
		q[id] = out[i]
	}
	return s[0] + s[1] + s[2] + s[3]
}

// multiply multiplies the elements of a row.
func multiply(row []float32, by float32) {
	for j := range row {
		row[j] *= by
	}
}
