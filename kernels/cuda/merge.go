//go:build linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"math"

	"github.com/modelcompress/compress/kernels"
)

// Names of package kernels that this package's operations take.
type (
	Source     = kernels.Source
	Arithmetic = kernels.Arithmetic
	Conflicts  = kernels.Conflicts
	AdamStep   = kernels.AdamStep
)

// ErrMerge is the error of models that cannot be merged on the device.
var ErrMerge = kernels.ErrMerge

// MaxModels is the most models of one merge.
const MaxModels = kernels.MaxModels

var (
	_ kernels.Merger  = (*Device)(nil)
	_ kernels.Stepper = (*Device)(nil)
)

// mergeArgs mirrors MergeArgs of merge.cu.
type mergeArgs struct {
	d, base                              mat
	m                                    [MaxModels]mat
	cuts, counts, part                   uintptr
	weight                               [MaxModels]float32
	share, keyA, keyB                    [MaxModels]uint32
	lambda                               float32
	count, consensus, normalise, outType int32
	whole                                int32
}

// cutArgs mirrors CutArgs of merge.cu.
type cutArgs struct {
	base, m        mat
	cut, histogram uintptr
	keep           int
	pass, whole    int32
}

// cutSize is the memory of one CutState, cutChunks how many pieces the elements equal to a cut are counted in,
// of cutLeast or more.
const (
	cutSize   = 24
	cutChunks = 2048
	cutLeast  = 256
)

// sources checks models against the base.
func sources(base kernels.Mat, list []Source) error {
	if len(list) == 0 || len(list) > MaxModels {
		return fmt.Errorf("%w: %d models; want 1 to %d", ErrMerge, len(list), MaxModels)
	}
	if t := base.DType(); t != kernels.F32 && t != kernels.BF16 && t != kernels.F16 {
		return fmt.Errorf("%w: a base of %s", ErrMerge, t)
	}
	if base.Len() > math.MaxUint32 {
		return fmt.Errorf("%w: more than 2³² elements", ErrMerge)
	}

	for i, s := range list {
		if !same(base, s.M) || s.M.DType() != base.DType() {
			return fmt.Errorf("%w: model %d is %s [%d, %d], the base %s [%d, %d]", ErrMerge, i, s.M.DType(), s.M.Rows,
				s.M.Cols, base.DType(), base.Rows, base.Cols)
		}
		if s.Keep < 0 || s.Keep > base.Len() {
			return fmt.Errorf("%w: model %d keeps %d of %d elements", ErrMerge, i, s.Keep, base.Len())
		}
	}

	return nil
}

// merging runs f with the arguments that merges and counts of conflicts have in common: the cuts of all models
// are found before.
func (d *Device) merging(op string, out, base kernels.Mat, list []Source, f func(args *mergeArgs, t string)) {
	operands := []kernels.Mat{out, base}
	for _, s := range list {
		operands = append(operands, s.M)
	}

	d.operation(op, func() {
		t := typeName(base.DType())
		args := mergeArgs{base: d.of(base).mat(), count: int32(len(list))}
		for i, s := range list {
			args.m[i] = d.of(s.M).mat()
			args.weight[i] = s.Weight
			args.share[i] = s.Share
			args.keyA[i] = s.A
			args.keyB[i] = s.B
		}

		cuts := d.cuts(base, list, t)
		args.cuts = cuts
		f(&args, t)
		d.drop(cuts)
	}, operands...)
}

// cuts finds the smallest differences that stay, in scratch memory; 0 if all of every model do.
func (d *Device) cuts(base kernels.Mat, list []Source, t string) uintptr {
	n, all := base.Len(), true
	start := make([]uint64, 3*len(list))
	for i, s := range list {
		all = all && (s.Keep == 0 || s.Keep == n)
		start[3*i+2] = uint64(n) // equal to a cut of 0: every element stays
	}

	if all {
		return 0
	}

	cuts, counts := sent(d, start), d.scratch(3*2048*4)
	for i, s := range list {
		if s.Keep == 0 || s.Keep == n {
			continue
		}

		b, m := d.of(base), d.of(s.M)
		flat(&b, &m)
		args := cutArgs{
			base: b.mat(), m: m.mat(), cut: cuts + uintptr(i*cutSize), histogram: counts, keep: s.Keep,
			whole: flag(b.aligned() && m.aligned()),
		}
		d.do(cuMemsetD8Async, counts, 0, 3*2048*4, d.compute)

		for args.pass = 0; args.pass < 3; args.pass++ {
			launch(d, "merge.cut_hist_"+t, plane(min(b.rows, 2048), b.cols, 8192), &args)
			launch(d, "merge.cut_pick", grid{x: 1, y: 1, threads: 256}, &args)
		}

		launch(d, "merge.cut_ties_"+t, grid{x: min(cutChunks, (n+cutLeast-1)/cutLeast), y: 1, threads: 256}, &args)
		launch(d, "merge.cut_end_"+t, grid{x: 1, y: 1, threads: 256}, &args)
	}

	d.drop(counts)
	return cuts
}

// Merge writes task arithmetic of models to out, a weight of base's shape, in one pass after the cuts were
// found. Failures of the device are reported by Sync.
func (d *Device) Merge(out, base kernels.Mat, list []Source, a Arithmetic) error {
	if err := sources(base, list); err != nil {
		return err
	}
	if !same(out, base) || out.DType() == kernels.F64 || !out.DType().IsFloat() {
		return fmt.Errorf("%w: a result of %s [%d, %d]", ErrMerge, out.DType(), out.Rows, out.Cols)
	}
	if out.Len() == 0 {
		return nil
	}

	d.merging("Merge", out, base, list, func(args *mergeArgs, t string) {
		args.outType, args.lambda = int32(out.DType()), a.Lambda
		args.consensus, args.normalise = flag(a.Consensus), flag(a.Normalise)
		views := []view{d.of(out), d.of(base)}
		for _, s := range list {
			views = append(views, d.of(s.M))
		}
		g := args.lay(views)
		launch(d, "merge.merge_"+t, g, args)
	})

	changed(out)
	return nil
}

// lay places the result, the base and the models, as one row where none has gaps, and gives the grid of a
// kernel that takes chunks of 16 bytes.
func (args *mergeArgs) lay(views []view) grid {
	list, whole := make([]*view, len(views)), true
	for i := range views {
		list[i] = &views[i]
	}

	flat(list...)

	for i, v := range views {
		whole = whole && v.aligned()
		if i >= 2 {
			args.m[i-2] = v.mat()
		}
	}

	args.d, args.base, args.whole = views[0].mat(), views[1].mat(), flag(whole)
	return plane(views[0].rows, views[0].cols, 256*16/views[1].t.Size())
}

// Conflicts counts the signs of models' kept differences to the base. It waits for the result.
func (d *Device) Conflicts(base kernels.Mat, list []Source) (Conflicts, error) {
	var c Conflicts
	if err := sources(base, list); err != nil || base.Len() == 0 {
		return c, err
	}

	// Bounded: every block of threads has sums of its own, which are added here, in a fixed order.
	g := grid{x: min((base.Cols+1023)/1024, 64), y: min(base.Rows, 256), threads: 256}
	counts, parts := make([]uint64, len(c.Signs)*len(c.Signs)), make([]float64, 2*g.x*g.y)
	d.merging("Conflicts", kernels.Mat{}, base, list, func(args *mergeArgs, t string) {
		args.counts, args.part = sent(d, counts), d.scratch(8*len(parts))
		launch(d, "merge.conflicts_"+t, g, args)
		if d.err == nil && d.lost == nil {
			d.fail(d.small.receive(d, bytesOf(counts), args.counts))
		}

		if d.err == nil && d.lost == nil {
			d.fail(d.small.receive(d, bytesOf(parts), args.part))
		}

		d.drop(args.counts)
		d.drop(args.part)
	})

	for i, n := range counts {
		c.Signs[i/len(c.Signs)][i%len(c.Signs)] = n
	}

	for i := 0; i < len(parts); i += 2 {
		c.Mass += parts[i]
		c.Net += parts[i+1]
	}

	return c, d.failed()
}

// failed is the first failure since the last Sync, without waiting.
func (d *Device) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	return d.lost
}

// adamArgs mirrors AdamArgs of merge.cu.
type adamArgs struct {
	p, m, v, g uintptr
	n          int
	step       AdamStep
}

// AdamW makes one step on p with the gradient g and the moments m and v, F32 without gaps and of one length.
// Products and sums are rounded one by one, as on the host.
func (d *Device) AdamW(p, m, v, g kernels.Mat, s AdamStep) {
	need(same(p, m, v, g), "cuda: AdamW: shapes do not agree")
	need(p.Dense() && m.Dense() && v.Dense() && g.Dense(), "cuda: AdamW: a matrix with gaps")
	if p.Len() == 0 {
		return
	}

	d.operation("AdamW", func() {
		launch(d, "merge.adamw", plane(1, p.Len(), 1024),
			&adamArgs{d.of(p).p, d.of(m).p, d.of(v).p, d.of(g).p, p.Len(), s})
	}, p, m, v, g)

	changed(p, m, v)
}
