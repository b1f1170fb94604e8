package layer

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/kernels"
)

// Eviction of keys and values (Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large
// Language Models", 2023): a key/value head keeps half of its budget for the latest positions and half for those that
// have had most of the attention, the sum of softmax weights over all queries so far and over the query heads of its
// group. Each head keeps its own. Keys keep the rotation of the position at which they were computed.

// mass is the attention that the rows of a cache have had, [row][kv_head].
type mass struct {
	heads int
	sums  []float64
}

// Watch makes a cache, which is empty, count the attention that its rows have, for [Setup.Evict].
func (s *Setup) Watch(kv *KV) { kv.mass = &mass{heads: s.Config.KVHeads} }

// Empty forgets all rows of a cache.
func (kv *KV) Empty() {
	kv.Rows = 0
	if kv.mass != nil {
		kv.mass.sums = kv.mass.sums[:0]
	}
}

// weigh counts the attention of new queries, the first of which is at row at.
func (p *Pass) weigh(b *Block, kv *KV, q heads, keys kernels.Mat, at int) error {
	c, n := p.Config, q.mat.Rows
	m := kv.mass
	for len(m.sums) < keys.Rows*m.heads {
		m.sums = append(m.sums, 0)
	}

	if err := Grow(p.Device, &p.scratch.weights, kernels.F32, n*keys.Rows); err != nil {
		return fmt.Errorf("attention weights of %d tokens: %w", n, err)
	}
	scores := kernels.MatOf(p.scratch.weights, n, keys.Rows)
	for h := range c.Heads {
		g := h / (c.Heads / c.KVHeads)
		p.ops.MatMulNT(scores, q.mat.ColRange(h*q.stride, h*q.stride+c.HeadDim),
			keys.ColRange(g*c.HeadDim, (g+1)*c.HeadDim), kernels.MatMul{})
		for i := range n {
			m.add(scores.RowF32(i)[:at+i+1], g, float64(c.AttnScales[b.Index]), float64(c.AttnSoftcap))
		}
	}
	return nil
}

// add adds the softmax of the scores that a query sees to the sums of a head.
func (m *mass) add(row []float32, head int, scale, softcap float64) {
	top, total := math.Inf(-1), 0.0
	for j, v := range row {
		x := float64(v) * scale
		if softcap > 0 {
			x = softcap * math.Tanh(x/softcap)
		}
		row[j] = float32(x)
		top = max(top, x)
	}
	for j, v := range row {
		e := math.Exp(float64(v) - top)
		row[j] = float32(e)
		total += e
	}
	for j, v := range row {
		m.sums[j*m.heads+head] += float64(v) / total
	}
}

// Evict leaves at most a number of rows in a cache that is watched.
func (s *Setup) Evict(kv *KV, budget int) {
	if kv.Rows <= budget {
		return
	}

	m, d := kv.mass, s.Config.HeadDim
	for g := range m.heads {
		for to, from := range m.keep(kv.Rows, budget, g) {
			if to == from {
				continue
			}
			m.sums[to*m.heads+g] = m.sums[from*m.heads+g]
			for _, w := range kv.bytes {
				if !w.IsZero() {
					copy(w.Data.RowU8(to)[g*d:(g+1)*d], w.Data.RowU8(from)[g*d:(g+1)*d])
					w.Scales.RowF32(to)[g] = w.Scales.RowF32(from)[g]
				}
			}
			for _, x := range []kernels.Mat{kv.Keys, kv.Values} {
				if x.Buf != nil {
					copy(x.RowF32(to)[g*d:(g+1)*d], x.RowF32(from)[g*d:(g+1)*d])
				}
			}
		}
	}

	kv.Rows = budget
	m.sums = m.sums[:budget*m.heads]
	if kv.Keys.Buf != nil {
		kv.Keys.Buf.Changed()
		kv.Values.Buf.Changed()
	}
}

// keep lists the rows that a head keeps, in order: the latest half, and of those before it the ones with most
// attention, of equal ones the later.
func (m *mass) keep(rows, budget, head int) []int {
	recent := budget - budget/2
	old := make([]int, rows-recent)
	for i := range old {
		old[i] = i
	}
	slices.SortFunc(old, func(a, b int) int {
		return cmp.Or(cmp.Compare(m.sums[b*m.heads+head], m.sums[a*m.heads+head]), cmp.Compare(b, a))
	})

	list := old[:budget/2]
	slices.Sort(list)
	for i := rows - recent; i < rows; i++ {
		list = append(list, i)
	}
	return list
}
