package mediate

import (
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/stream"
)

// maxModels bounds how many models can be compared.
const maxModels = 128

// counts is what is counted of some tensors. The integers are exact; the sums are float64, added block by block
// in order.
type counts struct {
	Models   int
	Elements int64
	// NonFinite counts the differences that are a NaN or an infinity. Everything else counts them as none.
	NonFinite int64
	// Pairs counts the elements that have p positive and q negative denoised differences, at p·(Models+1) + q.
	Pairs []int64
	// Net is ‖Σ_t τ̂_t‖₁, and Mass is Σ_t ‖τ̂_t‖₁, of the denoised differences τ̂.
	Net, Mass float64
	// Gram is τ_s·τ_t of the differences as they are, row-major [Models, Models]; Base is ‖θ0‖².
	Gram []float64
	Base float64
}

// newCounts are counts of nothing.
func newCounts(models int) *counts {
	return &counts{Models: models, Pairs: make([]int64, (models+1)*(models+1)), Gram: make([]float64, models*models)}
}

// Add adds the counts of further elements.
func (c *counts) Add(o *counts) {
	c.Elements += o.Elements
	c.NonFinite += o.NonFinite
	for i, n := range o.Pairs {
		c.Pairs[i] += n
	}
	for i, x := range o.Gram {
		c.Gram[i] += x
	}

	c.Net = c.Net + o.Net
	c.Mass = c.Mass + o.Mass
	c.Base = c.Base + o.Base
}

// keptElements is how many elements of n the denoising keeps: ⌊density·n⌋, at least one; all for a density of 1.
func keptElements(n int64, density float64) int64 {
	if density >= 1 {
		return n
	}
	return min(n, max(1, int64(density*float64(n))))
}

// Take adds what a device counted of elements of a tensor.
func (c *counts) Take(found stream.Counts) {
	c.Elements += found.Elements
	rest := found.Elements
	for p := range c.Models + 1 {
		for q := range c.Models + 1 - p {
			c.Pairs[p*(c.Models+1)+q] += int64(found.Signs[p][q])
			rest -= int64(found.Signs[p][q])
		}
	}

	c.Pairs[0] += rest // elements without a difference
	for i, x := range found.Gram {
		c.Gram[i] += x
	}

	c.Net = c.Net + found.Net
	c.Mass = c.Mass + found.Mass
	c.Base = c.Base + found.Base
}

// counting is a tensor with a base as the engine counts it into c.
func counting(it *stream.Item, density float64, c *counts) stream.Group {
	census := &stream.Census{Keep: make([]int, len(it.X)), Take: c.Take}
	if k := keptElements(it.Tensor.N, density); k < it.Tensor.N {
		for i := range census.Keep {
			census.Keep[i] = int(k)
		}
	}
	return stream.Group{Items: []*stream.Item{it}, Program: countProgram(it.Tensor, density, c), Census: census}
}

// countProgram makes the passes that count a tensor with a base into c.
func countProgram(t *method.Tensor, density float64, c *counts) *method.Program {
	k := make([]int64, len(t.Inputs))
	for i := range k {
		k[i] = keptElements(t.N, density)
	}
	p := &method.Program{}
	p.Passes, p.Memory = method.Largest(t.N, k, func(w []method.Window) ([]method.Pass, error) {
		return []method.Pass{count(w, c)}, nil
	})
	return p
}
