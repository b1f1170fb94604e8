package gp

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
)

// probeMLP is a small MLP on which formulas of whole parts are tried: gate and up, whose rows are neurons, and down,
// whose columns are.
type probeMLP struct {
	members   []Member
	terminals map[Symbol][]float64
}

const (
	probeNeurons = 96
	probeWidth   = 48
)

// probeMLPs are distributed as language models are: a few neurons a hundred times as strong as the others, and members
// of a neuron that are strong together.
var probeMLPs = sync.OnceValue(func() []probeMLP {
	list := make([]probeMLP, 3)
	for n := range list {
		list[n] = newProbeMLP(rng.NewStream(0, 1, n))
	}
	return list
})

func newProbeMLP(r *rng.Stream) probeMLP {
	own := make([]int, probeNeurons)
	strength := make([]float64, probeNeurons)
	for j := range own {
		own[j] = j
		strength[j] = math.Exp(0.5 * r.Normal())
	}

	m := probeMLP{terminals: map[Symbol][]float64{}}
	for range 2 {
		in := synthetic(r, probeNeurons, probeWidth)
		for j, s := range strength {
			stretch(in.W.RowF32(j), s)
			stretch(in.G.RowF32(j), s)
		}
		m.members = append(m.members, Member{Inputs: in, Owner: own})
	}

	down := synthetic(r, probeWidth, probeNeurons)
	for _, x := range []kernels.Mat{down.W, down.G} {
		for i := range x.Rows {
			for j, s := range strength {
				x.RowF32(i)[j] *= float32(s)
			}
		}
	}
	m.members = append(m.members, Member{Inputs: down, Owner: own, Columns: true, Out: true})

	for j, x := range down.X {
		mean, size := float64(down.Mean[j]), math.Sqrt(float64(x))
		for s, v := range map[Symbol]float64{
			A: float64(x), Am: mean * mean, Av: float64(down.Var[j]), Ma: size / 20 * math.Exp(0.2*strength[j]),
			Bi: strength[j] / 10, Sx: float64(x) + 10, Sy: float64(x) + 10 + strength[j],
			Sd: strength[j] * float64(down.Hess[j]),
		} {
			m.terminals[s] = append(m.terminals[s], v)
		}
	}

	return m
}

func stretch(row []float32, by float64) {
	for j := range row {
		row[j] *= float32(by)
	}
}

// partsPrint is the fingerprint of a formula of whole parts.
func partsPrint(e *Expr) (Fingerprint, error) {
	p, err := CompileParts(e)
	if err != nil {
		return 0, err
	}

	h := fnv.New64a()
	for _, mlp := range probeMLPs() {
		t := p.Tally(probeNeurons, 1)
		for _, m := range mlp.members {
			if err := t.Add(m); err != nil {
				return 0, err
			}
		}
		scores, err := t.Scores(func(s Symbol) []float64 { return mlp.terminals[s] })
		if err != nil {
			return 0, err
		}

		sorted := slices.Sorted(slices.Values(scores))
		if n := len(slices.Compact(slices.Clone(sorted))); float64(n) < minDistinct*probeNeurons {
			return 0, fmt.Errorf("%s: %w: %d values among %d neurons", e, ErrConstant, n, probeNeurons)
		}
		mask := make([]byte, probeNeurons)
		for j, v := range scores {
			switch {
			case v >= sorted[probeNeurons/2]:
				mask[j] = 2
			case v >= sorted[probeNeurons/4]:
				mask[j] = 1
			}
		}
		if _, err := h.Write(mask); err != nil {
			return 0, err
		}
	}

	return Fingerprint(h.Sum64()), nil
}
