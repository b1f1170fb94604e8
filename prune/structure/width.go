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
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// The scores of neurons, heads and channels that are no metric of package prune; the package's documentation says what
// each is.
const (
	Minitron = "minitron"
	WandaSP  = "wanda-sp"
	OBS      = "obs"
)

// WidthScores lists what neurons, heads and channels can be chosen by beside the metrics of package prune.
func WidthScores() []string { return []string{WandaSP, Minitron, OBS} }

// Width is what stays of every layer, and why.
type Width struct {
	By string `json:"by"`
	// What stays of each kind, and of how many; nil: all.
	Inner       *Kept `json:"inner,omitempty"`
	ExpertInner *Kept `json:"expert_inner,omitempty"`
	SharedInner *Kept `json:"shared_inner,omitempty"`
	Heads       *Kept `json:"heads,omitempty"`
	KVHeads     *Kept `json:"kv_heads,omitempty"`
	Hidden      *Kept `json:"hidden,omitempty"`
	// Restored are the matrices whose remaining inputs make up for those that went.
	Restored []Restored `json:"restored,omitempty"`
}

// Kept is how many of something stay.
type Kept struct {
	Of   int `json:"of"`
	Keep int `json:"keep"`
}

// scores are what neurons, heads and channels are chosen by; more is better.
type scores struct {
	inner, shared, heads, kv [][]float64 // by block
	experts                  [][][]float64
	hidden                   []float64
}

// width is a choice of neurons, heads and channels under way.
type width struct {
	m     *lm.Model
	c     *lm.Config
	calib corpus.Windows
	o     Options
	sizes sizes
	s     scores

	progress func(done, of int64)
}

func newWidth(m *lm.Model, calib corpus.Windows, o Options) (*width, error) {
	w := &width{m: m, c: m.Config(), calib: calib, o: o}
	var err error
	w.sizes, err = o.sizes(w.c)
	if err != nil {
		return nil, err
	}

	each := func(n int) [][]float64 {
		list := make([][]float64, w.c.Layers)
		for l := range list {
			list[l] = make([]float64, n)
		}
		return list
	}
	w.s = scores{
		inner: each(w.c.Inner), shared: each(w.c.SharedInner), heads: each(w.c.Heads), kv: each(w.c.KVHeads),
		hidden: make([]float64, w.c.Hidden),
	}
	for range w.c.Layers {
		experts := make([][]float64, w.c.Experts)
		for e := range experts {
			experts[e] = make([]float64, w.c.ExpertInner)
		}
		w.s.experts = append(w.s.experts, experts)
	}

	return w, nil
}

// choose adds what stays of the layers to a cut.
func (w *width) choose(ctx context.Context, k *arch.Cut) (*Width, error) {
	formula, err := partsFormula(w.o.Score)
	switch {
	case err != nil:
	case formula != nil:
		err = w.formula(ctx, formula)
	case w.o.Score == Minitron:
		err = w.activations(ctx)
	case w.o.Score == OBS:
		err = w.surgery(ctx)
	default:
		err = w.metric(ctx)
	}
	if err != nil {
		return nil, err
	}

	return w.decide(k), nil
}

// decide adds to a cut what stays by the scores.
func (w *width) decide(k *arch.Cut) *Width {
	r := &Width{By: w.o.Score}
	if n := w.sizes.hidden; n != w.c.Hidden {
		k.Hidden, r.Hidden = best(w.s.hidden, n), &Kept{w.c.Hidden, n}
	}

	for l := range w.c.Layers {
		w.neurons(k, r, l)
		w.heads(k, r, l)
	}

	return r
}

// take adds to a cut what would stay if everything were alike.
func (w *width) take(k *arch.Cut) {
	if n := w.sizes.hidden; n != w.c.Hidden {
		k.Hidden = upTo(n)
	}
	for l := range w.c.Layers {
		w.neurons(k, &Width{}, l)
		w.heads(k, &Width{}, l)
	}
}

// neurons chooses those of a layer.
func (w *width) neurons(k *arch.Cut, r *Width, l int) {
	z := w.sizes
	if !w.c.Mixture[l] {
		if z.inner != w.c.Inner {
			k.Inner = put(k.Inner, l, best(w.s.inner[l], z.inner))
			r.Inner = &Kept{w.c.Inner, z.inner}
		}
		return
	}

	if z.shared != w.c.SharedInner {
		k.SharedInner = put(k.SharedInner, l, best(w.s.shared[l], z.shared))
		r.SharedInner = &Kept{w.c.SharedInner, z.shared}
	}
	if z.expert != w.c.ExpertInner {
		var lists [][]int
		for e := range w.c.Experts {
			lists = append(lists, best(w.s.experts[l][e], z.expert))
		}
		k.ExpertInner = put(k.ExpertInner, l, lists)
		r.ExpertInner = &Kept{w.c.ExpertInner, z.expert}
	}
}

// heads chooses those of a layer: those of keys and values by themselves and all queries that share them, then as many
// queries of each.
func (w *width) heads(k *arch.Cut, r *Width, l int) {
	z := w.sizes
	if z.heads == w.c.Heads && z.kv == w.c.KVHeads {
		return
	}

	each := w.c.Heads / w.c.KVHeads
	values := best(w.s.kv[l], z.kv)
	var queries []int
	for _, v := range values {
		for _, i := range best(w.s.heads[l][v*each:(v+1)*each], z.heads/z.kv) {
			queries = append(queries, v*each+i)
		}
	}

	k.Heads, k.KVHeads = put(k.Heads, l, queries), put(k.KVHeads, l, values)
	r.Heads, r.KVHeads = &Kept{w.c.Heads, z.heads}, &Kept{w.c.KVHeads, z.kv}
}

// put gives a list an entry at i.
func put[T any](list []T, i int, entry T) []T {
	for len(list) <= i {
		var none T
		list = append(list, none)
	}
	list[i] = entry
	return list
}

// best lists the n of highest score, ascending; of equal ones the earlier.
func best(scores []float64, n int) []int {
	order := upTo(len(scores))
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	stay := slices.Clone(order[:n])
	slices.Sort(stay)
	return stay
}

// channels is how many of O's inputs a head has.
func (w *width) channels() int {
	if w.c.KVRank > 0 {
		return w.c.VDim
	}
	return w.c.HeadDim
}

// activations scores by the sizes of what flows: for each sequence the mean of |x| over its tokens, and of these the
// root of the sum of squares.
func (w *width) activations(ctx context.Context) error {
	var failed error
	squares := map[string][]float64{} // by matrix that reads it
	hooks := &lm.Hooks{LinearInput: func(l lm.Linear, x kernels.Mat) {
		if failed != nil || x.Rows == 0 || !w.listens(l) {
			return
		}
		var means []float64
		if means, failed = w.means(x); failed != nil {
			return
		}
		if squares[l.Name] == nil {
			squares[l.Name] = make([]float64, len(means))
		}
		for j, v := range means {
			squares[l.Name][j] += v * v
		}
	}}

	// One sequence at a time: an expert sees the tokens of several as one run.
	done := int64(0)
	of := int64(w.m.Blocks()) * int64(len(w.calib.IDs))
	err := through(ctx, w.m, w.calib, 1, func(l, _ int, h *lm.Hidden) error {
		err := w.m.RunBlock(ctx, l, h, hooks)
		done++
		w.progress(done, of)
		return errors.Join(err, failed)
	})
	if err != nil {
		return err
	}

	for l := range w.m.Blocks() {
		for _, lin := range w.m.Linears(l) {
			if err := w.addFlow(lin, squares[lin.Name]); err != nil {
				return err
			}
		}
	}

	return nil
}

// listens reports whether the input of a matrix is one that activations are measured at: of those that read the same,
// the first, and of a mixture's what all tokens reach.
func (w *width) listens(l lm.Linear) bool {
	switch l.Role {
	case arch.Down, arch.SharedDown, arch.O, arch.Q, arch.QKV, arch.QA, arch.SharedGate, arch.SharedGateUp:
		return true
	case arch.Gate, arch.GateUp:
		return l.Expert < 0
	case arch.Up: // of a plain MLP
		gated := func(x lm.Linear) bool { return x.Role == arch.Gate }
		return l.Expert < 0 && !slices.ContainsFunc(w.m.Linears(l.Block), gated)
	}
	return false
}

// means are those of |x| over the rows.
func (w *width) means(x kernels.Mat) ([]float64, error) {
	host, err := hostmat.F32(w.m.Device(), x)
	if err != nil {
		return nil, err
	}

	means := make([]float64, x.Cols)
	for i := range host.Rows {
		for j, v := range host.RowF32(i) {
			means[j] += math.Abs(float64(v))
		}
	}
	for j := range means {
		means[j] /= float64(x.Rows)
	}

	return means, nil
}

// addFlow takes the sums of squares of what a matrix reads; nil: nothing reached it.
func (w *width) addFlow(l lm.Linear, squares []float64) error {
	for j, v := range squares {
		if v-v != 0 {
			return fmt.Errorf("tensor %q: input %d: %w", l.Name, j, lm.ErrNonFinite)
		}
	}

	into := w.s.hidden
	switch {
	case squares == nil:
		return nil
	case l.Role == arch.O:
		for j, v := range squares { // a head's is the norm over its channels
			w.s.heads[l.Block][j/w.channels()] += v
		}
		each := w.c.Heads / w.c.KVHeads
		for h, v := range w.s.heads[l.Block] {
			w.s.kv[l.Block][h/each] += v
		}
		return nil
	case l.Role == arch.SharedDown:
		into = w.s.shared[l.Block]
	case l.Role == arch.Down && l.Expert >= 0:
		into = w.s.experts[l.Block][l.Expert]
	case l.Role == arch.Down:
		into = w.s.inner[l.Block]
	}
	for j, v := range squares {
		into[j] += math.Sqrt(v)
	}

	return nil
}

// metric scores by the sums of a metric over what goes together: a neuron's rows of gate and up and its column of down,
// a head's rows of q, k and v and columns of o; of Wanda-sp over the columns alone.
func (w *width) metric(ctx context.Context) error {
	name := w.o.Score
	if name == WandaSP {
		name = "wanda"
	}
	metric, err := prune.MetricByName(name)
	if err != nil {
		return err
	}

	done := int64(0)
	of := int64(0)
	for l := range w.m.Blocks() {
		of += int64(len(w.m.Linears(l)))
	}
	return prune.Scores(ctx, w.m, w.calib, prune.Options{Metric: metric}, func(l lm.Linear, s kernels.Mat) error {
		rows := make([]float64, s.Rows)
		columns := make([]float64, s.Cols)
		for i := range rows {
			for j, v := range s.RowF32(i) {
				rows[i] += float64(v)
				columns[j] += float64(v)
			}
		}
		w.addSums(l, rows, columns)
		done++
		w.progress(done, of)
		return nil
	})
}

// addSums takes the sums of a matrix's scores over its outputs' and its inputs' weights.
func (w *width) addSums(l lm.Linear, rows, columns []float64) {
	if behind := l.Role == arch.Down || l.Role == arch.SharedDown || l.Role == arch.O; w.o.Score == WandaSP && !behind {
		return
	}

	for _, part := range w.owners(l, len(rows), len(columns)) {
		sums := rows
		if part.columns {
			sums = columns
		}
		add(w.s.vector(part.by), sums, part.owner)
	}
}

// add adds values to what they belong to; -1: to nothing.
func add(into, values []float64, owner func(i int) int) {
	for i, v := range values {
		if to := owner(i); to >= 0 {
			into[to] += v
		}
	}
}

// neuronsOf names the scores of the MLP that a matrix belongs to.
func (w *width) neuronsOf(l lm.Linear) vector {
	switch l.Role {
	case arch.SharedGate, arch.SharedUp, arch.SharedGateUp, arch.SharedDown:
		return vector{ofShared, l.Block, -1}
	}
	if l.Expert >= 0 {
		return vector{ofExpert, l.Block, l.Expert}
	}
	return vector{ofInner, l.Block, -1}
}
