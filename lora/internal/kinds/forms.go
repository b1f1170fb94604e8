// Package kinds makes adapters of every kind for a base model: the right parameters for its modules, and their
// start values.
package kinds

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// Base is what adapters need to know of the model that they are made for.
type Base interface {
	// Modules lists its matrices.
	Modules() []adapter.Module
	// Shapes gives every parameter's name and shape, in its order.
	Shapes() ([]string, map[string][]int64)
	// Values reads a parameter in F32, [1, n] where it has one dimension.
	Values(name string) (kernels.Mat, error)
}

// Empty makes an adapter of zeros for the modules that a configuration chooses; lists of shards are missing.
func Empty(c adapter.Config, base Base) (*adapter.Adapter, error) { return empty(c, base, false) }

func empty(c adapter.Config, base Base, trains bool) (*adapter.Adapter, error) {
	if err := check(&c); err != nil {
		return nil, err
	}

	a := &adapter.Adapter{Config: c}
	chosen, err := c.Chosen(base.Modules())
	if err != nil {
		return nil, err
	}

	if chosen, err = tie(&c, chosen, base.Modules()); err != nil {
		return nil, err
	}
	if err := need(&c, chosen, trains); err != nil {
		return nil, err
	}
	if a.Low, err = low(&c, chosen); err != nil {
		return nil, err
	}
	if err := extras(a, base); err != nil {
		return nil, err
	}

	return a, a.Tie(base.Modules())
}

func check(c *adapter.Config) error {
	switch {
	case c.Rank < 1 || c.Rank > 1<<20:
		return fmt.Errorf("%w: rank %d is not between 1 and %d", adapter.ErrConfig, c.Rank, 1<<20)
	case !(c.Alpha > 0) || math.IsInf(c.Alpha, 0):
		return fmt.Errorf("%w: alpha %g is not a positive number", adapter.ErrConfig, c.Alpha)
	case !(c.Dropout >= 0 && c.Dropout < 1):
		return fmt.Errorf("%w: dropout %g is not in [0, 1)", adapter.ErrConfig, c.Dropout)
	case c.Kind != adapter.LoRA && (c.DoRA || c.OutputBias || len(c.RankPattern)+len(c.AlphaPattern) > 0):
		return fmt.Errorf("%w: DoRA, output biases and patterns of ranks go with kind lora, not %s", adapter.ErrConfig,
			c.Kind)
	case c.Kind != adapter.LoRA && c.Tying:
		return fmt.Errorf("%w: ensure_weight_tying goes with kind lora, not %s", adapter.ErrConfig, c.Kind)
	case c.DoRA && c.KeepZeros:
		return fmt.Errorf("%w: DoRA divides by norms of the whole change, of which keep_zeros leaves a part",
			adapter.ErrConfig)
	case c.RSLoRA && slices.Contains([]adapter.Kind{adapter.VeRA, adapter.MiSS, adapter.SHiRA, adapter.RaSA}, c.Kind):
		return fmt.Errorf("%w: kind %s has no scale", adapter.ErrConfig, c.Kind)
	case c.RSLoRA && c.Kind == adapter.GraLoRA:
		return fmt.Errorf("%w: GraLoRA's scale is alpha by all ranks, not by their root", adapter.ErrConfig)
	case c.Kind == adapter.SHiRA && c.Biases != "" && c.Biases != adapter.NoBias:
		return fmt.Errorf("%w: biases are not trained with SHiRA, whose form in PEFT has none", adapter.ErrConfig)
	case c.Kind == adapter.SHiRA && c.Dropout > 0:
		return fmt.Errorf("%w: SHiRA has no dropout", adapter.ErrConfig)
	}

	return nil
}

// tie replaces a head that follows its table by the table, whose change [adapter.Adapter.Tie] makes that of both.
func tie(c *adapter.Config, chosen, modules []adapter.Module) ([]adapter.Module, error) {
	if !c.Tying {
		return chosen, nil
	}

	head := slices.IndexFunc(modules, func(m adapter.Module) bool { return m.Tied })
	if head < 0 {
		return nil, fmt.Errorf("%w: ensure_weight_tying: the head is not the token table", adapter.ErrTarget)
	}

	ends := func(m adapter.Module) bool {
		return slices.ContainsFunc(c.WholeModules, func(want string) bool { return strings.HasSuffix(m.Path, want) })
	}
	target := func(m adapter.Module) bool { return m.Table || m.Tied }
	if !slices.ContainsFunc(chosen, target) &&
		!slices.ContainsFunc(modules, func(m adapter.Module) bool { return target(m) && ends(m) }) {
		return nil, fmt.Errorf("%w: ensure_weight_tying: neither targets nor modules_to_save name the token "+
			"table or the head", adapter.ErrTarget)
	}
	if !slices.ContainsFunc(chosen, target) {
		return chosen, nil
	}

	table := slices.IndexFunc(modules, func(m adapter.Module) bool { return m.Table })
	chosen = slices.DeleteFunc(slices.Clone(chosen), target)
	return append([]adapter.Module{modules[table]}, chosen...), nil
}

func low(c *adapter.Config, chosen []adapter.Module) ([]*adapter.Low, error) {
	if err := linearOnly(c, chosen); err != nil {
		return nil, err
	}

	switch c.Kind {
	case adapter.LoRA:
		return plain(c, chosen)
	case adapter.MoS:
		_, list, err := mos.Build(c, chosen)
		return list, err
	case adapter.VeRA:
		return vectors(c, chosen)
	case adapter.PRoLoRA:
		return rotations(c, chosen)
	case adapter.MiSS:
		return sums(c, chosen)
	case adapter.GraLoRA:
		return grains(c, chosen)
	case adapter.SHiRA:
		return elements(c, chosen)
	case adapter.RaSA:
		return pools(c, chosen)
	case adapter.Share:
		return shares(c, chosen)
	}

	return nil, fmt.Errorf("%w: kind %.100q; known: lora, mos, vera, prolora, miss, gralora, shira, rasa, share",
		adapter.ErrConfig, c.Kind)
}

// Low makes the change of one module, of zeros, by a configuration whose sizes fit it.
func Low(c *adapter.Config, m adapter.Module) (*adapter.Low, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	list, err := low(c, []adapter.Module{m})
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// plain makes LoRA's factors.
func plain(c *adapter.Config, chosen []adapter.Module) ([]*adapter.Low, error) {
	of, err := c.RankAlpha()
	if err != nil {
		return nil, err
	}

	var list []*adapter.Low
	for _, m := range chosen {
		r, alpha := of(m.Path)
		if err := bounded(r, m.In, m.Out); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path, err)
		}

		name := func(side string) string {
			if m.Table {
				return m.Path + ".lora_embedding_" + side
			}
			return m.Path + ".lora_" + side + ".weight"
		}

		l := &adapter.Low{
			Module: m, Rank: r, Alpha: alpha, Scale: c.ScaleOf(r, alpha),
			Factors: adapter.Plain{A: adapter.NewFactor(name("A"), r, m.In), B: adapter.NewFactor(name("B"), m.Out, r)},
		}

		if c.OutputBias && !m.Table {
			l.Bias = adapter.NewParam(m.Path+".lora_B.bias", 1, m.Out)
		}
		if c.DoRA {
			l.Magnitude = adapter.NewParam(m.Path+".lora_magnitude_vector", 1, m.Out)
		}

		list = append(list, l)
	}

	return list, nil
}

// extras adds the tensors that are trained whole, and copies them from the base.
func extras(a *adapter.Adapter, base Base) error {
	c := &a.Config
	names, shapes := base.Shapes()
	add := func(tensor, key string, shape []int64) error {
		for _, w := range a.Whole {
			if w.Key == key {
				return nil
			}
		}

		v, err := base.Values(tensor)
		if err != nil {
			return err
		}

		p := adapter.NewParam(key, v.Rows, v.Cols)
		copy(p.Data(), v.Buf.F32()[v.Off:v.Off+v.Len()])
		a.Whole = append(a.Whole, &adapter.Whole{Tensor: tensor, Key: key, Value: p, Shape: shape})

		return nil
	}

	for _, want := range c.WholeModules {
		hit := false
		for _, n := range names {
			key := adapter.KeyOf(base.Modules(), n)
			if !strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(key, ".weight"), ".bias"), want) {
				continue
			}

			hit = true
			if err := add(n, key, shapes[n]); err != nil {
				return err
			}
		}

		for _, m := range base.Modules() {
			if m.Tied && strings.HasSuffix(m.Path, want) {
				hit = true
				if err := add(m.Tensor, adapter.TiedHead, shapes[m.Tensor]); err != nil {
					return err
				}
				a.Whole[len(a.Whole)-1].Tensor = adapter.TiedHead
			}
		}

		if !hit {
			return fmt.Errorf("%w: modules_to_save: %.200q matches no module", adapter.ErrTarget, want)
		}
	}

	return biases(a, base, add)
}

// biases adds the biases that a configuration trains.
func biases(a *adapter.Adapter, base Base, add func(tensor, key string, shape []int64) error) error {
	c := &a.Config
	names, shapes := base.Shapes()

	switch c.Biases {
	case "", adapter.NoBias:
		return nil
	case adapter.LoRABias, adapter.AllBias:
	default:
		return fmt.Errorf("%w: bias %.100q; known: none, all, lora_only", adapter.ErrConfig, c.Biases)
	}

	adapted := map[string]bool{}
	for _, l := range a.Low {
		adapted[l.Module.Bias] = true
	}

	for _, n := range names {
		if !strings.HasSuffix(n, "bias") || c.Biases == adapter.LoRABias && !adapted[n] {
			continue
		}
		if err := add(n, adapter.KeyOf(base.Modules(), n), shapes[n]); err != nil {
			return err
		}
	}

	return nil
}

// New makes an adapter that changes nothing yet, ready to be trained.
func New(c adapter.Config, base Base, seed uint64) (*adapter.Adapter, error) {
	if c.Kind == adapter.VeRA {
		c.VeRA.Seed = seed
	}

	a, err := empty(c, base, true)
	if err != nil {
		return nil, err
	}

	switch c.Kind {
	case adapter.VeRA:
		startVectors(&a.Config, a.Low)
	case adapter.MoS:
		for _, p := range mos.Pools(a) {
			if err := p.Draw(seed, c.MoS.Sampling, c.MoS.PairDissociation); err != nil {
				return nil, err
			}
			start(p.A, seed, p.In)
		}
	case adapter.PRoLoRA:
		for _, l := range a.Low {
			r := l.Factors.(Rotated)
			start(r.A, seed, l.Module.In)
			if r.OwnA != nil {
				start(r.OwnA, seed, l.Module.In)
			}
		}
	case adapter.GraLoRA:
		for _, l := range a.Low {
			g := l.Factors.(Granular)
			start(g.A, seed, l.Module.In/g.K)
			if g.OwnA != nil {
				start(g.OwnA, seed, l.Module.In)
			}
		}
	case adapter.RaSA:
		startPools(&a.Config, a.Low, seed)
	case adapter.Share:
		for _, l := range a.Low { // of factors in common once for each block, with the same numbers
			start(l.Factors.(Shared).A, seed, l.Module.In)
		}
	case adapter.MiSS: // D begins at zero
	case adapter.SHiRA: // values begin at zero
		return a, place(a, base, seed)
	default:
		for _, l := range a.Low {
			if _, follows := l.Factors.(adapter.Twin); follows {
				continue
			}
			if err := startPlain(l, base, seed); err != nil {
				return nil, err
			}
		}
	}

	return a, nil
}

// start samples a factor uniformly within 1/√in: Kaiming's rule with a = √5 for an assembled row, whatever the
// width of its pieces. B stays zero.
func start(p *adapter.Param, seed uint64, in int) {
	rng.New(seed, p.Name).FillUniform(p.Data(), 1/math.Sqrt(float64(in)))
}

// startPlain starts LoRA's factors. A token table has A = 0 and B normal instead; magnitudes are the base's norms.
func startPlain(l *adapter.Low, base Base, seed uint64) error {
	f := l.Factors.(adapter.Plain)
	if l.Module.Table {
		rng.New(seed, f.B.Name).FillNormal(f.B.Data(), 1)
	} else {
		start(f.A, seed, l.Module.In)
	}

	if l.Magnitude == nil {
		return nil
	}

	w, err := base.Values(l.Module.Tensor)
	if err != nil {
		return err
	}

	Norms(l.Magnitude.Data(), w, l.Module.Transposed || l.Module.Table)
	return nil
}

// Norms writes the L2 norm of every row of w, or of every column.
func Norms(dst []float32, w kernels.Mat, columns bool) {
	sums := make([]float64, len(dst))
	for i := range w.Rows {
		for j, v := range w.RowF32(i) {
			at := i
			if columns {
				at = j
			}
			sums[at] += float64(v) * float64(v)
		}
	}

	for i, s := range sums {
		dst[i] = float32(math.Sqrt(s))
	}
}
