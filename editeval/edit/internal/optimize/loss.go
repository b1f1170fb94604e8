package optimize

import (
	"math"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/kernels"
)

// summand is one row of logits that counts.
type summand struct {
	g      *Goal
	weight float64 // of -log p; 0: the row of the sentence about the subject
}

// objective is the loss of the rows that count: -log p of targets, and the divergence of the sentences about subjects.
func (b *batch) objective(logits kernels.Mat, labels []int32, losses []float64) error {
	first := b.next
	b.next += len(labels)
	parts := make([]rowLoss, len(labels))
	err := b.rows.Each(logits, func(i int, z []float64) { parts[i] = b.row(b.counts[first+i], z, labels[i]) })
	for i := range labels {
		losses[i] = b.counts[first+i].add(parts[i])
	}
	return err
}

// rowLoss is what one row gives.
type rowLoss struct {
	nll, p, pmax, kl float64
	bad              bool
}

// add books a row's loss with its goal and returns it.
func (c summand) add(r rowLoss) float64 {
	c.g.Failed = c.g.Failed || r.bad
	if r.bad {
		return 0
	}
	c.g.nll += c.weight * r.nll
	c.g.p += c.weight * r.p
	c.g.pmax += c.weight * r.pmax
	c.g.kl += r.kl
	return c.weight*r.nll + r.kl
}

// row replaces the logits z of one row by the gradient.
func (b *batch) row(c summand, z []float64, label int32) rowLoss {
	if !site.Finite(z) {
		clear(z)
		return rowLoss{bad: true}
	}

	if c.weight == 0 {
		LogSoftmax(z)
		return rowLoss{kl: b.divergence(c.g, z)}
	}

	// The gradient of -log softmax(z)[label] is softmax(z) - onehot(label), made in the place of z.
	wanted := z[label]
	top, sum := exponentials(z)
	r := rowLoss{nll: top + math.Log(sum) - wanted, p: z[label] / sum, pmax: 1 / sum}
	weight := c.weight
	if c.g.soft {
		weight *= 0.1
	}
	for j, v := range z {
		z[j] = weight / sum * v
	}

	z[label] -= weight
	return r
}

// divergence is factor·KL(edited ‖ initial), or KL(initial ‖ edited) where the hyper-parameters say so, of
// log-probabilities z, which are replaced by the gradient.
func (b *batch) divergence(g *Goal, z []float64) float64 {
	if g.initial == nil {
		g.initial = append([]float64(nil), z...)
	}

	kl, f := 0.0, b.Params.KL
	for j, v := range z {
		if b.Params.ReverseKL {
			kl += math.Exp(g.initial[j]) * (g.initial[j] - v)
		} else {
			kl += math.Exp(v) * (v - g.initial[j])
		}
	}

	for j, v := range z {
		if b.Params.ReverseKL {
			z[j] = f * (math.Exp(v) - math.Exp(g.initial[j]))
		} else {
			z[j] = f * math.Exp(v) * (v - g.initial[j] - kl)
		}
	}

	return f * kl
}

// exponentials replaces z by exp(z - top), of which the largest is 1, and gives their sum.
func exponentials(z []float64) (top, sum float64) {
	top = math.Inf(-1)
	for _, v := range z {
		top = max(top, v)
	}
	for j, v := range z {
		z[j] = math.Exp(v - top)
		sum += z[j]
	}
	return top, sum
}

// LogSoftmax replaces logits by log-probabilities.
func LogSoftmax(z []float64) {
	top := math.Inf(-1)
	for _, v := range z {
		top = max(top, v)
	}

	s := 0.0
	for _, v := range z {
		s += math.Exp(v - top)
	}

	s = top + math.Log(s)
	for j := range z {
		z[j] -= s
	}
}
