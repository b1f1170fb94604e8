package fitness

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/structure"
)

// Formulas of whole parts climb the same ladder. What they look at is measured once for each set of calibration data,
// on the dense model, as structure.Choose does it. A measurement then zeroes the columns behind the neurons and heads
// that go, which is what the smaller model computes, or runs the layers that stay: a cut, and a pass forward.

// partsKept are what formulas of whole parts look at, by the hash of the calibration data.
type partsKept struct {
	mu   sync.Mutex
	sets map[string]*structure.Parts
}

// partsOf gives those of a rung; they are measured when they are first asked for.
func (s *subject) partsOf(ctx context.Context, r Rung) (*structure.Parts, error) {
	s.parts.mu.Lock()
	defer s.parts.mu.Unlock()

	calib := s.set(r).calib
	if p := s.parts.sets[calib.Hash]; p != nil {
		return p, nil
	}

	matrices := s.matrices
	if calib.Hash != s.Calib.Hash {
		var err error
		if matrices, err = s.gather(ctx, r); err != nil {
			return nil, err
		}
	}
	var list []structure.Operand
	for _, m := range matrices {
		list = append(list, structure.Operand{Linear: m.linear, Inputs: m.in, Blind: m.blind})
	}

	p, err := structure.NewParts(ctx, s.dense, calib, s.o.Structure, list, s.uses)
	if err != nil {
		return nil, err
	}
	if s.parts.sets == nil {
		s.parts.sets = map[string]*structure.Parts{}
	}
	s.parts.sets[calib.Hash] = p

	return p, nil
}

// behind reports whether a matrix is one that cuts of neurons and heads zero columns of.
func behind(l lm.Linear) bool {
	return l.Role == arch.Down || l.Role == arch.SharedDown || l.Role == arch.O
}

// structural measures a formula of whole parts on a rung.
func (j *Judge) structural(ctx context.Context, b *bench, t Task) (out Measure, err error) {
	var p *gp.PartsProgram
	if t.Metric != Dense {
		text, ok := strings.CutPrefix(t.Metric, prune.FormulaPrefix)
		if !ok {
			return out, fmt.Errorf("%w: of whole %s there are formulas only", ErrTask, j.o.Structure)
		}
		e, err := gp.Parse(text)
		if err == nil {
			p, err = gp.CompileParts(e)
		}
		if err != nil {
			return out, fmt.Errorf("%w: %w", ErrTask, err)
		}
	}
	if p == nil && t.Rung == Layers {
		return out, fmt.Errorf("%w: the rung takes formulas only", ErrTask)
	}

	for at, s := range j.subjects {
		parts, err := s.partsOf(ctx, t.Rung)
		if err != nil {
			return out, fmt.Errorf("%s: %w", s.Name, err)
		}

		for _, setting := range j.o.Settings {
			c := cutting{bench: b, s: s, at: at, parts: parts, p: p, drop: setting.Sparsity}
			if t.Rung == Layers {
				v, err := c.change(ctx)
				if err != nil {
					return out, fmt.Errorf("%s, %s: %w", s.Name, setting, err)
				}
				out.Values = append(out.Values, v)
				continue
			}

			ids := s.set(t.Rung).data.IDs
			if t.Rung == Few {
				ids = ids[:j.o.Windows]
			}
			v, err := c.losses(ctx, ids)
			if err != nil {
				return out, fmt.Errorf("%s, %s: %w", s.Name, setting, err)
			}
			out.Values = append(out.Values, mean(v))
			if t.Rung == Select || t.Rung == Test {
				out.Windows = append(out.Windows, v)
			}
		}
	}

	return out, nil
}

// cutting is one model from which a formula takes a share of the parts.
type cutting struct {
	*bench
	s     *subject
	at    int
	parts *structure.Parts
	p     *gp.PartsProgram // nil: nothing goes
	drop  float64
}

// losses are the mean losses of sequences.
func (c *cutting) losses(ctx context.Context, ids [][]int32) ([]float64, error) {
	m, err := c.model(ctx, c.s, c.at)
	if err != nil || c.p == nil {
		if err != nil {
			return nil, err
		}
		return losses(ctx, m, ids)
	}

	k, err := c.parts.Cut(c.p, c.drop, nil)
	if err != nil {
		return nil, err
	}
	if k.Layers != nil {
		return lossesOf(ctx, m, ids, k.Layers)
	}
	if err := structure.Mask(m, k, nil); err != nil {
		return nil, err
	}

	return losses(ctx, m, ids)
}

// lossesOf are those of a model of which some layers run alone.
func lossesOf(ctx context.Context, m *lm.Model, ids [][]int32, layers []int) ([]float64, error) {
	const batch = 8192 // tokens at a time
	var all lm.SequenceLosses
	for _, part := range (corpus.Windows{IDs: ids}).Batches(batch) {
		h, err := m.Embed(part.IDs)
		if err != nil {
			return nil, err
		}
		for _, l := range layers {
			if err == nil {
				err = m.RunBlock(ctx, l, h, nil)
			}
		}
		var list []float64
		if err == nil {
			list, err = m.Loss(ctx, h, part.IDs)
		}
		for _, n := range h.Lens {
			n = max(n-1, 0)
			if err == nil {
				all.Add(list[:n], nil)
				list = list[n:]
			}
		}
		h.Free()
		if err != nil {
			return nil, err
		}
	}

	return all.Means(), nil
}

// change is the geometric mean over the samples of ‖Δ‖²/‖Y‖², where Y is what leaves a block, or the last one where
// layers go, and Δ what it changes by.
func (c *cutting) change(ctx context.Context) (float64, error) {
	m, err := c.model(ctx, c.s, c.at)
	if err != nil {
		return 0, err
	}

	log := 0.0
	for i := range c.s.samples {
		x := &c.s.samples[i]
		layers := []int{x.block}
		some := layers
		if x.block < 0 {
			some = nil
		}
		k, err := c.parts.Cut(c.p, c.drop, some)
		if err != nil {
			return 0, err
		}
		if k.Layers != nil {
			layers = k.Layers
		} else if err := structure.Mask(m, k, some); err != nil {
			return 0, err
		}

		d, err := runSample(ctx, m, x, layers)
		if err != nil {
			return 0, err
		}
		log += math.Log(d) / float64(len(c.s.samples))
	}

	return math.Exp(log), nil
}

// runSample runs some layers on a sample and gives how far away what leaves them is.
func runSample(ctx context.Context, m *lm.Model, x *sample, layers []int) (float64, error) {
	in, err := upload(m.Device(), x.in, x.rows, len(x.in)/x.rows)
	if err != nil {
		return 0, err
	}
	defer in.Buf.Free()

	h := &lm.Hidden{X: in, Lens: x.lens}
	for _, l := range layers {
		if err := m.RunBlock(ctx, l, h, nil); err != nil {
			return 0, fmt.Errorf("block %d: %w", l, err)
		}
	}
	y, err := hostmat.F32(m.Device(), h.X)
	if err != nil {
		return 0, err
	}

	return x.distance(y.Buf.F32()), nil
}

// sampleAll keeps what goes into the first block and what leaves the last one.
func (s *subject) sampleAll(ctx context.Context) error {
	h, err := s.embedSample()
	if err != nil {
		return err
	}
	defer h.Free()

	in, err := hostmat.F32(s.dense.Device(), h.X)
	if err != nil {
		return err
	}
	for l := range s.dense.Blocks() {
		if err := s.dense.RunBlock(ctx, l, h, nil); err != nil {
			return fmt.Errorf("block %d: %w", l, err)
		}
	}

	return s.keepSample(-1, in, h)
}
