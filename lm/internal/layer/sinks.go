package layer

import (
	"math"

	"github.com/modelcompress/compress/kernels"
)

// An attention sink (Xiao et al., 2023; learned per head in gpt-oss) is a score s of each head that every query sees
// beside its keys and that has no value: softmax([scores, s]) without its last column. With the logarithm L of the sum
// of exponentials of the scores that the kernel gives, the weights are those without the sink times
//
//	f = exp(L) / (exp(L) + exp(s)) = sigmoid(L - s)
//
// so the output is scaled by f, and L becomes log(exp(L) + exp(s)) = L - log f. With both so changed, the kernel's
// backward pass is right as it is: it computes weights as exp(score - L), and their mean gradient as dout·out, to which
// the sink, having no value, adds nothing. The sink's own gradient is -Σ (1 - f)·(dout·out) over the queries.

// sink takes the block's sinks into account in what attention gave, and in the logarithms that it wrote.
func (p *Pass) sink(b *Block, out kernels.Mat) error {
	if b.Sinks == nil {
		return nil
	}

	sinks, err := p.hostRow(b.Sinks)
	if err != nil {
		return err
	}

	// A sink is one more column of the softmax without a value: it scales what was computed without it by the part
	// that it leaves, σ(lse - sink).
	d := p.Config.HeadDim
	lse := p.mat(sLSE, out.Rows, p.Config.Heads)
	if err := p.onHost(func(rows [][]float32) {
		for h, s := range sinks {
			f := float32(1 / (1 + math.Exp(float64(s)-float64(rows[1][h]))))
			for i := range d {
				rows[0][h*d+i] *= f
			}
		}
	}, out, lse); err != nil {
		return err
	}

	// The backward pass wants the logarithm of the whole sum. Afterwards, as the factors above need the old one.
	return p.onHost(func(rows [][]float32) {
		for h, s := range sinks {
			rows[0][h] += float32(math.Log1p(math.Exp(float64(s) - float64(rows[0][h]))))
		}
	}, lse)
}

// sinkBackward adds the gradients of the sinks, for the gradient dout of attention's output, where they are wanted.
func (p *Pass) sinkBackward(b *Block, dout, out kernels.Mat) error {
	g := p.grad(b.Sinks)
	if b.Sinks == nil || g.IsZero() {
		return nil
	}

	sinks, err := p.hostRow(b.Sinks)
	if err != nil {
		return err
	}

	d := p.Config.HeadDim
	sums := make([]float64, len(sinks))
	err = p.onHost(func(rows [][]float32) {
		for h, s := range sinks {
			dot := 0.0
			for i := h * d; i < (h+1)*d; i++ {
				dot += float64(rows[1][i]) * float64(rows[2][i])
			}
			sums[h] -= math.Exp(float64(s)-float64(rows[0][h])) * dot // its share of the weights
		}
	}, p.mat(sLSE, out.Rows, p.Config.Heads), dout, out)
	if err != nil {
		return err
	}

	return p.onHost(func(rows [][]float32) {
		for h, s := range sums {
			rows[0][h] += float32(s)
		}
	}, g)
}

// hostRow gives the values of a vector in host memory.
func (p *Pass) hostRow(w *Weight) ([]float32, error) {
	x := p.mat(sVector, 1, w.Value.Cols)
	p.ops.Convert(x, w.Value)
	values := make([]float32, 0, x.Cols)
	err := p.onHost(func(rows [][]float32) { values = append(values, rows[0]...) }, x)
	return values, err
}
