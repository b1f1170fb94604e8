package prune

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// givenName is the metric's name in reports of runs with Options.MasksFrom.
const givenName = "masks"

// givenMetric stands for a file of masks, which ranks nothing.
func givenMetric() Metric {
	return Metric{Name: givenName, given: true, Score: func(Inputs) (kernels.Score, error) {
		return kernels.Score{}, errors.New("a file of masks has no scores")
	}}
}

// givenFaults says what does not go with masks from a file, which settle every weight that goes.
func (o Options) givenFaults() (faults []error) {
	if o.MasksFrom == "" {
		if o.Metric.given {
			faults = append(faults, fmt.Errorf("%w: metric %s without a file of masks", ErrOptions, givenName))
		}
		return faults
	}

	// Everything that would choose weights again, or measure what no choice depends on.
	for _, c := range []struct {
		there bool
		what  string
	}{
		{o.Metric.Name != "" && !o.Metric.given, "a metric"},
		{o.Sparsity != 0, "a sparsity"},
		{o.Pattern.Structured(), "a pattern"},
		{o.Group != "", "a group"},
		{o.Allocation.Name != "" && o.Allocation.Name != Uniform, "an allocation"},
		{o.Permutation != "" && o.Permutation != Identity, "a permutation"},
		{o.Gradients != GradientOptions{}, "gradients"},
		{len(o.Overrides) > 0, "overrides"},
		{o.Update.Name == DSnoT, "update " + DSnoT + ", which exchanges weights of the mask"},
		{o.Update.Name == ADMM && o.Update.MaskSteps > 0, "update " + ADMM + " that chooses the mask anew"},
	} {
		if c.there {
			faults = append(faults,
				fmt.Errorf("%w: masks from a file with %s; they say which weights go", ErrOptions, c.what))
		}
	}

	return faults
}

// givenMasks is a file of keep masks as [Masks] writes them: one for every matrix, in the layout of its weights.
type givenMasks struct {
	file  *safetensors.Dir
	drops map[string]int // how many weights go, by tensor name, as far as anybody asked
}

// openGiven opens a file of masks and compares its tensors with the matrices of a model.
func openGiven(path string, m *lm.Model) (*givenMasks, error) {
	file, err := safetensors.OpenDir(path)
	if err != nil {
		return nil, fmt.Errorf("masks: %w", err)
	}

	g := &givenMasks{file: file, drops: map[string]int{}}
	if err := g.fit(m); err != nil {
		g.close()
		return nil, err
	}

	return g, nil
}

// fit finds tensors that are missing, of another shape or type, or of no matrix.
func (g *givenMasks) fit(m *lm.Model) error {
	known := map[string]bool{}
	var missing []string
	for b := range m.Blocks() {
		for _, l := range m.Linears(b) {
			known[l.Name] = true
			info, ok := g.file.Info(l.Name)
			if !ok {
				missing = append(missing, l.Name)
				continue
			}

			rows, cols := storedShape(l)
			if len(info.Shape) != 2 || info.Shape[0] != int64(rows) || info.Shape[1] != int64(cols) {
				return fmt.Errorf("%s: tensor %q: %w: shape %v; want [%d %d], that of the weight",
					g.file.Path(), l.Name, ErrMasks, info.Shape, rows, cols)
			}
			if info.DType != safetensors.U8 {
				return fmt.Errorf("%s: tensor %q: %w: type %s; want U8, 1 = kept", g.file.Path(), l.Name, ErrMasks,
					info.DType)
			}
		}
	}

	// Counted rather than refused at the first: masks of another model lack nearly all, and that says what is
	// wrong.
	if len(missing) > 0 {
		return fmt.Errorf("%s: %w: there are none for %d of %d matrices of the model; the first is %q",
			g.file.Path(), ErrMasks, len(missing), len(known), missing[0])
	}

	// A mask that nobody applies would leave a matrix dense without a word.
	var extra []string
	for _, name := range g.file.Names() {
		if !known[name] {
			extra = append(extra, name)
		}
	}

	if len(extra) > 0 {
		return fmt.Errorf("%s: %w: %d tensors are masks of no matrix of the model; the first is %.200q",
			g.file.Path(), ErrMasks, len(extra), extra[0])
	}

	return nil
}

// view shows f a mask in stored layout, once all its elements are 0 or 1.
func (g *givenMasks) view(l lm.Linear, f func(mask []byte) error) error {
	raw, err := g.file.Bytes(l.Name)
	if err != nil {
		return err
	}
	defer func() { _ = g.file.Release(l.Name) }()

	zeros := bytes.Count(raw, []byte{0})
	if zeros+bytes.Count(raw, []byte{1}) < len(raw) {
		at := slices.IndexFunc(raw, func(v byte) bool { return v > 1 })
		_, cols := storedShape(l)
		return fmt.Errorf("%s: tensor %q: %w: element [%d, %d] is %d; want 0 or 1 (kept)",
			g.file.Path(), l.Name, ErrMasks, at/cols, at%cols, raw[at])
	}

	g.drops[l.Name] = zeros
	return f(raw)
}

// dropped is how many weights of a matrix go.
func (g *givenMasks) dropped(l lm.Linear) (int, error) {
	if n, ok := g.drops[l.Name]; ok {
		return n, nil
	}
	err := g.view(l, func([]byte) error { return nil })
	return g.drops[l.Name], err
}

// takeGiven writes the keep mask [out, in] of a matrix.
func (w *walk) takeGiven(l lm.Linear, c *change) error {
	return w.given.view(l, func(mask []byte) error {
		if l.Transposed {
			mask = hostmat.TransposedBytes(mask, l.In, l.Out, 1)
		}
		return w.dev.Upload(c.keep.Buf, c.keep.Off, mask)
	})
}

// readTargets reads what masks take from the matrices of a block, which is what is asked for.
func (w *walk) readTargets(l int, linears []lm.Linear) error {
	if w.given == nil {
		return nil
	}

	drops, weights := 0, 0
	for _, lin := range linears {
		n, err := w.given.dropped(lin)
		if err != nil {
			return err
		}
		w.targets[lin.Name] = float64(n) / float64(lin.In*lin.Out)
		drops, weights = drops+n, weights+lin.In*lin.Out
	}

	w.report.Blocks[l].Target = float64(drops) / float64(max(1, weights))
	return nil
}

// close closes the file; a nil receiver has none.
func (g *givenMasks) close() {
	if g != nil {
		_ = g.file.Close()
	}
}
