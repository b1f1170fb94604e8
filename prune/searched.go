package prune

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/internal/levels"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
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

	Sparsities []float64 `json:"sparsities"` // of the blocks
}

// recall takes what a search has found from the record of a finished output, of which this run has nothing to make.
func (s *Searched) recall(blocks int) ([]float64, error) {
	for _, v := range s.Sparsities {
		if !(v >= 0 && v < 1) {
			return nil, fmt.Errorf("%w: %s: a sparsity of %g was searched for", ErrDamaged, ManifestFile, v)
		}
	}
	if len(s.Sparsities) != blocks {
		return nil, fmt.Errorf("%w: %s: sparsities of %d blocks were searched for, the model has %d", ErrDamaged,
			ManifestFile, len(s.Sparsities), blocks)
	}
	return s.Sparsities, nil
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

// SearchDisk is how many bytes an allocation by search takes in a folder of its own in [os.TempDir] while it runs; 0
// without one. All else that it holds is a block and what flows between blocks.
func (o Options) SearchDisk(m *lm.Model) (bytes int64) {
	if o.Allocation.Name != Search || o.Sparsity == 0 {
		return 0
	}
	for l := range m.Blocks() {
		for _, lin := range m.Linears(l) {
			bytes += int64(lin.In) * int64(lin.Out)
		}
	}
	return bytes
}

// allocateSearch looks for the sparsities of blocks whose masks change predictions least (EvoPress, arXiv:2410.14649).
func (w *walk) allocateSearch(ctx context.Context) error {
	if found := w.record.searched; found != nil {
		targets, err := found.recall(w.m.Blocks())
		if err != nil {
			return err
		}
		w.report.Searched = found
		return w.setTargets(targets, nil)
	}

	s := &allocationSearch{walk: w}
	for k := -searchSides; k <= searchSides; k++ {
		v := w.o.Sparsity + searchStep*float64(k)
		if k == 0 || v >= 0 && v <= searchMost {
			s.sparsities = append(s.sparsities, v)
		}
	}

	choice, err := s.run(ctx)
	if err != nil {
		return err
	}

	targets := make([]float64, len(choice))
	for l, k := range choice {
		targets[l] = s.sparsities[k]
	}
	w.report.Searched.Sparsities = targets
	return w.setTargets(targets, nil)
}

// allocationSearch has every matrix pruned at every level. Masks grow with the sparsity, so that a byte for each
// weight says all: the first level at which it goes.
type allocationSearch struct {
	*walk
	sparsities []float64 // of the levels, ascending
	gone       *levelFile
	candidate  *lm.Model
	baselines  []*lm.Baseline
	raw        []byte // of a matrix
}

// run makes the levels of all weights, in a scratch file, and searches.
func (s *allocationSearch) run(ctx context.Context) (choice []int, err error) {
	var linears []lm.Linear
	for l := range s.m.Blocks() {
		linears = append(linears, s.m.Linears(l)...)
	}
	if s.gone, err = newLevelFile(linears); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.gone.close()) }()

	if err := s.dense(ctx, s.o.Metric.Needs|SumSquares, s.rank); err != nil {
		return nil, err
	}
	if err := s.gone.finish(); err != nil {
		return nil, err
	}
	return s.search(ctx)
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

		first, err := s.first(in)
		release()
		if err != nil {
			return s.fail(l.Name, err)
		}
		if l.Transposed {
			first = hostmat.TransposedBytes(first, l.Out, l.In, 1)
		}
		if err := s.gone.write(l.Name, first); err != nil {
			return err
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

// judge measures the divergence of allocations at a stage: those that an interrupted run has not measured all in one
// pass through the blocks.
func (s *allocationSearch) judge(ctx context.Context, stage int, choices [][]int) ([]float64, error) {
	figures := make([]float64, len(choices))
	v := lm.Variants{Put: s.put, Back: s.back}
	var open []int
	for i, choice := range choices {
		if s.o.Known != nil {
			if known, ok := s.o.Known(searchKey(stage, choice)); ok {
				figures[i] = known
				continue
			}
		}
		open = append(open, i)
		v.Forms = append(v.Forms, choice)
	}

	found, err := s.baselines[stage].CompareVariants(ctx, s.candidate, v)
	if err != nil {
		return nil, err
	}
	for k, i := range open {
		figures[i] = found[k].KL
		if s.o.Note != nil {
			if err := s.o.Note(searchKey(stage, choices[i]), figures[i]); err != nil {
				return nil, err
			}
		}
	}
	return figures, nil
}

// searchKey names a measurement.
func searchKey(stage int, choice []int) string {
	return fmt.Sprint(stage, ":", strings.Trim(fmt.Sprint(choice), "[]"))
}

// put gives a block of the candidate the weights of a level: those that it has in the files, or of a lower level, less
// what goes until this one.
func (s *allocationSearch) put(ctx context.Context, block, level int) error {
	for _, lin := range s.candidate.Linears(block) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.zero(lin, level); err != nil {
			return s.fail(lin.Name, err)
		}
	}
	return nil
}

// back gives a block of the candidate the weights of the files.
func (s *allocationSearch) back(block int) error {
	for _, lin := range s.candidate.Linears(block) {
		if err := s.candidate.Restore(lin.Name); err != nil {
			return err
		}
	}
	return nil
}

// zero removes from a matrix of the candidate what goes until a level.
func (s *allocationSearch) zero(l lm.Linear, level int) error {
	own, err := s.candidate.MutableParam(l.Name)
	if err != nil {
		return err
	}

	s.raw = slices.Grow(s.raw[:0], own.Len())[:own.Len()]
	if err := s.gone.read(l.Name, s.raw); err != nil {
		return err
	}
	for i, k := range s.raw {
		s.raw[i] = 0
		if int(k) > level {
			s.raw[i] = 1
		}
	}

	mask, err := s.keepFor(own)
	if err != nil {
		return err
	}
	if err := s.dev.Upload(mask.Buf, mask.Off, s.raw); err != nil {
		return err
	}
	s.ops.ApplyMask(own, kernels.MatOf(mask.Buf, own.Rows, own.Cols))
	return s.ops.Sync() // the mask is the next matrix' as well
}

// levelFile has a byte for each weight of a model, in the layout of the weights, in a folder that goes with the run.
type levelFile struct {
	path    string
	release func() error
	out     *safetensors.Writer
	in      *safetensors.File
}

// newLevelFile reserves the space, so that a disk that is too small is noticed before anything is measured.
func newLevelFile(linears []lm.Linear) (*levelFile, error) {
	dir, release, err := scratch.Folder("compress-levels-")
	if err != nil {
		return nil, err
	}

	var tensors []safetensors.Info
	for _, l := range linears {
		rows, cols := storedShape(l)
		tensors = append(tensors,
			safetensors.Info{Name: l.Name, DType: safetensors.U8, Shape: []int64{int64(rows), int64(cols)}})
	}

	f := &levelFile{path: filepath.Join(dir, "levels.safetensors"), release: release}
	if f.out, err = safetensors.Create(f.path, tensors, nil, safetensors.Options{}); err != nil {
		err = fmt.Errorf("levels of all weights: %w", err)
		if errors.Is(err, safetensors.ErrNoSpace) {
			err = failure.Hinted(err, "name a folder with room in TMPDIR")
		}
		return nil, errors.Join(err, release())
	}
	return f, nil
}

func (f *levelFile) write(name string, first []byte) error { return f.out.WriteTensor(name, first) }

// finish ends writing and begins reading.
func (f *levelFile) finish() (err error) {
	if err := f.out.Finish(); err != nil {
		return err
	}
	f.in, err = safetensors.Open(f.path)
	return err
}

func (f *levelFile) read(name string, to []byte) error {
	_, err := f.in.ReadAt(name, to, 0)
	return err
}

// close removes the file.
func (f *levelFile) close() error {
	err := f.out.Abort() // of a file that is not finished
	if f.in != nil {
		err = errors.Join(err, f.in.Close())
	}
	return errors.Join(err, f.release())
}
