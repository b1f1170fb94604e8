package kinds

import (
	"fmt"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// Pooled are the factors of RaSA (He et al., arXiv 2503.12576): of r ranks every block gives k to a pool that all
// blocks of a kind of projection use, so that with L blocks it has r - k of its own and L·k shared ones,
// ΔW = [B B_S]·diag(d)·[A; A_S], and weighs them by a d of its own.
type Pooled struct {
	OwnA, OwnB       *adapter.Param // [r-k, in], [r-k, out]; nil where all ranks are shared
	SharedA, SharedB *adapter.Param // [L·k, in], [L·k, out]
	D                *adapter.Param // [1, r-k+L·k]
}

// sides are the parts of the factors, from the first rank on.
func (p Pooled) sides(use func(first int, a, b *adapter.Param)) {
	first := 0
	if p.OwnA != nil {
		use(0, p.OwnA, p.OwnB)
		first = p.OwnA.Value.Rows
	}
	use(first, p.SharedA, p.SharedB)
}

// Assemble implements [adapter.Factors]: A's rows are weighed.
func (p Pooled) Assemble(a, bt kernels.Mat) {
	d := p.D.Data()
	p.sides(func(first int, pa, pb *adapter.Param) {
		for j := range pa.Value.Rows {
			to := a.RowF32(first + j)
			for i, v := range pa.Value.RowF32(j) {
				to[i] = d[first+j] * v
			}
			copy(bt.RowF32(first+j), pb.Value.RowF32(j))
		}
	})
}

// Scatter implements [adapter.Factors].
func (p Pooled) Scatter(da, dbt kernels.Mat) {
	d, dd := p.D.Data(), p.D.Grad.RowF32(0)
	p.sides(func(first int, pa, pb *adapter.Param) {
		for j := range pa.Value.Rows {
			value, to := pa.Value.RowF32(j), pa.Grad.RowF32(j)
			sum := 0.0
			for i, g := range da.RowF32(first + j) {
				sum += float64(g) * float64(value[i])
				to[i] += d[first+j] * g
			}
			dd[first+j] += float32(sum)

			to = pb.Grad.RowF32(j)
			for o, g := range dbt.RowF32(first + j) {
				to[o] += g
			}
		}
	})
}

// Parameters implements [adapter.Factors].
func (p Pooled) Parameters() []*adapter.Param {
	if p.OwnA == nil {
		return []*adapter.Param{p.SharedA, p.SharedB, p.D}
	}
	return []*adapter.Param{p.OwnA, p.OwnB, p.SharedA, p.SharedB, p.D}
}

// pools makes RaSA's factors for modules.
func pools(c *adapter.Config, modules []adapter.Module) ([]*adapter.Low, error) {
	k := c.RaSA.Shared
	if k < 1 || k > c.Rank {
		return nil, fmt.Errorf("%w: RaSA shares %d of %d ranks; it takes at least one, and no more than there are",
			adapter.ErrConfig, k, c.Rank)
	}

	types, err := mos.Types(modules)
	if err != nil {
		return nil, err
	}

	made := map[string]*adapter.Low{}
	for _, t := range types {
		in, out := t.Modules[0].In, t.Modules[0].Out
		blocks := len(t.Modules)
		rank := c.Rank - k + blocks*k
		if err := bounded(rank, in, out); err != nil {
			return nil, err
		}

		a := adapter.NewFactor("rasa."+t.Name+".shared_A", blocks*k, in)
		b := adapter.NewFactor("rasa."+t.Name+".shared_B", blocks*k, out)
		for _, m := range t.Modules {
			p := Pooled{SharedA: a, SharedB: b, D: adapter.NewParam(m.Path+".rasa_D", 1, rank)}
			if own := c.Rank - k; own > 0 {
				p.OwnA = adapter.NewFactor(m.Path+".rasa_A", own, m.In)
				p.OwnB = adapter.NewFactor(m.Path+".rasa_B", own, m.Out)
			}
			made[m.Path] = &adapter.Low{Module: m, Rank: rank, Alpha: float64(rank), Scale: 1, Factors: p}
		}
	}

	return inOrder(modules, made), nil
}

// inOrder lists changes in the order of their modules.
func inOrder(modules []adapter.Module, made map[string]*adapter.Low) []*adapter.Low {
	var list []*adapter.Low
	for _, m := range modules {
		list = append(list, made[m.Path])
	}
	return list
}

// startPools starts RaSA's factors: A as LoRA's, B zero, and weights with which own and shared ranks count alike, half
// of alpha each, as the published code has it.
func startPools(c *adapter.Config, list []*adapter.Low, seed uint64) {
	for _, l := range list {
		p := l.Factors.(Pooled)
		p.sides(func(first int, a, _ *adapter.Param) {
			start(a, seed, l.Module.In)
			n := a.Value.Rows
			for j := range n {
				p.D.Data()[first+j] = float32(0.5 * c.Alpha / float64(n))
			}
		})
	}
}

// Shared are the factors of ShareLoRA (Song et al., arXiv 2406.10785): LoRA's, of which all blocks of a kind of
// projection have one in common, or both.
type Shared struct {
	A, B *adapter.Param // [r, in], [r, out]
}

// Assemble implements [adapter.Factors].
func (s Shared) Assemble(a, bt kernels.Mat) {
	for j := range a.Rows {
		copy(a.RowF32(j), s.A.Value.RowF32(j))
		copy(bt.RowF32(j), s.B.Value.RowF32(j))
	}
}

// Scatter implements [adapter.Factors].
func (s Shared) Scatter(da, dbt kernels.Mat) {
	for j := range da.Rows {
		to := s.A.Grad.RowF32(j)
		for i, g := range da.RowF32(j) {
			to[i] += g
		}
		to = s.B.Grad.RowF32(j)
		for o, g := range dbt.RowF32(j) {
			to[o] += g
		}
	}
}

// Parameters implements [adapter.Factors].
func (s Shared) Parameters() []*adapter.Param { return []*adapter.Param{s.A, s.B} }

// shares makes ShareLoRA's factors for modules.
func shares(c *adapter.Config, modules []adapter.Module) ([]*adapter.Low, error) {
	side := c.Share
	if side != adapter.ShareA && side != adapter.ShareB && side != adapter.ShareBoth {
		return nil, fmt.Errorf("%w: share %.60q; known: a, b, ab", adapter.ErrConfig, side)
	}

	types, err := mos.Types(modules)
	if err != nil {
		return nil, err
	}

	made := map[string]*adapter.Low{}
	for _, t := range types {
		in, out := t.Modules[0].In, t.Modules[0].Out
		if err := bounded(c.Rank, in, out); err != nil {
			return nil, err
		}

		a := adapter.NewFactor("share."+t.Name+".shared_A", c.Rank, in)
		b := adapter.NewFactor("share."+t.Name+".shared_B", c.Rank, out)
		for _, m := range t.Modules {
			s := Shared{a, b}
			if side == adapter.ShareB {
				s.A = adapter.NewFactor(m.Path+".share_A", c.Rank, in)
			}
			if side == adapter.ShareA {
				s.B = adapter.NewFactor(m.Path+".share_B", c.Rank, out)
			}
			made[m.Path] = &adapter.Low{
				Module: m, Rank: c.Rank, Alpha: c.Alpha, Scale: c.ScaleOf(c.Rank, c.Alpha), Factors: s,
			}
		}
	}

	return inOrder(modules, made), nil
}

// countPools counts what RaSA trains.
func countPools(c *adapter.Config, chosen []adapter.Module) (n int64, err error) {
	types, err := mos.Types(chosen)
	if err != nil {
		return 0, err
	}

	for _, t := range types {
		blocks := int64(len(t.Modules))
		width := int64(t.Modules[0].In + t.Modules[0].Out)
		own, shared := int64(c.Rank-c.RaSA.Shared), blocks*int64(c.RaSA.Shared)
		n += blocks*own*width + shared*width + blocks*(own+shared)
	}

	return n, nil
}

// countShares counts what ShareLoRA trains.
func countShares(c *adapter.Config, chosen []adapter.Module) (n int64, err error) {
	types, err := mos.Types(chosen)
	if err != nil {
		return 0, err
	}

	for _, t := range types {
		times := func(side adapter.Sharing) int64 {
			if c.Share == side || c.Share == adapter.ShareBoth {
				return 1
			}
			return int64(len(t.Modules))
		}
		in, out := int64(t.Modules[0].In), int64(t.Modules[0].Out)
		n += int64(c.Rank) * (times(adapter.ShareA)*in + times(adapter.ShareB)*out)
	}

	return n, nil
}
