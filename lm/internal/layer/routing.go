package layer

import (
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// Routing is where tokens go.
type Routing struct {
	Keep []bool // the experts that there are; nil: all
	TopK int    // experts of a token
}

// routing is that of a mixture.
func (p *Pass) routing(b *Block) Routing {
	if p.Route == nil {
		return Routing{TopK: p.Config.TopK}
	}
	return p.Route(b)
}

// closeOff takes experts out of a router's outputs, as if it had no rows for them.
func (p *Pass) closeOff(x kernels.Mat, keep []bool) error {
	if keep == nil {
		return nil
	}
	return p.onHost(func(rows [][]float32) {
		for e, stays := range keep {
			if !stays {
				rows[0][e] = float32(math.Inf(-1))
			}
		}
	}, x)
}

// score turns a router's outputs into scores, in place: probabilities over all experts, or the sigmoid of each.
func (p *Pass) score(x kernels.Mat) error {
	if p.Config.Arch.Router != arch.Sigmoid {
		p.ops.Softmax(x, x)
		return nil
	}
	return p.onHost(func(rows [][]float32) {
		for e, v := range rows[0] {
			rows[0][e] = float32(1 / (1 + math.Exp(-float64(v))))
		}
	}, x)
}

// scoreBackward computes the gradients of a router's outputs from d, those of the scores.
func (p *Pass) scoreBackward(dx, d, scores kernels.Mat) error {
	if p.Config.Arch.Router != arch.Sigmoid {
		p.ops.SoftmaxBackward(dx, d, scores)
		return nil
	}
	return p.onHost(func(rows [][]float32) {
		for e, s := range rows[2] {
			rows[0][e] = float32(float64(rows[1][e]) * float64(s) * (1 - float64(s))) // the slope of the sigmoid
		}
	}, dx, d, scores)
}

// choice picks the experts of tokens by their scores.
type choice struct {
	c      *arch.Config
	where  Routing
	offset []float32 // nil: none
	moved  []float32 // scores and offsets
	groups []float32
	best   []int
	top    []int
}

func (p *Pass) newChoice(b *Block) (*choice, error) {
	c := &choice{c: p.Config, where: p.routing(b)}
	if b.RouterOffset == nil {
		return c, nil
	}
	var err error
	c.offset, err = p.hostRow(b.RouterOffset)
	return c, err
}

// of gives the experts of a token, best first, until the next call. Where experts are in groups, they come from the
// best TopGroups of these (DeepSeek-V2 and V3, 2024): a group counts as its best expert, or with the sigmoid as the sum
// of its two best.
func (c *choice) of(scores []float32) []int {
	if c.offset != nil || c.c.Groups > 1 || c.where.Keep != nil {
		scores = append(c.moved[:0], scores...)
		c.moved = scores
		for e, v := range c.offset {
			scores[e] += v
		}
		for e, stays := range c.where.Keep { // an offset could bring one back
			if !stays {
				scores[e] = float32(math.Inf(-1))
			}
		}
		if c.c.Groups > 1 {
			c.closeGroups(scores)
		}
	}

	c.top = topK(c.top[:0], scores, c.where.TopK)
	return c.top
}

// closeGroups leaves the experts of the best groups in the race.
func (c *choice) closeGroups(scores []float32) {
	each := len(scores) / c.c.Groups
	c.groups = c.groups[:0]
	for group := range slices.Chunk(scores, each) {
		if c.c.Arch.Router != arch.Sigmoid {
			c.groups = append(c.groups, slices.Max(group))
			continue
		}
		c.best = topK(c.best[:0], group, 2)
		c.groups = append(c.groups, group[c.best[0]]+group[c.best[1]])
	}

	c.best = topK(c.best[:0], c.groups, c.c.TopGroups)
	for g := range c.groups {
		if !slices.Contains(c.best, g) {
			for e := range each {
				scores[g*each+e] = float32(math.Inf(-1))
			}
		}
	}
}
