package mos

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Type is a kind of projection: the modules that share a pool, in the order of the blocks.
type Type struct {
	Name    string
	Modules []adapter.Module
}

// Types groups modules by what they are apart from the block: "q_proj", or as much of the path behind the
// block's number as tells them from others ("attn.c_proj", "mlp.c_proj"; "mlp.experts.3.w1"). Modules of one
// type must have the same channels.
func Types(modules []adapter.Module) ([]Type, error) {
	var order []string
	groups, last := map[string][]adapter.Module{}, map[string]int{}
	for _, m := range modules {
		if !m.Linear() {
			return nil, fmt.Errorf("%w: %s is no matrix of a block; pools are shared between blocks", adapter.ErrTarget,
				m.Path)
		}

		key := inBlock(m)
		if groups[key] == nil {
			order = append(order, key)
			last[lastPart(key)]++
		}

		groups[key] = append(groups[key], m)
	}

	types := make([]Type, 0, len(order))
	for _, key := range order {
		t := Type{Name: key, Modules: groups[key]}
		if n := lastPart(key); last[n] == 1 {
			t.Name = n
		}

		for _, m := range t.Modules[1:] {
			if first := t.Modules[0]; m.In != first.In || m.Out != first.Out {
				return nil, fmt.Errorf("%w: %s has %d × %d channels, %s has %d × %d; modules that share a "+
					"pool must agree",
					adapter.ErrTarget, m.Path, m.In, m.Out, first.Path, first.In, first.Out)
			}
		}

		types = append(types, t)
	}

	return types, nil
}

// inBlock is the path behind the block's number.
func inBlock(m adapter.Module) string {
	number := "." + strconv.Itoa(m.Block) + "."
	if i := strings.Index(m.Path, number); i >= 0 {
		return m.Path[i+len(number):]
	}
	return m.Path
}

func lastPart(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// Sizes are those of the pools of a type.
func Sizes(c *adapter.Config, t Type) (Geometry, error) {
	g := Geometry{
		Blocks: len(t.Modules), Equivalent: c.MoS.EquivalentRank, Rank: c.Rank, Shards: c.MoS.Shards,
		Private: c.MoS.Private,
		In:      t.Modules[0].In, Out: t.Modules[0].Out, Pure: c.MoS.Sampling == adapter.Pure,
	}
	if err := g.Check(); err != nil {
		return g, fmt.Errorf("%s: %w", t.Name, err)
	}
	return g, nil
}

// Build makes the pools of an adapter for the modules that it adapts, with zeros and no lists.
func Build(c *adapter.Config, modules []adapter.Module) ([]*Pool, []*adapter.Low, error) {
	types, err := Types(modules)
	if err != nil {
		return nil, nil, err
	}

	var pools []*Pool
	parts := map[string]Part{}
	for _, t := range types {
		g, err := Sizes(c, t)
		if err != nil {
			return nil, nil, err
		}

		pool := NewPool(t.Name, g)
		pools = append(pools, pool)
		for k, m := range t.Modules {
			parts[m.Path] = Part{Pool: pool, Block: k}
		}
	}

	var low []*adapter.Low
	for _, m := range modules {
		low = append(low, &adapter.Low{
			Module: m, Rank: c.Rank, Alpha: c.Alpha, Scale: c.ScaleOf(c.Rank, c.Alpha),
			Factors: parts[m.Path],
		})
	}

	return pools, low, nil
}
