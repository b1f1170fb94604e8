package router

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/nlpodyssey/spago/ag"
	"github.com/nlpodyssey/spago/mat"
	"github.com/nlpodyssey/spago/nn"
	"github.com/nlpodyssey/spago/optimizers/adam"

	"github.com/modelcompress/compress/internal/linalg"
)

// The network's hidden layers and training.
const (
	hiddenSize = 64
	epochs     = 40
	batchSize  = 16
	learning   = 3e-3
	decay      = 1e-2
)

// network is two hidden layers with rectifiers on (x-centre)/scale.
type network struct {
	weight [3]linalg.Matrix // [out, in]
	bias   [3][]float64
	centre []float64
	scale  float64
}

func (n *network) scores(x []float64) []float64 {
	h := make([]float64, len(x))
	for i, v := range x {
		h[i] = (v - n.centre[i]) / n.scale
	}

	for l := range n.weight {
		next := make([]float64, n.weight[l].Rows)
		for o := range next {
			next[o] = n.bias[l][o] + dot(h, n.weight[l].Row(o))
			if l < 2 {
				next[o] = max(0, next[o])
			}
		}

		h = next
	}

	return h
}

// fitNetwork trains by AdamW on shuffled batches. Gradients are added up prompt by prompt and parameters step in their
// order, so that the result depends on the prompts and the seed alone.
func fitNetwork(s sample, experts int, seed uint64) (*network, error) {
	centre, scale := spread(s.x)
	d := len(centre)

	rng := rand.New(rand.NewPCG(seed, 0x6d6c70))
	sizes := []int{d, hiddenSize, hiddenSize, experts}
	var params []*nn.Param
	for l := range 3 {
		w := make([]float64, sizes[l]*sizes[l+1])
		for i := range w {
			w[i] = rng.NormFloat64() * math.Sqrt(2/float64(sizes[l]))
		}

		params = append(params,
			nn.NewParam(mat.NewDense[float64](mat.WithShape(sizes[l+1], sizes[l]), mat.WithBacking(w))),
			nn.NewParam(mat.NewDense[float64](mat.WithShape(sizes[l+1]), mat.WithBacking(make([]float64, sizes[l+1])))))
	}

	inputs := make([]mat.Tensor, len(s.x))
	for i, f := range s.x {
		x := make([]float64, d)
		for j, v := range f {
			x[j] = (v - centre[j]) / scale
		}
		inputs[i] = mat.NewDense[float64](mat.WithShape(d), mat.WithBacking(x))
	}

	// The parameters take their steps one after the other, here: optimizers.Optimizer starts a goroutine for each and
	// returns without waiting for them, so that the next batch would read weights that are still being written.
	opt := adam.New(adam.NewAdamWConfig(learning, 0.9, 0.999, 1e-8, decay))
	order := rng.Perm(len(inputs))
	for range epochs {
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })

		for first := 0; first < len(order); first += batchSize {
			batch := order[first:min(first+batchSize, len(order))]
			for _, i := range batch {
				h := ag.ReLU(ag.Affine(params[1], params[0], inputs[i]))
				h = ag.ReLU(ag.Affine(params[3], params[2], h))
				logits := ag.Affine(params[5], params[4], h)

				// The gradient of the cross entropy is given here. Its graph would use the logits several times, and
				// add up what comes back from each use in the order in which goroutines end.
				g := slices.Clone(logits.Data().F64())
				softmax(g)
				g[s.t[i]]--
				for k := range g {
					g[k] /= float64(len(batch))
				}

				logits.AccGrad(mat.NewDense[float64](mat.WithShape(experts), mat.WithBacking(g)))
				if err := ag.Backward(logits); err != nil {
					return nil, fmt.Errorf("%w: %w", ErrPrompts, err)
				}
			}

			for _, p := range params {
				if err := opt.OptimizeParams(p); err != nil {
					return nil, fmt.Errorf("%w: %w", ErrPrompts, err)
				}
			}
		}
	}

	n := &network{centre: centre, scale: scale}
	for l := range 3 {
		n.weight[l] = linalg.Of(params[2*l].Data().F64(), sizes[l+1], sizes[l]).Clone()
		n.bias[l] = append([]float64(nil), params[2*l+1].Data().F64()...)
	}

	return n, nil
}
