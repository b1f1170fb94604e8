package prune

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
)

// The sparsities that a search tries for a block: so far apart, so many to either side of the mean, and none above.
const (
	searchStep  = 0.05
	searchSides = 4
	searchMost  = 0.95
)

// Searched is what a search for an allocation came to: the divergence from the dense model on the calibration data, in
// nats a token, of the matrices as the metric's masks leave them, without swaps and update.
type Searched struct {
	Start       float64 `json:"start_kl"` // every block alike
	Best        float64 `json:"kl"`
	Generations int     `json:"generations"`
	Better      int     `json:"better"` // generations that found something better
}

// searchFaults says what a search does not go with.
func (o Options) searchFaults() (faults []error) {
	a := o.Allocation
	fault := func(format string, args ...any) { faults = append(faults, optionsFault("allocation "+format, args...)) }
	if a.Name != Search {
		if a.Generations != 0 || a.Offspring != 0 {
			fault("%s: generations and offspring belong to %s", a.Name, Search)
		}
		return faults
	}

	if a.Generations < 0 || a.Offspring < 0 {
		fault("%s: %d generations of %d", Search, a.Generations, a.Offspring)
	}
	for _, c := range []struct {
		there bool
		what  string
	}{
		{o.Metric.sweeps || o.Metric.splits, "metric " + o.Metric.Name + ", whose weights are not those of the model"},
		{o.Pattern.Structured(), "pattern " + o.Pattern.String() + ", which fixes what every matrix loses"},
		{o.Group == Share, "group " + string(Share) + ", whose masks do not grow with the sparsity"},
		{len(o.Overrides) > 0, "overrides"},
		{o.Norms != nil, "measurements from elsewhere, since candidates are judged on calibration data"},
	} {
		if c.there {
			fault("%s with %s", Search, c.what)
		}
	}
	return faults
}

// allocateSearch looks for the sparsities of blocks whose masks change predictions least (EvoPress, arXiv:2410.14649).
func (w *walk) allocateSearch(ctx context.Context) error {
	s := &allocationSearch{walk: w, gone: map[string][]uint8{}}
	for k := -searchSides; k <= searchSides; k++ {
		v := w.o.Sparsity + searchStep*float64(k)
		if k == 0 || v >= 0 && v <= searchMost {
			s.sparsities = append(s.sparsities, v)
		}
	}

	if err := w.dense(ctx, w.o.Metric.Needs|SumSquares, s.rank); err != nil {
		return err
	}
	choice, err := s.search(ctx)
	if err != nil {
		return err
	}

	targets := make([]float64, len(choice))
	for l, k := range choice {
		targets[l] = s.sparsities[k]
	}
	return w.setTargets(targets, nil)
}

// allocationSearch has every matrix pruned at every level. Masks grow with the sparsity, so that a byte for each
// weight says all: the first level at which it goes.
type allocationSearch struct {
	*walk
	sparsities []float64          // of the levels, ascending
	gone       map[string][]uint8 // by the matrix' name, as [out, in]
	candidate  *lm.Model
	now        []int // the level that each block of the candidate has in memory; -1: as in the files
	baselines  []*lm.Baseline
}

// rank prunes the matrices of a dense block at every level.
func (s *allocationSearch) rank(_ int, linears []lm.Linear, stats *actstats.Stats) error {
	for _, l := range linears {
		stored, err := s.m.Param(l.Name)
		if err != nil {
			return err
		}
		in, release, err := s.inputs(l, stored, stats)
		if err != nil {
			return err
		}

		s.gone[l.Name], err = s.first(in)
		release()
		if err != nil {
			return s.fail(l.Name, err)
		}
	}
	return nil
}

// first is the first level at which each weight of a matrix goes; the number of levels: at none.
func (s *allocationSearch) first(in Inputs) ([]uint8, error) {
	first := slices.Repeat([]uint8{uint8(len(s.sparsities))}, in.W.Len())
	c := &change{in: in}
	for k := len(s.sparsities) - 1; k >= 0; k-- {
		c.plan = selection{group: s.o.Group, sparsity: s.sparsities[k]}
		var err error
		if c.keep, err = s.keepFor(in.W); err != nil {
			return nil, err
		}
		if err := s.choose(c); err != nil {
			return nil, err
		}

		keep, err := hostmat.Bytes(s.dev, c.keep)
		if err != nil {
			return nil, err
		}
		for i, v := range keep[:len(first)] {
			if v == 0 {
				first[i] = uint8(k)
			}
		}
	}
	return first, nil
}

// search measures allocations: offspring on an eighth of the calibration sequences, the best quarter of them on all.
func (s *allocationSearch) search(ctx context.Context) (choice []int, err error) {
	s.candidate, err = lm.Load(ctx, s.m.Path(), s.dev, lm.Options{
		Stream: true, Decode: true, Precision: s.m.Precision(),
	})
	if err != nil {
		return nil, err
	}
	defer s.candidate.Close()

	little := s.calib
	little.IDs = s.calib.IDs[:max(1, len(s.calib.IDs)/8)]
	for _, windows := range []corpus.Windows{little, s.calib} {
		b, err := s.m.NewBaseline(ctx, windows, nil)
		if err != nil {
			return nil, err
		}
		defer b.Free()
		s.baselines = append(s.baselines, b)
	}

	blocks := s.m.Blocks()
	s.now = slices.Repeat([]int{-1}, blocks)
	start := slices.Repeat([]int{slices.Index(s.sparsities, s.o.Sparsity)}, blocks)
	problem := s.problem()
	problem.Budget = problem.Size(start)

	a, found := s.o.Allocation, &Searched{}
	s.report.Searched = found
	search := levels.Search{
		Problem: problem, Start: start, Generations: a.Generations, Offspring: a.Offspring,
		Survivors: []int{max(1, a.Offspring/4)}, Seed: a.Seed, Judge: s.judge,
		Note: func(g levels.Generation) {
			if g.Number == 0 {
				found.Start = g.Score
			}
			if g.Better {
				found.Better++
			}
			found.Best, found.Generations = g.Score, g.Number
			s.step(Step{Stage: Allocate, Block: blocks - 1, Done: g.Number, Of: a.Generations})
		},
	}
	choice, _, err = search.Run(ctx)
	return choice, err
}

// problem has what each block keeps at each level, in steps: masks are rounded to whole weights of a row, by which what
// one block gains another would not quite pay for.
func (s *allocationSearch) problem() (p levels.Problem) {
	for l := range s.m.Blocks() {
		weights := int64(0)
		for _, lin := range s.m.Linears(l) {
			weights += int64(lin.In) * int64(lin.Out)
		}

		kept := make([]levels.Level, len(s.sparsities))
		for k := range kept {
			kept[k].Size = weights * int64(len(kept)-k)
		}
		p.Parts = append(p.Parts, kept)
	}
	return p
}

// judge measures the divergence of allocations at a stage.
func (s *allocationSearch) judge(ctx context.Context, stage int, choices [][]int) ([]float64, error) {
	figures := make([]float64, len(choices))
	for i, choice := range choices {
		key := fmt.Sprint(stage, ":", strings.Trim(fmt.Sprint(choice), "[]"))
		if s.o.Known != nil {
			if v, ok := s.o.Known(key); ok {
				figures[i] = v
				continue
			}
		}

		if err := s.apply(ctx, choice); err != nil {
			return nil, err
		}
		d, err := s.baselines[stage].Compare(ctx, s.candidate, nil)
		if err != nil {
			return nil, err
		}
		figures[i] = d.KL
		if s.o.Note != nil {
			if err := s.o.Note(key, figures[i]); err != nil {
				return nil, err
			}
		}
	}
	return figures, nil
}

// apply gives the blocks of the candidate the weights of an allocation.
func (s *allocationSearch) apply(ctx context.Context, choice []int) error {
	for l, level := range choice {
		if s.now[l] == level {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}

		s.now[l] = level
		for _, lin := range s.candidate.Linears(l) {
			if err := s.zero(lin, level); err != nil {
				return s.fail(lin.Name, err)
			}
		}
	}
	return s.ops.Sync()
}

// zero gives a matrix of the candidate the weights that it has at a level.
func (s *allocationSearch) zero(l lm.Linear, level int) error {
	// The values of the files: what it lost at another level comes back.
	if err := s.candidate.Restore(l.Name); err != nil {
		return err
	}
	own, err := s.candidate.MutableParam(l.Name)
	if err != nil {
		return err
	}

	first := s.gone[l.Name]
	raw := make([]byte, len(first))
	rows, cols := l.Out, l.In
	for i, k := range first {
		if int(k) > level {
			raw[i] = 1
		}
	}
	if l.Transposed {
		raw = hostmat.TransposedBytes(raw, rows, cols, 1)
		rows, cols = cols, rows
	}

	mask, err := s.keepFor(own)
	if err != nil {
		return err
	}
	if err := s.dev.Upload(mask.Buf, mask.Off, raw); err != nil {
		return err
	}
	s.ops.ApplyMask(own, kernels.MatOf(mask.Buf, rows, cols))
	return s.ops.Sync()
}
