package kinds

import (
	"fmt"

	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// Elements counts the elements of the low-rank parameters that a configuration asks for, frozen ones too,
// without making them.
func Elements(c *adapter.Config, modules []adapter.Module) (int64, error) {
	n, frozen, err := count(c, modules)
	return n + frozen, err
}

// Trainable counts the trained elements alone. Tensors that are trained whole do not count.
func Trainable(c *adapter.Config, modules []adapter.Module) (int64, error) {
	n, _, err := count(c, modules)
	return n, err
}

func count(c *adapter.Config, modules []adapter.Module) (trained, frozen int64, err error) {
	if err := check(c); err != nil {
		return 0, 0, err
	}

	chosen, err := c.Chosen(modules)
	if err != nil {
		return 0, 0, err
	}

	switch c.Kind {
	case adapter.MoS:
		return countShards(c, chosen)
	case adapter.VeRA:
		in, out := 0, 0
		for _, m := range chosen {
			in, out = max(in, m.In), max(out, m.Out)
			trained += int64(c.Rank) + int64(m.Out)
		}
		return trained, int64(c.Rank) * int64(in+out), nil
	case adapter.PRoLoRA:
		p := c.PRoLoRA
		if p.InParts < 1 || p.OutParts < 1 {
			return 0, 0, fmt.Errorf("%w: PRoLoRA with %d and %d parts", adapter.ErrConfig, p.InParts, p.OutParts)
		}

		for _, m := range chosen {
			narrow := (m.In+p.InParts-1)/p.InParts + (m.Out+p.OutParts-1)/p.OutParts
			trained += int64(p.Unshared)*int64(m.In+m.Out) + int64(c.Rank-p.Unshared)*int64(narrow)
		}

		return trained, 0, nil
	case adapter.MiSS:
		for _, m := range chosen {
			cols := m.Out
			if c.MiSS.Mini > 0 {
				cols = c.MiSS.Mini
			}
			trained += int64(c.Rank) * int64(cols)
		}
		return trained, 0, nil
	case adapter.RaSA:
		trained, err = countPools(c, chosen)
		return trained, 0, err
	case adapter.Share:
		trained, err = countShares(c, chosen)
		return trained, 0, err
	case adapter.GraLoRA, adapter.SHiRA:
		for _, m := range chosen {
			trained += int64(c.Rank+c.GraLoRA.Hybrid) * int64(m.In+m.Out)
		}
		return trained, 0, nil
	}

	of, err := c.RankAlpha()
	if err != nil {
		return 0, 0, err
	}

	for _, m := range chosen {
		r, _ := of(m.Path)
		trained += int64(r) * int64(m.In+m.Out)
		if c.DoRA {
			trained += int64(m.Out)
		}
		if c.OutputBias && !m.Table {
			trained += int64(m.Out)
		}
	}

	return trained, 0, nil
}

func countShards(c *adapter.Config, chosen []adapter.Module) (trained, frozen int64, err error) {
	types, err := mos.Types(chosen)
	if err != nil {
		return 0, 0, err
	}

	for _, t := range types {
		g, err := mos.Sizes(c, t)
		if err != nil {
			return 0, 0, err
		}
		trained += int64(g.Rows()) * int64(g.In/g.Shards+g.Out/g.Shards)
	}

	return trained, 0, nil
}
