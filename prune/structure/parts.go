package structure

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
)

// Kind is what formulas of whole parts score, and a search looks for one of.
type Kind string

// The kinds.
const (
	Neurons Kind = "ffn"
	Heads   Kind = "heads" // of queries; where keys and values go too, those of each with all that share them
	Blocks  Kind = "layers"
)

// Kinds lists them.
func Kinds() []Kind { return []Kind{Neurons, Heads, Blocks} }

// Terminals lists those that formulas of a kind may use besides those of weights.
func (k Kind) Terminals() []gp.Symbol {
	if k == Blocks {
		return []gp.Symbol{gp.Bi, gp.Sx, gp.Sy, gp.Sd}
	}
	return []gp.Symbol{gp.A, gp.Am, gp.Av, gp.Ma}
}

// Known are the formulas of a kind that are published under a name, the one that others are compared with first.
func (k Kind) Known() []Named {
	if k == Blocks {
		return []Named{{"block influence", "Bi"}, {"Taylor", "gsum(W*G)"}, {"magnitude", "gsum(W)"}}
	}
	return []Named{
		{WandaSP, "osum(W*sqrt(X))"},
		{Minitron, "Ma"},
		{"first order (LLM-Pruner)", "gsum(W*G)"},
		{"FLAP", "osum(sqr(W)*Xv)"},
	}
}

// Named is a published formula.
type Named struct{ Name, Formula string }

// Options are those of a run that leaves a share of a kind out.
func (k Kind) Options(drop float64) Options {
	share := Share{Drop: drop}
	switch k {
	case Heads:
		return Options{Heads: share, Score: WandaSP}
	case Blocks:
		return Options{Layers: share, By: Influence}
	}
	return Options{FFN: share, Score: WandaSP}
}

// partsFormula compiles a score that is a formula of whole parts. It is nil for other scores.
func partsFormula(name string) (*gp.PartsProgram, error) {
	e, ok, err := prune.Expression(name)
	if !ok || err != nil || !e.OfParts() {
		return nil, err
	}
	p, err := gp.CompileParts(e)
	if err != nil {
		return nil, fmt.Errorf("score %s: %w", name, err)
	}
	return p, nil
}

// suits refuses terminals that a kind does not have.
func suits(k Kind, p *gp.PartsProgram) error {
	for _, other := range Kinds() {
		for _, s := range other.Terminals() {
			if p.Expr.Uses(s) && !slices.Contains(k.Terminals(), s) {
				return fmt.Errorf("%w: score %s: %s is of %s, and there is none of %s", ErrOptions, p.Expr, s, other, k)
			}
		}
	}
	return nil
}

// vector names scores that are compared with each other.
type vector struct {
	of            what
	block, expert int // -1: of no one
}

// what is scored.
type what uint8

const (
	ofInner what = iota
	ofShared
	ofExpert
	ofHeads
	ofValues // heads of keys and values
	ofHidden
	ofBlocks
)

// vector gives the scores of a name.
func (s *scores) vector(v vector) []float64 {
	switch v.of {
	case ofInner:
		return s.inner[v.block]
	case ofShared:
		return s.shared[v.block]
	case ofExpert:
		return s.experts[v.block][v.expert]
	case ofHeads:
		return s.heads[v.block]
	case ofValues:
		return s.kv[v.block]
	}
	return s.hidden
}

// owned says which rows or columns of a matrix belong to what is scored.
type owned struct {
	by      vector
	columns bool
	owner   func(i int) int // -1: nobody
	out     bool            // what leaves its owners flows through the matrix
}

// owners says whom the rows and columns of a matrix [rows, columns] belong to: a neuron's are rows of gate and up and a
// column of down, a head's rows of q and columns of o, and with keys and values those of k and v too; a channel's those
// of all matrices that read or write the stream.
func (w *width) owners(l lm.Linear, rows, columns int) []owned {
	each := w.c.Heads / w.c.KVHeads
	neurons := w.neuronsOf(l)
	head, kv := vector{ofHeads, l.Block, -1}, vector{ofValues, l.Block, -1}
	channel := vector{ofHidden, -1, -1}
	self := func(i int) int { return i }
	run := func(n int) func(i int) int { return func(i int) int { return i / n } }

	var list []owned
	byRow := func(v vector, owner func(i int) int) { list = append(list, owned{by: v, owner: owner}) }
	switch l.Role {
	case arch.Down, arch.SharedDown:
		return []owned{
			{by: neurons, columns: true, owner: self, out: true},
			{by: channel, owner: self, out: true},
		}
	case arch.O:
		return []owned{
			{by: head, columns: true, owner: run(w.channels()), out: true},
			{by: kv, columns: true, owner: run(w.channels() * each), out: true},
			{by: channel, owner: self, out: true},
		}
	case arch.Gate, arch.Up, arch.SharedGate, arch.SharedUp:
		byRow(neurons, self)
	case arch.GateUp, arch.SharedGateUp:
		n := len(w.s.vector(neurons))
		byRow(neurons, func(i int) int {
			if w.c.Arch.Gate == arch.ClampedGate {
				return i / 2
			}
			return i % n
		})
	case arch.Q:
		byRow(head, run(w.c.HeadDim))
		byRow(kv, run(w.c.HeadDim*each))
	case arch.QB, arch.KVB: // of latent attention, where every head has keys and values of its own
		byRow(head, run(rows/w.c.Heads))
		byRow(kv, run(rows/w.c.Heads))
	case arch.K, arch.V:
		byRow(kv, run(w.c.HeadDim))
	case arch.QKV:
		byRow(kv, w.fusedOwners(l.Block, rows))
	}
	if columns == w.c.Hidden {
		list = append(list, owned{by: channel, columns: true, owner: self})
	}

	return list
}

// fusedOwners gives the heads of keys and values that rows of a matrix of queries, keys and values belong to.
func (w *width) fusedOwners(block, rows int) func(i int) int {
	owner := slices.Repeat([]int{-1}, rows)
	for v := range w.c.KVHeads {
		k := arch.Cut{KVHeads: put(nil, block, []int{v})}
		for _, i := range k.Kept(w.c, "qkv", block, -1) {
			owner[i] = v
		}
	}
	return func(i int) int { return owner[i] }
}

// tallies are the scores of a formula under way.
type tallies struct {
	p         *gp.PartsProgram
	threads   int
	owners    func(l lm.Linear, rows, columns int) []owned
	wants     func(of what) bool
	size      func(v vector) int
	all       map[vector]*gp.Tally
	terminals map[vector]map[gp.Symbol][]float64
}

// terminalsOf are sums over the inputs of the matrix behind a neuron or a head.
var terminalsOf = []struct {
	sym, needs gp.Symbol
	value      func(in *gp.Inputs, j int) float64
}{
	{gp.A, gp.X, func(in *gp.Inputs, j int) float64 { return float64(in.X[j]) }},
	{gp.Am, gp.Xm, func(in *gp.Inputs, j int) float64 { return float64(in.Mean[j]) * float64(in.Mean[j]) }},
	{gp.Av, gp.Xv, func(in *gp.Inputs, j int) float64 { return float64(in.Var[j]) }},
}

// Reads reports whether a formula that uses some symbols looks at a terminal of weights: itself, or through a terminal
// of parts that is made of it.
func Reads(uses func(gp.Symbol) bool) func(gp.Symbol) bool {
	return func(s gp.Symbol) bool {
		for _, t := range terminalsOf {
			if t.needs == s && uses(t.sym) {
				return true
			}
		}
		return uses(s)
	}
}

// add takes in a matrix.
func (t *tallies) add(o Operand) error {
	rows, columns := o.W.Rows, o.W.Cols
	for _, part := range t.owners(o.Linear, rows, columns) {
		if !t.wants(part.by.of) {
			continue
		}

		n := rows
		if part.columns {
			n = columns
		}
		m := gp.Member{Inputs: o.Inputs, Owner: make([]int, n), Columns: part.columns, Out: part.out, Blind: o.Blind}
		for i := range m.Owner {
			m.Owner[i] = part.owner(i)
		}

		sum := t.all[part.by]
		if sum == nil {
			sum = t.p.Tally(t.size(part.by), t.threads)
			t.all[part.by] = sum
		}
		if err := sum.Add(m); err != nil {
			return fmt.Errorf("tensor %q: %w", o.Linear.Name, err)
		}
		if part.out && part.columns {
			t.flow(part, &m)
		}
	}

	return nil
}

// flow adds what leaves parts to their terminals.
func (t *tallies) flow(part owned, m *gp.Member) {
	own := t.terminals[part.by]
	if own == nil {
		own = map[gp.Symbol][]float64{}
		t.terminals[part.by] = own
	}
	for _, x := range terminalsOf {
		if !t.p.Expr.Uses(x.sym) {
			continue
		}
		own[x.sym] = make([]float64, t.size(part.by))
		for j, owner := range m.Owner {
			if !m.Blind && owner >= 0 {
				own[x.sym][owner] += x.value(&m.Inputs, j)
			}
		}
	}
}

// scores finishes all vectors; more gives terminals that the matrices do not tell.
func (t *tallies) scores(more func(v vector, s gp.Symbol) []float64, into func(v vector, scores []float64)) error {
	constant := true
	for v, sum := range t.all {
		scores, err := sum.Scores(func(s gp.Symbol) []float64 {
			if own := t.terminals[v][s]; own != nil {
				return own
			}
			return more(v, s)
		})
		if err != nil {
			return err
		}
		constant = constant && slices.Min(scores) == slices.Max(scores)
		into(v, scores)
	}
	if constant {
		return fmt.Errorf("%s: %w", t.p.Expr, gp.ErrConstant)
	}

	return nil
}

// Operand is a matrix with what formulas look at; Blind tells that it has the weights alone, since no token reached it.
type Operand struct {
	lm.Linear
	gp.Inputs
	Blind bool
}

// tally begins with a formula for neurons and heads.
func (w *width) tally(p *gp.PartsProgram, threads int) *tallies {
	return &tallies{
		p: p, threads: threads, owners: w.owners, wants: w.narrows,
		size: func(v vector) int { return len(w.s.vector(v)) },
		all:  map[vector]*gp.Tally{}, terminals: map[vector]map[gp.Symbol][]float64{},
	}
}

// narrows reports whether some of what is scored goes.
func (w *width) narrows(of what) bool {
	z := w.sizes
	switch of {
	case ofInner:
		return z.inner != w.c.Inner
	case ofShared:
		return z.shared != w.c.SharedInner
	case ofExpert:
		return z.expert != w.c.ExpertInner
	case ofHeads, ofValues:
		return z.heads != w.c.Heads || z.kv != w.c.KVHeads
	}
	return false
}

// takeScores makes the scores of finished tallies the width's own. flows are Minitron's scores, if the formula has any.
func (w *width) takeScores(t *tallies, flows *scores) error {
	more := func(v vector, s gp.Symbol) []float64 {
		if s != gp.Ma || flows == nil {
			return nil
		}
		list := slices.Clone(flows.vector(v))
		if v.of == ofHeads || v.of == ofValues { // of which those are the squares
			for i, x := range list {
				list[i] = math.Sqrt(x)
			}
		}
		return list
	}

	return t.scores(more, func(v vector, scores []float64) { copy(w.s.vector(v), scores) })
}

// flows measures Minitron's scores.
func (w *width) flows(ctx context.Context) (*scores, error) {
	other, err := newWidth(w.m, w.calib, w.o)
	if err != nil {
		return nil, err
	}
	other.progress = w.progress
	return &other.s, other.activations(ctx)
}

// formula scores by a formula of whole parts.
func (w *width) formula(ctx context.Context, p *gp.PartsProgram) error {
	t := w.tally(p, w.m.Device().Info().Threads)
	var flows *scores
	if p.Expr.Uses(gp.Ma) {
		var err error
		if flows, err = w.flows(ctx); err != nil {
			return err
		}
	}

	if err := eachOperand(ctx, w.m, w.calib, p, w.progress, t.add); err != nil {
		return err
	}
	return w.takeScores(t, flows)
}

// eachOperand shows all matrices with what a formula looks at.
func eachOperand(ctx context.Context, m *lm.Model, calib corpus.Windows, p *gp.PartsProgram,
	progress func(done, of int64), take func(o Operand) error,
) error {
	done, of := int64(0), int64(0)
	for l := range m.Blocks() {
		of += int64(len(m.Linears(l)))
	}
	return prune.Operands(ctx, m, calib, Reads(p.Expr.Uses), func(l lm.Linear, in gp.Inputs, blind bool) error {
		done++
		progress(done, of)
		return take(Operand{l, in, blind})
	})
}

// tally begins with a formula for layers.
func (d *depth) tally(p *gp.PartsProgram, threads int) *tallies {
	n := d.m.Blocks()
	return &tallies{
		p: p, threads: threads,
		owners: func(l lm.Linear, _, _ int) []owned {
			out := l.Role == arch.O || l.Role == arch.Down || l.Role == arch.SharedDown
			return []owned{{by: vector{ofBlocks, -1, -1}, owner: func(int) int { return l.Block }, out: out}}
		},
		wants: func(what) bool { return true },
		size:  func(vector) int { return n },
		all:   map[vector]*gp.Tally{}, terminals: map[vector]map[gp.Symbol][]float64{},
	}
}

// takeScores gives the scores of layers of finished tallies.
func takeScores(t *tallies, streams map[gp.Symbol][]float64) (list []float64, err error) {
	err = t.scores(func(_ vector, s gp.Symbol) []float64 { return streams[s] },
		func(_ vector, scores []float64) { list = scores })
	return list, err
}

// formula scores layers by a formula of whole parts; the lowest go.
func (d *depth) formula(ctx context.Context, p *gp.PartsProgram) (*Depth, error) {
	var streams map[gp.Symbol][]float64
	if slices.ContainsFunc(Blocks.Terminals(), p.Expr.Uses) {
		var err error
		if streams, err = d.streams(ctx); err != nil {
			return nil, err
		}
	}
	t := d.tally(p, d.m.Device().Info().Threads)
	if err := eachOperand(ctx, d.m, d.calib, p, d.progress, t.add); err != nil {
		return nil, err
	}

	scores, err := takeScores(t, streams)
	if err != nil {
		return nil, err
	}
	return d.lowest(scores), nil
}

// streams measures the stream before and behind every layer.
func (d *depth) streams(ctx context.Context) (map[gp.Symbol][]float64, error) {
	of := map[gp.Symbol][]float64{}
	for _, s := range Blocks.Terminals() {
		of[s] = make([]float64, d.m.Blocks())
	}
	err := d.walk(ctx, func(l, _ int, before, after kernels.Mat, _ []int) {
		for i := range before.Rows {
			a, b := before.RowF32(i), after.RowF32(i)
			of[gp.Bi][l] += cosine(a, b)
			for j, v := range a {
				x, y := float64(v), float64(b[j])
				of[gp.Sx][l] += x * x
				of[gp.Sy][l] += y * y
				of[gp.Sd][l] += (y - x) * (y - x)
			}
		}
	})
	if err != nil {
		return nil, err
	}

	n := float64(d.tokens())
	for s, list := range of {
		for l := range list {
			list[l] /= n
			if s == gp.Bi {
				list[l] = 1 - list[l]
			}
			if math.IsNaN(list[l]) || math.IsInf(list[l], 0) {
				return nil, fmt.Errorf("layer %d: %w: %s %g", l, lm.ErrNonFinite, s, list[l])
			}
		}
	}

	return of, nil
}

// Parts are what formulas of a kind look at of a model, kept to judge many of them.
type Parts struct {
	kind     Kind
	m        *lm.Model
	calib    corpus.Windows
	matrices []Operand
	flows    *scores
	streams  map[gp.Symbol][]float64
}

// NewParts measures what the matrices, which the caller has measured and keeps, do not tell. uses says which symbols
// formulas may have.
func NewParts(ctx context.Context, m *lm.Model, calib corpus.Windows, k Kind, matrices []Operand,
	uses func(gp.Symbol) bool,
) (*Parts, error) {
	p := &Parts{kind: k, m: m, calib: calib, matrices: matrices}
	silent := func(int64, int64) {}
	var err error
	switch {
	case k == Blocks:
		d := &depth{m: m, calib: calib, progress: silent}
		p.streams, err = d.streams(ctx)
	case uses(gp.Ma):
		w := &width{m: m, c: m.Config(), calib: calib, progress: silent}
		p.flows, err = w.flows(ctx)
	}
	return p, err
}

// Cut is what a formula leaves of the model if a share of its parts goes; of some blocks alone, where they are given.
// Errors wrap [ErrOptions], [gp.ErrNonFinite] and [gp.ErrConstant].
func (p *Parts) Cut(f *gp.PartsProgram, drop float64, some []int) (*arch.Cut, error) {
	if err := suits(p.kind, f); err != nil {
		return nil, err
	}

	o := p.kind.Options(drop)
	threads := p.m.Device().Info().Threads
	k := &arch.Cut{}
	if p.kind == Blocks {
		d := &depth{m: p.m, calib: p.calib, o: o, keep: o.Layers.Of(p.m.Blocks())}
		t := d.tally(f, threads)
		if err := p.feed(t, nil); err != nil {
			return nil, err
		}
		scores, err := takeScores(t, p.streams)
		if err != nil {
			return nil, err
		}
		dropped := d.lowest(scores).Dropped
		k.Layers = slices.DeleteFunc(upTo(p.m.Blocks()), func(l int) bool { return slices.Contains(dropped, l) })
		return k, nil
	}

	w, err := newWidth(p.m, p.calib, o)
	if err != nil {
		return nil, err
	}
	t := w.tally(f, threads)
	if err := p.feed(t, some); err != nil {
		return nil, err
	}
	if err := w.takeScores(t, p.flows); err != nil {
		return nil, err
	}
	w.decide(k)

	return k, nil
}

// feed takes the matrices in, all or those of some blocks.
func (p *Parts) feed(t *tallies, some []int) error {
	for _, o := range p.matrices {
		if some != nil && !slices.Contains(some, o.Block) {
			continue
		}
		if err := t.add(o); err != nil {
			return err
		}
	}
	return nil
}

// Mask zeroes what a cut leaves out of neurons and heads: the columns of the matrices behind them. The model then
// computes what the smaller one does, but for the order of additions. some are the blocks; nil: all.
func Mask(m *lm.Model, k *arch.Cut, some []int) error {
	for l := range m.Blocks() {
		if some != nil && !slices.Contains(some, l) {
			continue
		}
		for _, lin := range m.Linears(l) {
			if keep := inputsKept(m.Config(), k, lin); keep != nil {
				if err := maskColumns(m, lin, keep); err != nil {
					return fmt.Errorf("tensor %q: %w", lin.Name, err)
				}
			}
		}
	}
	return nil
}

// maskColumns zeroes the inputs of a matrix that do not stay.
func maskColumns(m *lm.Model, l lm.Linear, stay []int) error {
	dev := m.Device()
	w, err := m.MutableParam(l.Name)
	if err != nil {
		return err
	}

	row := make([]byte, l.In)
	for _, j := range stay {
		row[j] = 1
	}
	mask := slices.Repeat(row, l.Out)
	buf, err := dev.Alloc(kernels.U8, len(mask))
	if err != nil {
		return err
	}
	defer buf.Free()
	keep := kernels.MatOf(buf, l.Out, l.In)
	if err := dev.Upload(buf, 0, mask); err != nil {
		return err
	}
	if l.Transposed {
		if keep, err = hostmat.Transposed(dev, keep); err != nil {
			return err
		}
		defer keep.Buf.Free()
	}

	dev.Ops().ApplyMask(w, keep)
	err = dev.Ops().Sync()
	w.Buf.Changed()

	return err
}
