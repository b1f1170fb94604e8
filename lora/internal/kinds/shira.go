package kinds

import (
	"errors"
	"fmt"

	"github.com/modelcompress/compress/lora/internal/adapter"
)

// elements makes SHiRA's changes for modules: as many elements as a LoRA of the rank has parameters, whose places are
// chosen later.
func elements(c *adapter.Config, modules []adapter.Module) ([]*adapter.Low, error) {
	var list []*adapter.Low
	var faults []error
	for _, m := range modules {
		if err := bounded(c.Rank, m.In, m.Out); err != nil {
			return nil, err
		}

		n := int64(c.Rank) * int64(m.In+m.Out)
		if n > int64(m.In)*int64(m.Out) {
			faults = append(faults, fmt.Errorf("%w: %s has %d × %d elements, of which SHiRA of rank %d would change %d",
				adapter.ErrConfig, m.Path, m.Out, m.In, c.Rank, n))
			continue
		}

		s := adapter.Sparse{
			Rows: make([]int32, n), Cols: make([]int32, n), In: m.In, Out: m.Out,
			Value: adapter.NewParam(m.Path+".shira_weight", 1, int(n)),
		}
		s.Value.Shape = []int64{n}
		s.Value.Elements = true
		list = append(list,
			&adapter.Low{Module: m, Rank: s.Rank(), Alpha: float64(s.Rank()), Scale: 1, Factors: s})
	}

	return list, errors.Join(faults...)
}

// linearOnly refuses modules that PEFT has no form of a kind for.
func linearOnly(c *adapter.Config, modules []adapter.Module) error {
	if c.Kind != adapter.MiSS && c.Kind != adapter.SHiRA && c.Kind != adapter.GraLoRA {
		return nil
	}

	for _, m := range modules {
		switch {
		case m.Table:
			return fmt.Errorf("%w: %s is a token table, which kind %s does not change (HINT: --kind lora does)",
				adapter.ErrUnsupported, m.Path, c.Kind)
		case m.Transposed && c.Kind != adapter.GraLoRA:
			return fmt.Errorf("%w: %s is stored [in, out] (Conv1D), for which PEFT has no %s (HINT: --kind lora or "+
				"gralora)", adapter.ErrUnsupported, m.Path, c.Kind)
		}
	}

	return nil
}
