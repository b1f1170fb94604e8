package kinds

import (
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/memlimit"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// Bytes of a parameter: its value, and for training its gradient and the optimiser's two moments, and the
// factors as they are computed with.
const (
	heldBytes    = 4
	trainedBytes = 4 + 4 + 8 + 4
)

// need refuses an adapter that takes more memory than there is, before anything of it is made. Where a kind has
// no factors of the full rank for every module, what it computes with has.
func need(c *adapter.Config, chosen []adapter.Module, trains bool) error {
	of, err := c.RankAlpha()
	if err != nil {
		return err
	}

	blocks := map[string]int{} // that share a pool
	if c.Kind == adapter.RaSA {
		types, err := mos.Types(chosen)
		if err != nil {
			return err
		}
		for _, t := range types {
			for _, m := range t.Modules {
				blocks[m.Path] = len(t.Modules)
			}
		}
	}

	sum, widest := 0.0, 0.0
	for _, m := range chosen {
		r := c.Rank
		switch c.Kind {
		case adapter.LoRA:
			r, _ = of(m.Path)
		case adapter.GraLoRA:
			r = c.GraLoRA.Parts*c.Rank + c.GraLoRA.Hybrid
		case adapter.RaSA:
			r = c.Rank + (blocks[m.Path]-1)*c.RaSA.Shared
		}
		sum += float64(r) * (float64(m.In) + float64(m.Out))
		widest = max(widest, float64(r)*(float64(m.In)+float64(m.Out)))
	}

	bytes := heldBytes * sum
	switch {
	case c.Kind == adapter.VeRA: // the factors are those of all modules
		bytes = heldBytes * widest
	case slices.Contains([]adapter.Kind{adapter.MoS, adapter.PRoLoRA, adapter.RaSA, adapter.Share}, c.Kind):
	case trains:
		bytes = trainedBytes * sum
	}

	if err := memlimit.Check(bytes); err != nil {
		return fmt.Errorf("%w: rank %d on %d modules: %w (HINT: a smaller rank, or fewer targets)", adapter.ErrConfig,
			c.Rank, len(chosen), err)
	}

	return nil
}
