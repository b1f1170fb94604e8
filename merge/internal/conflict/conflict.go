// Package conflict measures how much fine-tuned models contradict each other: for tensors, and for groups of tensors, six
// metrics of the differences to a common base, with what independent random signs would give, and rules that choose groups by
// them. It opens no file: package stream feeds the blocks.
package conflict

import (
	"math"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/merge/internal/vec"
)

// MaxModels bounds how many models can be compared.
const MaxModels = 128

// Counts is what is counted of some tensors. The integers are exact; the sums are float64, added block by block in order.
type Counts struct {
	Models   int
	Elements int64
	// Pairs counts the elements that have p positive and q negative denoised differences, at p·(Models+1) + q.
	Pairs []int64
	// Net is ‖Σ_t τ̂_t‖₁, and Mass is Σ_t ‖τ̂_t‖₁, of the denoised differences τ̂.
	Net, Mass float64
	// Gram is τ_s·τ_t of the differences as they are, row-major [Models, Models]; Base is ‖θ0‖².
	Gram []float64
	Base float64
}

// NewCounts are counts of nothing.
func NewCounts(models int) *Counts {
	return &Counts{Models: models, Pairs: make([]int64, (models+1)*(models+1)), Gram: make([]float64, models*models)}
}

// Add adds the counts of further elements.
func (c *Counts) Add(o *Counts) {
	c.Elements += o.Elements
	for i, n := range o.Pairs {
		c.Pairs[i] += n
	}
	for i, x := range o.Gram {
		c.Gram[i] += x
	}
	c.Net, c.Mass, c.Base = c.Net+o.Net, c.Mass+o.Mass, c.Base+o.Base
}

// Kept is how many elements of n the denoising keeps: ⌊density·n⌋, at least one; all for a density of 1.
func Kept(n int64, density float64) int64 {
	if density >= 1 {
		return n
	}
	return min(n, max(1, int64(density*float64(n))))
}

// Program makes the passes that count a tensor with a base into c.
func Program(t *method.Tensor, density float64, c *Counts) *method.Program {
	k := make([]int64, len(t.Inputs))
	for i := range k {
		k[i] = Kept(t.N, density)
	}
	p := &method.Program{}
	p.Passes, p.Memory = method.Largest(t.N, k, func(w []method.Window) ([]method.Pass, error) {
		return []method.Pass{count(w, c)}, nil
	})
	return p
}

// part is what a segment collects.
type part struct {
	*Counts
	codes []uint16
	row   []int64
}

// count is the pass that counts the elements of the windows.
func count(windows []method.Window, c *Counts) method.Pass {
	n := len(windows)
	return method.Pass{
		New:  func() any { return &part{Counts: NewCounts(n)} },
		Each: func(stat any, b *method.Block) { stat.(*part).block(windows, b) },
		End: func(stats []any) ([]method.Pass, error) {
			for _, s := range stats {
				c.Add(s.(*part).Counts)
			}
			return nil, nil
		},
	}
}

// block counts one block.
func (p *part) block(windows []method.Window, b *method.Block) {
	p.Elements += int64(b.Len())
	p.Base += vec.Dot(b.Base, b.Base)
	b.Deltas()
	n := p.Models
	for s := range n {
		for t := range s + 1 {
			d := vec.Dot(b.X[s], b.X[t])
			p.Gram[s*n+t] += d
			if s != t {
				p.Gram[t*n+s] += d
			}
		}
	}
	if cap(p.codes) < b.Len() {
		p.codes = make([]uint16, b.Len())
	}
	codes, net := p.codes[:b.Len()], b.Temp(0)
	clear(codes)
	clear(net)
	for s, w := range windows {
		x := b.X[s]
		if !w.Everything() {
			x = b.Temp(1)
			w.Apply(x, b.X[s], b.X[s], b.Index)
		}
		sign(codes, x, uint16(n+1))
		vec.Add(net, net, x, 1)
		p.Mass += vec.SumAbs(x)
	}
	p.Net += vec.SumAbs(net)
	p.tally(codes)
}

// sign adds positive to the codes of positive elements and 1 to those of negative ones.
func sign(codes []uint16, x []float32, positive uint16) {
	x = x[:len(codes)]
	for i, v := range x {
		bits := math.Float32bits(v)
		negative := bits >> 31
		// 1 if v is not a zero of either sign
		some := (bits<<1 | -(bits << 1)) >> 31
		codes[i] += uint16(some&negative) + positive*uint16(some&^negative)
	}
}

// lanes is how many histograms are filled in turn, so that equal neighbours do not wait for each other.
const lanes = 4

// tally counts codes.
func (p *part) tally(codes []uint16) {
	size := len(p.Pairs)
	if p.row == nil {
		p.row = make([]int64, lanes*size)
	}
	a, b, c, d := p.row[:size], p.row[size:2*size], p.row[2*size:3*size], p.row[3*size:]
	i := 0
	for ; i+lanes <= len(codes); i += lanes {
		a[codes[i]]++
		b[codes[i+1]]++
		c[codes[i+2]]++
		d[codes[i+3]]++
	}
	for ; i < len(codes); i++ {
		a[codes[i]]++
	}
	for i := range p.Pairs {
		p.Pairs[i] += a[i] + b[i] + c[i] + d[i]
	}
	clear(p.row)
}
