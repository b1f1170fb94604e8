package structure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// cluster finds, layer by layer, experts that give alike: what each gives in the mean over all tokens, whichever these
// are sent to, and of these means those that are nearest together until as many are left as stay. Of each such cluster
// the expert stays that most tokens come to. The stream is that of the whole model.
func (x *experts) cluster(ctx context.Context, r *Experts) ([]Mixture, error) {
	c := x.m.Config()
	tally := newTally(x, 2, 1)
	var list []Mixture
	var sums [][]float64
	var tokens []int64
	err := through(ctx, x.m, x.calib, batchTokens, func(l, first int, h *lm.Hidden) error {
		if !c.Mixture[l] {
			err := x.m.RunBlock(ctx, l, h, nil)
			tally.run(h)
			return err
		}
		if first == 0 {
			tokens = make([]int64, c.Experts)
			sums = make([][]float64, c.Experts)
			for e := range sums {
				sums[e] = make([]float64, c.Hidden)
			}
		}

		if err := x.outputs(ctx, l, h, sums); err != nil {
			return err
		}
		tally.run(h)
		count := &lm.Hooks{Expert: func(r lm.Routed) { tokens[r.Expert] += int64(len(r.Rows)) }}
		err := x.m.RunBlock(ctx, l, h, count)
		tally.run(h)
		if err != nil || first+len(h.Lens) < len(x.calib.IDs) {
			return err
		}

		all := 0
		for _, ids := range x.calib.IDs {
			all += len(ids)
		}
		for _, s := range sums {
			for j := range s {
				s[j] /= float64(all)
			}
		}
		list = append(list, x.mixtureOf(l, sums, tokens))
		for _, n := range tokens {
			if n == 0 {
				r.Unreached++
			}
		}
		return nil
	})

	return list, err
}

// outputs adds what every expert gives for every token, and leaves the stream as it is.
func (x *experts) outputs(ctx context.Context, l int, h *lm.Hidden, sums [][]float64) error {
	dev := x.m.Device()
	out, err := dev.Alloc(kernels.F32, h.X.Len())
	if err != nil {
		return err
	}
	defer out.Free()

	var failed error
	hooks := &lm.Hooks{
		Route: func(int) lm.Routing { return lm.Routing{TopK: len(sums)} },
		Expert: func(r lm.Routed) {
			y, err := hostmat.F32(dev, r.Y)
			if err != nil {
				failed = errors.Join(failed, err)
				return
			}
			sum := sums[r.Expert]
			for i := range y.Rows {
				for j, v := range y.RowF32(i) {
					sum[j] += float64(v)
				}
			}
			if slices.ContainsFunc(sum, func(v float64) bool { return v-v != 0 }) {
				failed = errors.Join(failed,
					fmt.Errorf("block %d: expert %d: %w: its output", r.Block, r.Expert, lm.ErrNonFinite))
			}
		},
	}
	other := &lm.Hidden{X: kernels.MatOf(out, h.X.Rows, h.X.Cols), Lens: h.Lens}
	return errors.Join(x.m.RunBlockTo(ctx, l, other, h, hooks), failed)
}

// mixtureOf is what the clusters of a layer's experts come to.
func (x *experts) mixtureOf(l int, means [][]float64, tokens []int64) Mixture {
	r := Mixture{Block: l, Tokens: tokens}
	groups := max(1, x.m.Config().Groups)
	each := len(means) / groups
	for g := range groups {
		for _, members := range clusters(means[g*each:(g+1)*each], x.keep/groups) {
			for i := range members {
				members[i] += g * each
			}
			r.Clusters = append(r.Clusters, members)
		}
	}

	// In the order of those that stay, each first in its cluster.
	for _, members := range r.Clusters {
		slices.SortStableFunc(members, func(a, b int) int {
			switch {
			case tokens[a] > tokens[b]:
				return -1
			case tokens[a] < tokens[b]:
				return 1
			}
			return a - b
		})
	}
	slices.SortFunc(r.Clusters, func(a, b []int) int { return a[0] - b[0] })
	for _, members := range r.Clusters {
		r.Kept = append(r.Kept, members[0])
	}

	return r
}

// clusters joins points until n clusters are left, always the two whose points are nearest to each other in the mean
// (average linkage), of equal ones the first. Members are ascending.
func clusters(points [][]float64, n int) [][]int {
	list := make([][]int, len(points))
	far := make([][]float64, len(points))
	for i, p := range points {
		list[i] = []int{i}
		far[i] = make([]float64, len(points))
		for k, q := range points {
			sum := 0.0
			for j, v := range p {
				sum += (v - q[j]) * (v - q[j])
			}
			far[i][k] = math.Sqrt(sum)
		}
	}

	for len(list) > n {
		a, b := nearest(far)
		na, nb := float64(len(list[a])), float64(len(list[b]))
		for k := range list {
			if k != a && k != b {
				far[a][k] = (na*far[a][k] + nb*far[b][k]) / (na + nb)
				far[k][a] = far[a][k]
			}
		}
		list[a] = append(list[a], list[b]...)
		slices.Sort(list[a])

		list = slices.Delete(list, b, b+1)
		far = slices.Delete(far, b, b+1)
		for k := range far {
			far[k] = slices.Delete(far[k], b, b+1)
		}
	}

	return list
}

// nearest is the first pair of least distance.
func nearest(far [][]float64) (a, b int) {
	a, b = 0, 1
	for i := range far {
		for k := i + 1; k < len(far); k++ {
			if far[i][k] < far[a][b] {
				a, b = i, k
			}
		}
	}
	return a, b
}

// Merge makes of every expert that stays the mean of its cluster, by how many tokens come to each member (HC-SMoE). The
// router's row is that of the one that stays. Only of plans by [Clusters]; others are left as they are. The matrices of
// the model change; with a saver, finished layers are written, and those of an interrupted run left.
func Merge(ctx context.Context, m *lm.Model, p *Plan, out *lm.Saver) error {
	if p.Experts == nil || p.Experts.By != Clusters {
		return nil
	}

	for i, mixture := range p.Experts.Blocks {
		p.Options.Progress(Merging, int64(i), int64(len(p.Experts.Blocks)))
		if err := ctx.Err(); err != nil {
			return err
		}
		if !slices.Contains(p.Cut.Blocks(m.Config()), mixture.Block) {
			continue
		}
		if err := mergeBlock(m, mixture, out); err != nil {
			return fmt.Errorf("block %d: %w", mixture.Block, err)
		}
	}
	p.Options.Progress(Merging, int64(len(p.Experts.Blocks)), int64(len(p.Experts.Blocks)))

	return nil
}

// mergeBlock merges the experts of a layer.
func mergeBlock(m *lm.Model, mixture Mixture, out *lm.Saver) error {
	l := mixture.Block
	type part struct {
		role   arch.Role
		bias   bool
		expert int
	}
	names := map[part]string{}
	for _, p := range m.Params(l) {
		if p.Expert >= 0 {
			names[part{p.Role, p.Bias, p.Expert}] = p.Name
		}
	}

	var merged []string
	for _, p := range m.Params(l) {
		at := slices.IndexFunc(mixture.Clusters, func(c []int) bool { return c[0] == p.Expert })
		if p.Expert < 0 || at < 0 || len(mixture.Clusters[at]) == 1 {
			continue
		}
		merged = append(merged, p.Name)
		if out != nil && out.Done(p.Name) {
			continue
		}

		var members []string
		var shares []float64
		for _, e := range mixture.Clusters[at] {
			members = append(members, names[part{p.Role, p.Bias, e}])
			shares = append(shares, float64(mixture.Tokens[e]))
		}
		if err := mean(m, members, shares); err != nil {
			return fmt.Errorf("tensor %q: %w", p.Name, err)
		}
	}

	if out != nil {
		if err := out.Save(slices.DeleteFunc(merged, out.Done)...); err != nil {
			return err
		}
	}
	m.ReleaseBlock(l, out != nil)

	return nil
}

// mean writes the weighted mean of parameters to the first of them; where nothing weighs, all weigh the same.
func mean(m *lm.Model, names []string, weights []float64) error {
	all := 0.0
	for _, w := range weights {
		all += w
	}

	var sums []float64
	for i, name := range names {
		share := 1 / float64(len(names))
		if all > 0 {
			share = weights[i] / all
		}
		value, err := m.Param(name)
		if err != nil {
			return err
		}
		if value, err = hostmat.F32(m.Device(), value); err != nil {
			return err
		}
		if sums == nil {
			sums = make([]float64, value.Len())
		}
		for r := range value.Rows {
			row := sums[r*value.Cols:][:value.Cols]
			for j, v := range value.RowF32(r) {
				row[j] += share * float64(v)
			}
		}
	}

	own, err := m.MutableParam(names[0])
	if err != nil {
		return err
	}
	values := kernels.MatOf(kernels.NewHost(kernels.F32, own.Len()), own.Rows, own.Cols)
	for i, v := range sums {
		values.Buf.F32()[i] = float32(v)
	}
	if err := hostmat.Store(m.Device(), own, values, false); err != nil {
		return err
	}
	return m.Device().Ops().Sync()
}
