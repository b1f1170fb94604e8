package actstats

import (
	"cmp"
	"slices"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// Plan says how the matrices of a block are divided among passes through it.
type Plan struct {
	Needs     Set
	Memory    int64 // bytes that the Hessians of a pass may take, but for those of a single input; 0: 2 GiB
	Refreshed bool  // matrices see what reaches them once those before them in the block are pruned
}

// input is matrices that read the same, and how far they are from the block's beginning.
type input struct {
	stage   int
	bytes   int64 // of its Hessian
	linears []lm.Linear
}

// Passes divides matrices among passes, to be measured and then pruned pass by pass. A pass holds the
// statistics of all that it is for.
//
// Refreshed, the passes follow the block: q, k and v (by way of their latents where there are some); o; gate and up;
// down. Otherwise there is one pass, if the
// Hessians fit into the memory; where they do not, passes go from the block's end to its beginning, so that
// everything before the matrices of a pass is dense still and all are measured as in a single pass.
func (p Plan) Passes(linears []lm.Linear) [][]lm.Linear {
	if p.Memory == 0 {
		p.Memory = 2 << 30
	}

	inputs := p.inputs(linears)
	total := int64(0)
	for _, in := range inputs {
		total += in.bytes
	}
	if !p.Refreshed && total <= p.Memory {
		return [][]lm.Linear{linears}
	}

	// The first pass is pruned before the second is measured.
	slices.SortStableFunc(inputs, func(a, b *input) int {
		if p.Refreshed {
			return cmp.Compare(a.stage, b.stage)
		}
		return cmp.Compare(b.stage, a.stage)
	})

	var passes [][]lm.Linear
	held, stage := int64(0), -1
	for _, in := range inputs {
		if len(passes) == 0 || held+in.bytes > p.Memory || p.Refreshed && in.stage != stage {
			passes, held = append(passes, nil), 0
		}
		last := len(passes) - 1
		passes[last] = append(passes[last], in.linears...)
		held, stage = held+in.bytes, in.stage
	}

	return passes
}

// inputs groups matrices by what they read, in the order in which they come.
func (p Plan) inputs(linears []lm.Linear) (list []*input) {
	found := map[source]*input{}
	for _, l := range linears {
		k := sourceOf(l)
		in := found[k]
		if in == nil {
			in = &input{stage: stages[k.role]}
			if p.Needs&Hessian != 0 {
				in.bytes = 8 * int64(l.In) * int64(l.In)
			}
			found[k], list = in, append(list, in)
		}

		in.linears = append(in.linears, l)
	}

	return list
}

// source names an input: the role of the first matrix that reads it, and its expert.
type source struct {
	role   arch.Role
	expert int
}

func sourceOf(l lm.Linear) source { return source{inputOf(l.Role), l.Expert} }

// stages orders inputs from a block's beginning to its end.
var stages = map[arch.Role]int{
	arch.Q: 0, arch.QB: 1, arch.KVB: 1, arch.O: 2, arch.Gate: 3, arch.SharedGate: 3, arch.Down: 4, arch.SharedDown: 4,
}
