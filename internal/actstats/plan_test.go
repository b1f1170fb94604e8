package actstats

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// block is the matrices of a decoder layer of a mixture: widths 8 and 24, two experts.
func block() []lm.Linear {
	var list []lm.Linear
	add := func(role arch.Role, expert, in int) {
		list = append(list, lm.Linear{Name: fmt.Sprint(role, expert), Role: role, Expert: expert, In: in, Out: 8})
	}
	for _, r := range []arch.Role{arch.Q, arch.K, arch.V, arch.O} {
		add(r, -1, 8)
	}
	for e := range 2 {
		add(arch.Gate, e, 8)
		add(arch.Up, e, 8)
		add(arch.Down, e, 24)
	}
	return list
}

// TestPasses: every matrix is in one pass, beside all that read the same; a pass keeps to its memory unless one input
// needs more; the order is that of the block if matrices see what is pruned before them, otherwise the opposite.
func TestPasses(t *testing.T) {
	const small, large = 8 * 8 * 8, 8 * 24 * 24
	for _, refreshed := range []bool{false, true} {
		for _, memory := range []int64{1, small, 2 * small, large, large + small, 2 * large, 1 << 20} {
			p := Plan{Needs: Hessian, Memory: memory, Refreshed: refreshed}
			name := fmt.Sprintf("refreshed %t, %d bytes", refreshed, memory)
			var all []string
			var order []int
			at := map[source]int{}
			for k, pass := range p.Passes(block()) {
				inputs := map[source]int64{}
				held := int64(0)
				for _, l := range pass {
					all = append(all, l.Name)
					order = append(order, stages[inputOf(l.Role)])
					s := sourceOf(l)
					if before, ok := at[s]; ok && before != k {
						t.Errorf("%s: %s is in pass %d, what reads the same in %d", name, l.Name, k, before)
					}
					at[s] = k
					if inputs[s] == 0 {
						inputs[s] = 8 * int64(l.In) * int64(l.In)
						held += inputs[s]
					}
				}
				if held > memory && len(inputs) > 1 {
					t.Errorf("%s: pass %d holds %d", name, k, held)
				}
			}

			slices.Sort(all)
			if len(all) != len(block()) || len(slices.Compact(all)) != len(block()) {
				t.Errorf("%s: %v", name, all)
			}

			if !refreshed && memory < 1<<20 {
				slices.Reverse(order)
			}
			if (refreshed || memory < 1<<20) && !slices.IsSorted(order) {
				t.Errorf("%s: stages %v", name, order)
			}
		}
	}
}

// TestOnePass: what fits is one pass as it came, and without Hessians everything fits; refreshed there are as many as
// the block has stages.
func TestOnePass(t *testing.T) {
	for _, p := range []Plan{{Needs: Hessian}, {Needs: SumSquares, Memory: 1}} {
		if got := p.Passes(block()); len(got) != 1 || !slices.Equal(got[0], block()) {
			t.Errorf("%+v: %d passes", p, len(got))
		}
	}
	if got := (Plan{Needs: Hessian, Refreshed: true}).Passes(block()); len(got) != 4 {
		t.Errorf("refreshed: %d passes, want 4", len(got))
	}
}

// TestIdle: all that is needed has to be 0, of either sign; what is not needed does not count.
func TestIdle(t *testing.T) {
	zero, some := []float64{0, math.Copysign(0, -1)}, []float64{0, 1e-300}
	gradient := func(d kernels.DType, last float32) kernels.Mat {
		m := kernels.MatOf(kernels.NewHost(d, 2), 1, 2)
		if d == kernels.F32 {
			m.Buf.F32()[1] = last
		} else {
			m.Buf.U16()[1] = kernels.ToF16(last)
		}
		return m
	}

	negative := float32(math.Copysign(0, -1))
	for name, c := range map[string]struct {
		needs                    Set
		g                        kernels.Mat
		squares, sums, variances []float64
		want                     bool
	}{
		"nothing needed":   {0, kernels.Mat{}, zero, zero, zero, false},
		"only a Hessian":   {Hessian, kernels.Mat{}, zero, zero, zero, false},
		"squares":          {SumSquares, kernels.Mat{}, zero, some, some, true},
		"some square":      {SumSquares, kernels.Mat{}, some, zero, zero, false},
		"sums too":         {SumSquares | Sums, kernels.Mat{}, zero, some, zero, false},
		"variances":        {Variances, kernels.Mat{}, some, some, zero, true},
		"nothing measured": {SumSquares, kernels.Mat{}, nil, nil, nil, false},
		"gradients":        {Gradients, gradient(kernels.F32, negative), some, some, some, true},
		"half gradients":   {Gradients, gradient(kernels.F16, negative), some, some, some, true},
		"a gradient":       {Gradients | SumSquares, gradient(kernels.F16, 1e-7), zero, zero, zero, false},
		"a wide gradient":  {Gradients, gradient(kernels.F32, 1e-40), zero, zero, zero, false},
	} {
		if got := Idle(c.needs, c.g, c.squares, c.sums, c.variances); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
