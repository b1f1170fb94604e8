package lora

import (
	"fmt"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/memlimit"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// remarkRank says that no module has as high a rank as its factors: they hold more parameters than they need.
func (o Options) remarkRank(a *adapter.Adapter) {
	if o.Remark == nil || a.Config.Kind != adapter.LoRA || len(a.Low) == 0 {
		return
	}

	least := a.Low[0].Rank
	for _, l := range a.Low {
		least = min(least, l.Rank)
		if l.Rank <= min(l.Module.In, l.Module.Out) {
			return
		}
	}

	o.Remark(fmt.Sprintf("rank %d is more than any of the %d matrices has: a change of such a matrix needs no more "+
		"than the smaller of its sizes", least, len(a.Low)))
}

// fits refuses steps that take more memory than there is, before they are laid out: the numbers of their
// sequences, and the inputs of all blocks for one pass, which is less than a pass takes.
func (o Options) fits(m *lm.Model, data corpus.Windows) error {
	total, count := 0.0, 0.0
	for _, row := range data.IDs {
		total, count = total+float64(len(row)), count+1
	}
	if count == 0 {
		return nil
	}

	mean := total / count
	inStep := float64(o.Batch) * float64(o.group())
	if o.Pack > 0 {
		inStep = float64(o.Pack) / max(1, mean)
	}

	steps := float64(max(1, o.Steps))
	if o.Steps == 0 { // passes over the data
		inStep = min(inStep, count)
		steps = max(1, float64(o.Epochs)*count/max(1, inStep))
	}

	if err := memlimit.Check((4*inStep + 24) * steps); err != nil {
		return failure.Hinted(fmt.Errorf("%w: %d steps of %.0f sequences: %w", ErrConfig, o.Steps, inStep, err),
			"fewer --steps, or a smaller --batch")
	}

	pass := inStep
	if o.MicroBatch > 0 {
		pass = min(pass, float64(o.MicroBatch*o.group()))
	}

	c := m.Config()
	if err := memlimit.Check(4 * pass * mean * float64(c.Hidden) * float64(c.Layers+2)); err != nil {
		return failure.Hinted(fmt.Errorf("%w: a pass of %.0f sequences, %.0f tokens: %w", ErrConfig, pass, pass*mean,
			err), "a smaller --batch, or --micro-batch, which gives the same steps")
	}

	return nil
}
