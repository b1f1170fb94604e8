package combine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// Ways in which a combination can be refused.
var (
	ErrMethod  = failure.Misuse("unknown way of combining adapters", "")
	ErrOption  = failure.Misuse("option does not fit the way of combining", "")
	ErrRanks   = errors.New("adapters differ in rank")
	ErrRefused = errors.New("adapter cannot be combined")
)

// Sign is how ties elects the sign of an element.
type Sign string

// The elections.
const (
	Total     Sign = "total"     // of the sum of the values
	Frequency Sign = "frequency" // of the sum of their signs
)

// Options of [Run].
type Options struct {
	Method  string    // see [Methods]
	Weights []float64 // of the adapters; nil: 1 each
	Density float64   // fraction of values that pruning keeps; 1: all; required where the method prunes
	Sign    Sign      // Total by default
	Rank    int       // of the methods that cut to a rank; 0: the largest of the adapters
	Seed    uint64    // of random pruning
	Threads int       // 0: all processors
}

// method is a way of combining.
type method struct {
	name  string
	prune string // "", "magnitude" or "random"
	elect bool   // ties
	space space
	// in core space: singular vectors of different adapters are made orthogonal, and singular values equal
	whiten, iso bool
}

// ranked reports whether the result can have any rank.
func (m *method) ranked() bool { return m.space != factorSpace }

// methods is the table of all ways.
var methods = []method{
	{name: "linear"},
	{name: "cat"},
	{name: "svd", space: fullSpace},
	{name: "ties", prune: "magnitude", elect: true},
	{name: "dare_linear", prune: "random"},
	{name: "dare_ties", prune: "random", elect: true},
	{name: "magnitude_prune", prune: "magnitude"},
	{name: "ties_svd", prune: "magnitude", elect: true, space: fullSpace},
	{name: "dare_linear_svd", prune: "random", space: fullSpace},
	{name: "dare_ties_svd", prune: "random", elect: true, space: fullSpace},
	{name: "magnitude_prune_svd", prune: "magnitude", space: fullSpace},
	{name: "ties_core", prune: "magnitude", elect: true, space: coreSpace},
	{name: "dare_linear_core", prune: "random", space: coreSpace},
	{name: "dare_ties_core", prune: "random", elect: true, space: coreSpace},
	{name: "iso_core", space: coreSpace, iso: true},
	{name: "tsv_core", space: coreSpace, whiten: true},
	{name: "tsv_iso_core", space: coreSpace, whiten: true, iso: true},
	{name: "ties_knots", prune: "magnitude", elect: true, space: knotsSpace},
	{name: "dare_linear_knots", prune: "random", space: knotsSpace},
	{name: "dare_ties_knots", prune: "random", elect: true, space: knotsSpace},
}

// Methods lists the names of all ways of combining.
func Methods() []string {
	var names []string
	for _, m := range methods {
		names = append(names, m.name)
	}
	return names
}

// lookup finds a way by its name.
func lookup(name string) (method, error) {
	i := slices.IndexFunc(methods, func(m method) bool { return m.name == name })
	if i < 0 {
		return method{}, fmt.Errorf("%w: %.60q; known: %s", ErrMethod, name, strings.Join(Methods(), ", "))
	}
	return methods[i], nil
}

// Named is an adapter with a name for messages.
type Named struct {
	Name    string
	Adapter *adapter.Adapter
}

// Result is a combination, and what of it its factors do not show.
type Result struct {
	*adapter.Adapter
	Method  string // as computed: one adapter alone is linear, unless a rank is asked for
	Weights []float64
	// Exact: the result is the weighted sum of the changes, up to rounding.
	Exact bool
	// Energy is, of each module, the fraction of the squared singular values that the rank keeps; nil where nothing
	// was cut.
	Energy []*float64
	// Most is the largest rank that the changes can have; factors beyond it are zeros.
	Most int
}

// Run combines adapters. The errors wrap ErrMethod, ErrOption, ErrRanks, ErrRefused or [adapter.ErrBase] for
// adapters of different bases.
func Run(ctx context.Context, list []Named, o Options) (*Result, error) {
	c, err := newCombiner(list, o)
	if err != nil {
		return nil, err
	}

	if len(list) == 1 && c.weights[0] == 1 && c.method.name == "linear" {
		return c.identity(), nil
	}

	for _, n := range list {
		if err := combinable(n); err != nil {
			return nil, err
		}
	}

	for _, n := range list[1:] {
		if n.Adapter.Config.KeepZeros != list[0].Adapter.Config.KeepZeros {
			return nil, fmt.Errorf("%s: %w: of it and %s one keeps zeros of the base and the other does not, "+
				"which no adapter can do at once",
				n.Name, ErrRefused, list[0].Name)
		}
	}

	if err := c.modules(); err != nil {
		return nil, err
	}
	if err := c.ranks(); err != nil {
		return nil, err
	}

	return c.run(ctx)
}

// combiner combines some adapters.
type combiner struct {
	Options
	method  method
	list    []Named
	weights []float64
	paths   []adapter.Module // of all adapters, each once
	rank    int              // of the result
}

func newCombiner(list []Named, o Options) (*combiner, error) {
	way, err := lookup(o.Method)
	if err != nil {
		return nil, err
	}

	c := &combiner{Options: o, method: way, list: list, weights: o.Weights}
	if c.weights == nil {
		c.weights = slices.Repeat([]float64{1}, len(list))
	}

	switch {
	case o.Density > 1:
		return nil, fmt.Errorf("%w: density %g is above 1, which keeps all values", ErrOption, o.Density)
	case len(list) == 0:
		return nil, fmt.Errorf("%w: there are no adapters", ErrOption)
	case len(c.weights) != len(list):
		return nil, fmt.Errorf("%w: %d weights for %d adapters", ErrOption, len(c.weights), len(list))
	case slices.ContainsFunc(c.weights, func(w float64) bool { return math.IsNaN(w) || math.Abs(w) > math.MaxFloat32 }):
		return nil, fmt.Errorf("%w: weights %v are not all finite", ErrOption, c.weights)
	case o.Rank < 0 || o.Rank > 0 && !c.method.ranked():
		return nil, fmt.Errorf("%w: a rank of %d with %s; it is for svd and the methods that end in _svd, _core or "+
			"_knots", ErrOption, o.Rank, o.Method)
	case c.method.prune != "" && !(o.Density > 0):
		return nil, fmt.Errorf("%w: %s needs a density above 0, the fraction of values that are kept", ErrOption,
			o.Method)
	case c.method.prune == "" && o.Density != 0:
		return nil, fmt.Errorf("%w: %s prunes nothing, so it has no density", ErrOption, o.Method)
	case o.Sign != "" && o.Sign != Total && (o.Sign != Frequency || !c.method.elect):
		return nil, fmt.Errorf("%w: majority sign %.60q with %s; ties and dare_ties have total and frequency",
			ErrOption, o.Sign, o.Method)
	}

	// As in PEFT, one adapter is taken as it is, whatever the method; a rank that is asked for holds all the same.
	if len(list) == 1 && o.Rank == 0 {
		c.method, err = lookup("linear")
	}

	return c, err
}

// identity gives one adapter back.
func (c *combiner) identity() *Result {
	a := c.list[0].Adapter
	return &Result{Adapter: a, Method: "linear", Weights: c.weights, Exact: true, Energy: make([]*float64, len(a.Low))}
}

// combinable refuses adapters that are more than low-rank changes.
func combinable(n Named) error {
	a := n.Adapter
	refuse := func(what string) error {
		return fmt.Errorf("%s: %w: it has %s, which have no weighted sum", n.Name, ErrRefused, what)
	}

	switch {
	case a.Config.DoRA || slices.ContainsFunc(a.Low, func(l *adapter.Low) bool { return l.Magnitude != nil }):
		return refuse("DoRA magnitudes (use_dora)")
	case a.Config.OutputBias || slices.ContainsFunc(a.Low, func(l *adapter.Low) bool { return l.Bias != nil }):
		return refuse("biases of its own (lora_bias)")
	case slices.ContainsFunc(a.Whole, func(w *adapter.Whole) bool { return !w.Frozen }):
		return refuse("tensors that replace those of the base (modules_to_save, bias)")
	case len(a.Rows) > 0:
		return refuse("trained rows of a table (trainable_token_indices)")
	}

	return nil
}

// modules lists the modules of all adapters and compares their sizes.
func (c *combiner) modules() error {
	at := map[string]int{}
	for _, n := range c.list {
		for _, l := range n.Adapter.Low {
			i, ok := at[l.Module.Path]
			if !ok {
				at[l.Module.Path] = len(c.paths)
				c.paths = append(c.paths, l.Module)
				continue
			}

			if m := c.paths[i]; m.In != l.Module.In || m.Out != l.Module.Out || m.Table != l.Module.Table {
				return fmt.Errorf("%s: %w than %s: module %s has %d inputs and %d outputs, not %d and %d",
					n.Name, adapter.ErrBase, c.list[0].Name, m.Path, l.Module.In, l.Module.Out, m.In, m.Out)
			}
		}
	}

	return nil
}

// largest is the largest rank of an adapter.
func largest(a *adapter.Adapter) int {
	most := 0
	for _, l := range a.Low {
		most = max(most, l.Rank)
	}
	return most
}

// ranks finds the rank of the result.
func (c *combiner) ranks() error {
	var ranks []int
	for _, n := range c.list {
		ranks = append(ranks, largest(n.Adapter))
	}

	switch {
	case c.Rank > 0:
		c.rank = c.Rank
	case c.method.name == "cat" || c.method.space == coreSpace || c.method.space == knotsSpace:
		for _, r := range ranks {
			c.rank += r
		}
	case c.method.space == fullSpace:
		c.rank = slices.Max(ranks)
	default:
		c.rank = ranks[0]

		for i, r := range ranks {
			if r != ranks[0] {
				return fmt.Errorf("%w: %s has %d, %s has %d; %s needs one rank (HINT: cat, svd and the methods that "+
					"end in _core or _knots do not)",
					ErrRanks, c.list[0].Name, ranks[0], c.list[i].Name, r, c.method.name)
			}
		}
	}

	return nil
}

// part is one adapter's change of a module.
type part struct {
	name   string
	weight float64
	scale  float64
	a, b   linalg.Matrix // [r, in], [out, r]
}

// parts are the changes of a module.
func (c *combiner) parts(path string) []part {
	var list []part
	for i, n := range c.list {
		if l := n.Adapter.Find(path); l != nil {
			a, b := l.Pair()
			list = append(list, part{n.Name, c.weights[i], l.Scale, linalg.FromMat(a), linalg.FromMat(b)})
		}
	}
	return list
}

// run combines module by module.
func (c *combiner) run(ctx context.Context) (*Result, error) {
	low := make([]*adapter.Low, len(c.paths))
	energy := make([]*float64, len(c.paths))
	for i, m := range c.paths {
		if err := ctx.Err(); err != nil {
			return nil, err
		}

		a, b, kept, err := c.module(m, c.parts(m.Path))
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", m.Path, err)
		}

		low[i] = c.low(m, a, b)
		energy[i] = kept
	}

	return &Result{
		Adapter: &adapter.Adapter{Config: c.config(), Low: low, Whole: c.along()}, Method: c.method.name,
		Weights: c.weights, Energy: energy, Most: c.most(),
		Exact: c.method.name == "cat" || c.method.name == "linear" && len(c.list) == 1,
	}, nil
}

// most is the largest rank that a change can have: the ranks of the adapters add up, unless the changes are thinned out
// where they are written out.
func (c *combiner) most() int {
	sum := 0
	for _, n := range c.list {
		sum += largest(n.Adapter)
	}
	dense := c.method.space == fullSpace && c.method.prune != ""

	most := 0
	for _, m := range c.paths {
		n := min(m.In, m.Out)
		if !dense {
			n = min(n, sum)
		}
		most = max(most, n)
	}
	return most
}

// module combines the changes of one module: A [r, in], B [out, r].
func (c *combiner) module(m adapter.Module, list []part) (a, b linalg.Matrix, energy *float64, err error) {
	switch {
	case c.method.name == "cat":
		a, b = cat(list)
		return a, b, nil, nil
	case c.method.name == "svd":
		return c.cutPairs(list)
	case c.method.space == fullSpace:
		return c.cutDense(m, list)
	case c.method.space == coreSpace:
		return c.mixCore(m, list)
	case c.method.space == knotsSpace:
		return c.mixKnots(m, list)
	}

	a, b, err = c.factors(m, list)
	return a, b, nil, err
}

// low makes the factors of the result, padded with zeros to its rank.
func (c *combiner) low(m adapter.Module, a, b linalg.Matrix) *adapter.Low {
	nameA, nameB := ".lora_A.weight", ".lora_B.weight"
	if m.Table {
		nameA, nameB = ".lora_embedding_A", ".lora_embedding_B"
	}
	f := adapter.Plain{
		A: adapter.NewParam(m.Path+nameA, c.rank, m.In),
		B: adapter.NewParam(m.Path+nameB, m.Out, c.rank),
	}
	put(f.A.Value, a)
	put(f.B.Value, b)
	return &adapter.Low{Module: m, Rank: c.rank, Alpha: float64(c.rank), Scale: 1, Factors: f}
}

// put writes a matrix into the upper left of another.
func put(dst kernels.Mat, src linalg.Matrix) {
	for i := range min(dst.Rows, src.Rows) {
		row := dst.RowF32(i)
		for j := range min(dst.Cols, src.Cols) {
			row[j] = float32(src.At(i, j))
		}
	}
}

// config is that of the result: modules by the names of all adapters where names say which they are, otherwise
// by their paths.
func (c *combiner) config() adapter.Config {
	first := c.list[0].Adapter.Config
	r := adapter.Config{
		Kind: adapter.LoRA, Base: first.Base, TaskType: first.TaskType, Rank: c.rank,
		Alpha: float64(c.rank), Biases: adapter.NoBias, Init: "true",
	}
	r.KeepZeros = first.KeepZeros // of all
	if !slices.ContainsFunc(c.list, func(n Named) bool { return n.Adapter.Config.BaseHash != first.BaseHash }) {
		r.BaseHash = first.BaseHash
	}

	for _, n := range c.list {
		s := n.Adapter.Config
		if len(s.Targets.Names) == 0 || !s.Exclude.IsZero() || s.Layers != nil || len(s.WholeModules) > 0 {
			r.Targets.Names = nil
			for _, m := range c.paths {
				r.Targets.Names = append(r.Targets.Names, m.Path)
			}
			return r
		}

		for _, name := range s.Targets.Names {
			if !slices.Contains(r.Targets.Names, name) {
				r.Targets.Names = append(r.Targets.Names, name)
			}
		}
	}

	slices.Sort(r.Targets.Names)
	return r
}

// along are the tables that adapters have saved along; they are the base's, so one copy is enough.
func (c *combiner) along() []*adapter.Whole {
	var list []*adapter.Whole
	for _, n := range c.list {
		for _, w := range n.Adapter.Whole {
			if !slices.ContainsFunc(list, func(x *adapter.Whole) bool { return x.Key == w.Key }) {
				list = append(list, w)
			}
		}
	}
	return list
}

// Cut gives an adapter of a smaller rank: the best approximation of every module's change. The errors are those
// of [Run].
func Cut(ctx context.Context, n Named, rank, threads int) (*Result, error) {
	o := Options{Method: "svd", Rank: rank, Threads: threads}
	c, err := newCombiner([]Named{n}, o)
	if err != nil {
		return nil, err
	}

	if err := combinable(n); err != nil {
		return nil, err
	}
	if err := c.modules(); err != nil {
		return nil, err
	}

	// One adapter alone is combined linearly; here it is cut all the same.
	c.rank = rank
	if c.method, err = lookup(o.Method); err != nil {
		return nil, err
	}

	r, err := c.run(ctx)
	if err != nil {
		return nil, err
	}

	r.Exact = false
	return r, nil
}
