package lora

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/peft"
	"github.com/modelcompress/compress/safetensors"
)

// ExtractOptions of [Extract].
type ExtractOptions struct {
	// of every matrix; at most what the largest can have, and one that is smaller is padded with zeros
	Rank      int
	Targets   []string          // names of matrices; nil: all linears of the blocks
	DType     safetensors.DType // of the factors; 0: F32
	Whole     bool              // other tensors that differ are kept whole, as modules_to_save
	Exact     bool              // whole decompositions instead of sketches
	Seed      uint64            // of the sketches
	Threads   int               // CPU threads; 0: one for each processor
	Overwrite bool              // replace an adapter that is there
	// Progress gets how many matrices are done, of how many; nil: nobody wants to know.
	Progress func(name string, done, total int64)
}

// ExtractReport says what [Extract] kept.
type ExtractReport struct {
	Base  string   `json:"base"`
	Tuned string   `json:"tuned"`
	Out   string   `json:"out"`
	Notes []string `json:"notes,omitempty"` // what others may not read

	Rank     int               `json:"rank"`   // of the adapter
	Energy   float64           `json:"energy"` // fraction of the squares of all the matrices' differences in the factors
	Matrices []ExtractedMatrix `json:"matrices"`
	LeftOut  []LeftOut         `json:"left_out"` // other tensors that differ; the adapter does not hold them
	Kept     []LeftOut         `json:"whole"`    // other tensors that differ; the adapter holds them as they are
}

// ExtractedMatrix says what was kept of one matrix.
type ExtractedMatrix struct {
	Path     string  `json:"path"`
	Norm     float64 `json:"norm"`     // Frobenius norm of the difference
	Relative float64 `json:"relative"` // by the norm of the base's matrix
	Energy   float64 `json:"energy"`   // fraction of the squares of its singular values; 1 where nothing differs
}

// LeftOut is a tensor that differs and that no factor has.
type LeftOut struct {
	Tensor   string  `json:"tensor"`
	Norm     float64 `json:"norm"`     // Frobenius norm of the difference
	Relative float64 `json:"relative"` // by the norm of the base's tensor
}

// Extract writes the LoRA that leads from one checkpoint to another of the same shape, as PEFT's folders are, to the
// folder out: B = U·√S and A = √S·Vᵀ of each matrix' difference U·S·Vᵀ, cut to a rank, with scale 1. One matrix is in
// memory at a time. The errors wrap ErrExtract, ErrBase where the checkpoints differ in shape, ErrTarget, ErrFile for
// values that are not finite, or those of package safetensors.
func Extract(ctx context.Context, base, tuned, out string, o ExtractOptions) (*ExtractReport, error) {
	b, err := adapter.OpenCheckpoint(ctx, base)
	if err != nil {
		return nil, err
	}
	defer b.Close()

	t, err := adapter.OpenCheckpoint(ctx, tuned)
	if err != nil {
		return nil, err
	}
	defer t.Close()

	x := &extractor{ExtractOptions: o, base: b, tuned: t, report: &ExtractReport{
		Base: base, Tuned: tuned, Out: out, Rank: o.Rank,
		Matrices: []ExtractedMatrix{}, LeftOut: []LeftOut{}, Kept: []LeftOut{},
	}}
	if err := x.run(ctx); err != nil {
		return nil, err
	}

	r := x.report
	// PEFT's silence about what it passes over makes an extracted adapter look complete.
	r.Notes = lostOn(b.Config.Arch, x.targets).note(nil)
	if r.Rank < o.Rank {
		r.Notes = append(r.Notes,
			fmt.Sprintf("no matrix has a rank of %d: the adapter has %d, the most that one can have", o.Rank, r.Rank))
	}

	return r, nil
}

// extractor makes one extraction.
type extractor struct {
	ExtractOptions
	base, tuned *adapter.Checkpoint
	report      *ExtractReport
	targets     []adapter.Module
	kept, all   float64   // squares of the singular values, of all matrices
	space       []float64 // of a difference
	head        string    // the tuned model's own head where the base's is its token table; "": none
}

// run writes the adapter and fills the report.
func (x *extractor) run(ctx context.Context) error {
	if x.Rank < 1 {
		return fmt.Errorf("%w: a rank of %d", ErrExtract, x.Rank)
	}
	if err := x.compare(); err != nil {
		return err
	}

	a, err := x.plan()
	if err != nil {
		return err
	}

	if err := x.rest(ctx); err != nil {
		return err
	}

	if x.Whole {
		if err := x.keepWhole(a); err != nil {
			return err
		}
	}

	err = peft.Write(x.report.Out, a,
		peft.WriteOptions{
			DType: x.DType, Overwrite: x.Overwrite,
			Pair: func(l *adapter.Low) (kernels.Mat, kernels.Mat, error) {
				if err := ctx.Err(); err != nil {
					return kernels.Mat{}, kernels.Mat{}, err
				}
				return x.pair(l)
			},
		})
	if err != nil {
		return err
	}

	// Matrices were noted as their pairs were written; the report has them in the order of the targets.
	order := map[string]int{}
	for i, m := range x.targets {
		order[m.Path] = i
	}

	slices.SortFunc(x.report.Matrices, func(p, q ExtractedMatrix) int { return order[p.Path] - order[q.Path] })
	x.report.Energy = ratio(x.kept, x.all)
	return nil
}

// compare finds the first tensor in which the two differ in shape.
func (x *extractor) compare() error {
	for _, name := range x.base.Tensors.Names() {
		p, _ := x.base.Tensors.Info(name)
		q, ok := x.tuned.Tensors.Info(name)
		switch {
		case !ok:
			return fmt.Errorf("%s: %w than %s: it has no tensor %.200q", x.tuned.Dir, adapter.ErrBase, x.base.Dir, name)
		case !slices.Equal(p.Shape, q.Shape):
			return fmt.Errorf("%s: tensor %.200q: %w than %s: shape %v, not %v", x.tuned.Dir, name, adapter.ErrBase,
				x.base.Dir, q.Shape, p.Shape)
		}
	}

	x.head = x.ownHead()
	for _, name := range x.tuned.Tensors.Names() {
		if _, ok := x.base.Tensors.Info(name); !ok && name != x.head {
			return fmt.Errorf("%s: %w than %s: tensor %.200q is only here", x.tuned.Dir, adapter.ErrBase, x.base.Dir,
				name)
		}
	}

	return nil
}

// plan lists the modules of the adapter.
func (x *extractor) plan() (*adapter.Adapter, error) {
	c := adapter.Config{
		Kind: adapter.LoRA, Base: baseName(x.report.Base), Rank: x.Rank, Alpha: float64(x.Rank), Biases: adapter.NoBias,
		Targets: adapter.Match{Names: x.Targets},
	}
	if c.Targets.IsZero() {
		c.Targets.All = true
	}

	var err error
	if x.targets, err = c.Chosen(x.base.Modules); err != nil {
		return nil, err
	}

	x.addHead(&c)
	x.bound(&c)
	a := &adapter.Adapter{Config: c}
	for _, m := range x.targets {
		a.Low = append(a.Low, &adapter.Low{Module: m, Rank: x.Rank, Alpha: c.Alpha, Scale: 1})
	}

	return a, nil
}

// bound lowers a rank that is more than any target can have.
func (x *extractor) bound(c *adapter.Config) {
	most := 1
	for _, m := range x.targets {
		most = max(most, min(m.In, m.Out))
	}

	if x.Rank > most {
		x.Rank = most
		x.report.Rank = most
		c.Rank = most
		c.Alpha = float64(most)
	}
}

// addHead adds the head of a model where it is the token table and the table is a target: an adapter of the
// table alone would leave the head as it was.
func (x *extractor) addHead(c *adapter.Config) {
	table := slices.ContainsFunc(x.targets, func(m adapter.Module) bool { return m.Table })
	i := slices.IndexFunc(x.base.Modules, func(m adapter.Module) bool { return m.Tied })
	if !table || i < 0 || slices.ContainsFunc(x.targets, func(m adapter.Module) bool { return m.Tied }) {
		return
	}
	x.targets = append(x.targets, x.base.Modules[i])
	c.Targets.Names = append(slices.Clone(c.Targets.Names), x.base.Modules[i].Path)
}

// pair decomposes the difference of one matrix.
func (x *extractor) pair(l *adapter.Low) (a, b kernels.Mat, err error) {
	d, norm, err := x.difference(l.Module)
	if err != nil {
		return a, b, err
	}

	turned := l.Module.Transposed || l.Module.Table // d is [in, out]
	rank := min(x.Rank, d.Rows, d.Cols)
	u, s, v, err := x.svd(d, rank)
	if err != nil {
		return a, b, fmt.Errorf("matrix %s: %w", l.Module.Tensor, err)
	}

	if turned {
		u, v = v, u
	}

	pa, pb := adapter.NewParam("", x.Rank, l.Module.In), adapter.NewParam("", l.Module.Out, x.Rank)
	kept := 0.0
	for k := range rank {
		kept += s[k] * s[k]
		root := math.Sqrt(s[k])
		for i := range l.Module.In {
			pa.Value.RowF32(k)[i] = float32(root * v.At(i, k))
		}
		for i := range l.Module.Out {
			pb.Value.RowF32(i)[k] = float32(root * u.At(i, k))
		}
	}

	all := d.Norm() * d.Norm()
	x.kept, x.all = x.kept+min(kept, all), x.all+all
	x.report.Matrices = append(x.report.Matrices,
		ExtractedMatrix{l.Module.Path, math.Sqrt(all), quotient(math.Sqrt(all), norm), ratio(min(kept, all), all)})
	if x.Progress != nil {
		x.Progress("extract", int64(len(x.report.Matrices)), int64(len(x.targets)))
	}

	return pa.Value, pb.Value, nil
}

// svd decomposes by a sketch, or wholly where that is asked for.
func (x *extractor) svd(d linalg.Matrix, rank int) (u linalg.Matrix, s []float64, v linalg.Matrix, err error) {
	solver := linalg.Solver{Threads: x.Threads}
	if x.Exact {
		return solver.SVD(d)
	}
	return solver.TruncatedSVD(d, rank, linalg.Sketch{Seed: x.Seed})
}

// difference is tuned minus base of one matrix as it is stored, and the norm of the base's.
func (x *extractor) difference(m adapter.Module) (d linalg.Matrix, norm float64, err error) {
	info, _ := x.base.Tensors.Info(m.Tensor)
	if n := info.Elements(); int64(len(x.space)) < n {
		x.space = nil // the smaller one can go before the larger one comes
		x.space = make([]float64, n)
	}

	d = linalg.Of(x.space, int(info.Shape[0]), int(info.Shape[1]))
	at := 0
	norm, _, err = x.each(m.Tensor, x.after(m), func(before, after []float32) {
		for i, v := range after {
			d.Data[at+i] = float64(v) - float64(before[i])
		}
		at += len(after)
	})

	return d, norm, err
}

// pieceLen is how many elements are read at a time.
const pieceLen = 1 << 18

// each reads a tensor of the base, and what the tuned model has for it, piece by piece, and gives the norms of
// the base's values and of the difference.
func (x *extractor) each(name, tuned string, fn func(before, after []float32)) (norm, difference float64, err error) {
	p, _ := x.base.Tensors.Info(name)
	n := p.Elements()
	buf := make([]float32, 2*min(n, pieceLen))
	for lo := int64(0); lo < n; lo += pieceLen {
		k := min(pieceLen, n-lo)
		before, after := buf[:k], buf[k:2*k]
		if err := read(x.base, name, lo, before); err != nil {
			return 0, 0, err
		}
		if err := read(x.tuned, tuned, lo, after); err != nil {
			return 0, 0, err
		}

		for i, v := range after {
			// In float64: a difference of neighbouring checkpoints is in the last bits of its terms, and billions
			// are added.
			e := float64(v) - float64(before[i])
			norm += float64(before[i]) * float64(before[i])
			difference += e * e
		}

		fn(before, after)
	}

	return math.Sqrt(norm), math.Sqrt(difference), nil
}

// read reads elements of a tensor and refuses what is not finite.
func read(c *adapter.Checkpoint, name string, at int64, dst []float32) error {
	info, _ := c.Tensors.Info(name)
	if !dtype.IsFloat(info.DType) {
		return fmt.Errorf("%s: tensor %.200q: %w: %w: %s", c.Dir, name, adapter.ErrFile, dtype.ErrDType, info.DType)
	}

	size := dtype.Size(info.DType)
	raw := make([]byte, len(dst)*size)
	if _, err := c.Tensors.ReadAt(name, raw, at*int64(size)); err != nil {
		return err
	}
	if err := dtype.Decode(dst, raw, info.DType); err != nil {
		return err
	}
	if i := dtype.NonFinite(dst); i >= 0 {
		return fmt.Errorf("%s: tensor %.200q: %w: element %d is %v", c.Dir, name, adapter.ErrFile, at+int64(i), dst[i])
	}

	return nil
}

// rest finds the other tensors that differ.
func (x *extractor) rest(ctx context.Context) error {
	for _, p := range x.base.Layout.Params {
		if slices.ContainsFunc(x.targets, func(m adapter.Module) bool { return !m.Tied && m.Tensor == p.Name }) {
			continue
		}
		if err := x.leave(ctx, p.Name, p.Name); err != nil {
			return err
		}
	}

	if x.head == "" || x.adapted(x.tied().Path) {
		return nil
	}

	return x.leave(ctx, x.tied().Tensor, x.head)
}

// leave notes a tensor that no factors change, if it differs from what it was.
func (x *extractor) leave(ctx context.Context, before, after string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	norm, difference, err := x.each(before, after, func(_, _ []float32) {})
	if err == nil && difference > 0 {
		x.report.LeftOut = append(x.report.LeftOut, LeftOut{after, difference, quotient(difference, norm)})
	}
	return err
}

// ratio is a/b, and 1 where there is nothing of which a could be a part.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 1
	}
	return a / b
}

// quotient is a/b, 0 for a zero b.
func quotient(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
