package layer

import (
	"cmp"
	"math"
	"slices"

	"github.com/modelcompress/compress/lm/arch"
)

// plain computes a block in float64 from the formulas of the literature alone: token by token, with no tape, no views
// and no kernel. It is what the passes of this package are compared with, and since it is exact to some 1e-16, its
// differences are what their gradients are compared with.
type plain struct {
	c      *arch.Config
	b      *Block
	lens   []int
	values map[*Weight][]float64
	deltas map[*Linear][]float64 // [out, in], added to the matrix
}

// newPlain takes the parameters of a block over.
func newPlain(c *arch.Config, b *Block, lens []int, weights []*Weight) *plain {
	r := &plain{c: c, b: b, lens: lens, values: map[*Weight][]float64{}, deltas: map[*Linear][]float64{}}
	for _, w := range weights {
		for _, v := range w.Value.Buf.F32() {
			r.values[w] = append(r.values[w], float64(v))
		}
	}
	return r
}

type rows = [][]float64

// run is the block's output for x.
func (r *plain) run(x rows) rows {
	b := r.b
	switch {
	case r.c.PostNorm:
		x = r.norm(sum(x, r.attention(x)), b.AttnNorm)
		return r.norm(sum(x, r.mlp(x)), b.MLPNorm)

	case r.c.Parallel:
		h := r.norm(x, b.AttnNorm)
		h2 := h
		if b.MLPNorm.W != nil {
			h2 = r.norm(x, b.MLPNorm)
		}
		return sum(x, r.attention(h), r.mlp(h2))
	}

	x = sum(x, r.norm(r.attention(r.norm(x, b.AttnNorm)), b.AttnPost))
	return sum(x, r.norm(r.mlp(r.norm(x, b.MLPNorm)), b.MLPPost))
}

// sum adds matrices up.
func sum(list ...rows) rows {
	out := make(rows, len(list[0]))
	for i := range out {
		out[i] = make([]float64, len(list[0][i]))
		for _, x := range list {
			for j, v := range x[i] {
				out[i][j] += v
			}
		}
	}
	return out
}

// norm norms every row; without parameters it is no norm.
func (r *plain) norm(x rows, n Norm) rows {
	if n.W == nil {
		return x
	}
	out := make(rows, len(x))
	for i := range x {
		out[i] = r.normed(x[i], n)
	}
	return out
}

func (r *plain) normed(x []float64, n Norm) []float64 {
	mean, square := 0.0, 0.0
	if r.c.Arch.Norm == arch.LayerNorm {
		for _, v := range x {
			mean += v / float64(len(x))
		}
	}
	for _, v := range x {
		square += (v - mean) * (v - mean) / float64(len(x))
	}

	out := make([]float64, len(x))
	for j, v := range x {
		w := r.values[n.W][j]
		if r.c.Arch.Norm == arch.RMSPlusOne {
			w++
		}
		out[j] = (v - mean) / math.Sqrt(square+float64(r.c.Eps)) * w
		if n.B != nil {
			out[j] += r.values[n.B][j]
		}
	}

	return out
}

// linear multiplies every row with a matrix.
func (r *plain) linear(x rows, l *Linear) rows {
	w := r.values[l.W]
	out := make(rows, len(x))
	for i := range x {
		out[i] = make([]float64, l.Out)
		for o := range out[i] {
			if l.B != nil {
				out[i][o] = r.values[l.B][o]
			}
			for j, v := range x[i] {
				at := o*l.In + j
				if l.Transposed {
					at = j*l.Out + o
				}
				out[i][o] += w[at] * v
				if d := r.deltas[l]; d != nil {
					out[i][o] += d[o*l.In+j] * v
				}
			}
		}
	}
	return out
}

// heads cuts every row into heads of the head's width: from a column on, each step columns behind the one before.
func (r *plain) heads(x rows, from, step, count int) [][][]float64 {
	out := make([][][]float64, len(x))
	for i := range x {
		for h := range count {
			at := from + h*step
			out[i] = append(out[i], slices.Clone(x[i][at:at+r.c.HeadDim]))
		}
	}
	return out
}

// project gives queries, keys and values: token, head, channel.
func (r *plain) project(x rows) (q, k, v [][][]float64) {
	c, b, d := r.c, r.b, r.c.HeadDim
	switch {
	case b.QKV == nil:
		q = r.heads(r.linear(x, b.Q), 0, d, c.Heads)
		k = r.heads(r.linear(x, b.K), 0, d, c.KVHeads)
		v = r.heads(r.linear(x, b.V), 0, d, c.KVHeads)
	case c.Arch.QKV == arch.HeadBlocks:
		y := r.linear(x, b.QKV)
		q = r.heads(y, 0, 3*d, c.Heads)
		k = r.heads(y, d, 3*d, c.Heads)
		v = r.heads(y, 2*d, 3*d, c.Heads)
	default:
		y := r.linear(x, b.QKV)
		q = r.heads(y, 0, d, c.Heads)
		k = r.heads(y, c.Heads*d, d, c.KVHeads)
		v = r.heads(y, (c.Heads+c.KVHeads)*d, d, c.KVHeads)
	}

	for i := range x {
		r.normHeads(q[i], b.QNorm)
		r.normHeads(k[i], b.KNorm)
		if limit := float64(c.ClipQKV); limit > 0 {
			for _, list := range [][][]float64{q[i], k[i], v[i]} {
				for _, head := range list {
					for j := range head {
						head[j] = min(max(head[j], -limit), limit)
					}
				}
			}
		}
	}

	return q, k, v
}

func (r *plain) normHeads(list [][]float64, n Norm) {
	switch r.c.Arch.QKNorm {
	case arch.PerHead:
		for h := range list {
			list[h] = r.normed(list[h], n)
		}
	case arch.PerRow:
		all := r.normed(slices.Concat(list...), n)
		for h := range list {
			list[h] = all[h*r.c.HeadDim : (h+1)*r.c.HeadDim]
		}
	}
}

// rotate turns the pairs of a head's channels by the angles of a position.
func (r *plain) rotate(head []float64, pos, n int) {
	rope := r.c.Rope
	if rope == nil {
		return
	}

	freq, gain := rope.InvFreq(n)
	for i, f := range freq {
		a, b := i, i+rope.Dim/2
		if rope.Interleaved {
			a, b = 2*i, 2*i+1
		}
		sin, cos := math.Sincos(float64(pos) * f)
		head[a], head[b] = gain*(head[a]*cos-head[b]*sin), gain*(head[b]*cos+head[a]*sin)
	}
}

// attention is softmax(scale·QKᵀ + mask)·V of every sequence, through the output's matrix.
func (r *plain) attention(x rows) rows {
	c := r.c
	q, k, v := r.project(x)
	out := make(rows, len(x))
	at := 0
	for _, n := range r.lens {
		for t := range n {
			for _, head := range slices.Concat(q[at+t], k[at+t]) {
				r.rotate(head, t, n)
			}
		}

		for t := range n {
			for h := range c.Heads {
				kv := h / (c.Heads / c.KVHeads)
				out[at+t] = append(out[at+t], r.attend(q[at+t][h], k[at:at+t+1], v[at:at+t+1], kv)...)
			}
		}
		at += n
	}

	return r.linear(out, r.b.O)
}

// attend is what one query makes of the keys and values up to its own.
func (r *plain) attend(q []float64, k, v [][][]float64, kv int) []float64 {
	c := r.c
	first := 0
	if w := c.Windows[r.b.Index]; w > 0 {
		first = max(0, len(k)-w)
	}

	total := 0.0
	out := make([]float64, c.HeadDim)
	for j := first; j < len(k); j++ {
		score := 0.0
		for d, x := range q {
			score += x * k[j][kv][d]
		}
		score *= float64(c.AttnScales[r.b.Index])
		if limit := float64(c.AttnSoftcap); limit > 0 {
			score = limit * math.Tanh(score/limit)
		}

		p := math.Exp(score)
		total += p
		for d, x := range v[j][kv] {
			out[d] += p * x
		}
	}

	for d := range out {
		out[d] /= total
	}
	return out
}

// act is the activation function.
func (r *plain) act(x float64) float64 {
	switch r.c.Activation {
	case arch.SiLU:
		return x / (1 + math.Exp(-x))
	case arch.GELU:
		return x / 2 * (1 + math.Erf(x/math.Sqrt2))
	case arch.GELUTanh:
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return max(x, 0)
}

// network is one feed-forward network.
func (r *plain) network(x rows, f *MLP) rows {
	var gate, up rows
	switch {
	case f.GateUp != nil:
		n := f.Down.In
		for _, row := range r.linear(x, f.GateUp) {
			gate = append(gate, row[:n])
			up = append(up, row[n:])
		}
	case f.Gate != nil:
		gate = r.linear(x, f.Gate)
		up = r.linear(x, f.Up)
	default:
		up = r.linear(x, f.Up)
	}

	mid := make(rows, len(x))
	for i := range x {
		for j, u := range up[i] {
			if gate == nil {
				mid[i] = append(mid[i], r.act(u))
			} else {
				mid[i] = append(mid[i], r.act(gate[i][j])*u)
			}
		}
	}

	return r.linear(mid, f.Down)
}

// mlp is the feed-forward branch: one network, or the best of several.
func (r *plain) mlp(x rows) rows {
	if !r.b.Mixture {
		return r.network(x, &r.b.Experts[0])
	}

	out := make(rows, len(x))
	for i := range x {
		out[i] = make([]float64, len(x[i]))
		probs := softmax(r.product(r.b.Router, x[i]))
		order := make([]int, len(probs))
		for e := range order {
			order[e] = e
		}

		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(probs[b], probs[a]) })
		chosen := order[:r.c.TopK]
		total := 1.0
		if r.c.NormTopK {
			total = 0
			for _, e := range chosen {
				total += probs[e]
			}
		}

		for _, e := range chosen {
			for j, v := range r.network(x[i:i+1], &r.b.Experts[e])[0] {
				out[i][j] += probs[e] / total * v
			}
		}
		if r.b.Shared != nil {
			weight := 1 / (1 + math.Exp(-r.product(r.b.SharedRouter, x[i])[0]))
			for j, v := range r.network(x[i:i+1], r.b.Shared)[0] {
				out[i][j] += weight * v
			}
		}
	}

	return out
}

// product is W·x of a matrix without a linear around it.
func (r *plain) product(w *Weight, x []float64) []float64 {
	out := make([]float64, len(r.values[w])/len(x))
	for o := range out {
		for j, v := range x {
			out[o] += r.values[w][o*len(x)+j] * v
		}
	}
	return out
}

func softmax(x []float64) []float64 {
	out := make([]float64, len(x))
	total := 0.0
	for i, v := range x {
		out[i] = math.Exp(v)
		total += out[i]
	}
	for i := range out {
		out[i] /= total
	}
	return out
}
