package kinds

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// small is a base of two blocks, a token table and a head, with random numbers.
type small struct {
	modules []adapter.Module
	values  map[string]kernels.Mat
	tied    bool
}

func newSmall(tied bool) *small {
	s := &small{modules: llama(2, 8, 4, 12), values: map[string]kernels.Mat{}, tied: tied}
	for i := range s.modules {
		if strings.HasSuffix(s.modules[i].Path, "q_proj") {
			s.modules[i].Bias = s.modules[i].Path + ".bias"
		}
		s.modules[i].Transposed = strings.HasSuffix(s.modules[i].Path, "up_proj")
	}

	s.modules = append(s.modules,
		adapter.Module{
			Path: "model.embed_tokens", Tensor: "model.embed_tokens.weight", Block: -1, Expert: -1, In: 20, Out: 8,
			Role: arch.Embed, Table: true,
		})
	head := adapter.Module{
		Path: "lm_head", Tensor: "lm_head.weight", Block: -1, Expert: -1, In: 8, Out: 20, Role: arch.Head, Tied: tied,
	}
	if tied {
		head.Tensor = "model.embed_tokens.weight"
	}
	s.modules = append(s.modules, head)

	random := rand.New(rand.NewPCG(2, 3))
	for _, m := range s.modules {
		rows, cols := m.Out, m.In
		if m.Transposed || m.Table {
			rows, cols = cols, rows
		}
		if !m.Tied {
			s.values[m.Tensor] = random2(random, rows, cols)
		}
		if m.Bias != "" {
			s.values[m.Bias] = random2(random, 1, m.Out)
		}
	}
	s.values["model.norm.weight"] = random2(random, 1, 8)

	return s
}

func random2(random *rand.Rand, rows, cols int) kernels.Mat {
	m := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	for i := range m.Buf.F32() {
		m.Buf.F32()[i] = float32(random.NormFloat64())
	}
	return m
}

// Modules implements [Base].
func (s *small) Modules() []adapter.Module { return s.modules }

// Shapes implements [Base].
func (s *small) Shapes() ([]string, map[string][]int64) {
	shapes := map[string][]int64{}
	var names []string
	for n, v := range s.values {
		names = append(names, n)
		shapes[n] = []int64{int64(v.Rows), int64(v.Cols)}
		if v.Rows == 1 {
			shapes[n] = shapes[n][1:]
		}
	}
	slices.Sort(names)
	return names, shapes
}

// Values implements [Base].
func (s *small) Values(name string) (kernels.Mat, error) {
	v, ok := s.values[name]
	if !ok {
		return v, adapter.ErrBase
	}
	return v, nil
}

// configs are adapters of every kind for the small base.
func configs() map[string]adapter.Config {
	all := adapter.Match{All: true}
	list := map[string]adapter.Config{
		"lora": {Kind: adapter.LoRA, Targets: all},
		"lora with everything": {
			Kind: adapter.LoRA, DoRA: true, OutputBias: true, RSLoRA: true,
			Targets:     adapter.Match{Names: []string{"q_proj", "up_proj", "embed_tokens", "lm_head"}},
			RankPattern: []adapter.Pattern{{Key: "0.*q_proj", Value: 5}, {Key: "q_proj", Value: 1}},
		},
		"mos": {Kind: adapter.MoS, Targets: all, MoS: adapter.MoSConfig{
			EquivalentRank: 3, Shards: 2, Private: 1, PairDissociation: true, Sampling: adapter.Balanced,
		}},
		"mos, paired": {Kind: adapter.MoS, Targets: all, MoS: adapter.MoSConfig{
			EquivalentRank: 2, Shards: 4, Sampling: adapter.Official,
		}},
		"vera": {Kind: adapter.VeRA, Targets: all, VeRA: adapter.VeRAConfig{DInitial: 0.1}},
		"prolora": {Kind: adapter.PRoLoRA, Targets: all, PRoLoRA: adapter.PRoLoRAConfig{
			Unshared: 1, InParts: 3, OutParts: 2,
		}},
		"prolora, all shared": {Kind: adapter.PRoLoRA, Targets: all, PRoLoRA: adapter.PRoLoRAConfig{
			InParts: 2, OutParts: 1,
		}},
		"rasa":             {Kind: adapter.RaSA, Targets: all, RaSA: adapter.RaSAConfig{Shared: 1}},
		"rasa, pool alone": {Kind: adapter.RaSA, Targets: all, RaSA: adapter.RaSAConfig{Shared: 4}},
		"share a":          {Kind: adapter.Share, Targets: all, Share: adapter.ShareA},
		"share b":          {Kind: adapter.Share, Targets: all, Share: adapter.ShareB},
		"share both":       {Kind: adapter.Share, Targets: all, Share: adapter.ShareBoth},
	}
	for name, c := range list {
		c.Rank = 4
		c.Alpha = 8
		list[name] = c
	}
	return list
}

// TestScatter: Scatter is the transpose of Assemble's derivative. The factors of every kind are linear in each single
// parameter, so the derivative by an element is what a step of 1 changes, exactly but for rounding.
func TestScatter(t *testing.T) {
	for name, c := range configs() {
		a, err := New(c, newSmall(false), 3)
		if err != nil {
			t.Fatal(name, err)
		}

		random := rand.New(rand.NewPCG(1, 9))
		for _, p := range a.Params() {
			copy(p.Data(), random2(random, p.Value.Rows, p.Value.Cols).Buf.F32())
		}

		for _, l := range a.Low[:4] {
			for _, p := range a.Params() {
				p.Clear()
			}
			da, dbt := random2(random, l.Rank, l.Module.In), random2(random, l.Rank, l.Module.Out)
			l.Scatter(da, dbt)

			value := func() float64 {
				x, y := random2(random, l.Rank, l.Module.In), random2(random, l.Rank, l.Module.Out)
				l.Assemble(x, y)
				return inner(x, da) + inner(y, dbt)
			}

			for _, p := range l.Parameters() {
				if p.Frozen {
					continue
				}
				for k := 0; k < len(p.Data()); k += 3 {
					was := p.Data()[k]
					before := value()
					p.Data()[k]++
					want := value() - before
					p.Data()[k] = was

					if got := float64(p.Grad.Buf.F32()[k]); math.Abs(got-want) > 1e-5*(1+math.Abs(want)) {
						t.Fatalf("%s: %s: element %d of %s: gradient %g, want %g", name, l.Module.Path, k, p.Name, got,
							want)
					}
				}
			}
		}
	}
}

func inner(a, b kernels.Mat) float64 {
	s := 0.0
	for i, v := range a.Buf.F32() {
		s += float64(v) * float64(b.Buf.F32()[i])
	}
	return s
}

// TestRotated: copy c of row j of a factor is the narrow row (j + c·stride) mod rows, the last one cut where the parts
// do not divide the channels; unshared ranks stand behind, as they are.
func TestRotated(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	const in, out = 8, 5
	r := Rotated{InParts: 3, OutParts: 2}
	for _, p := range []struct {
		at         **adapter.Param
		rows, cols int
	}{{&r.A, 4, 3}, {&r.B, 4, 3}, {&r.OwnA, 1, in}, {&r.OwnB, 1, out}} {
		*p.at = adapter.NewParam("p", p.rows, p.cols)
		copy((*p.at).Data(), random2(random, p.rows, p.cols).Buf.F32())
	}

	a, bt := random2(random, 5, in), random2(random, 5, out)
	r.Assemble(a, bt)
	for j := range 4 {
		for i := range in {
			if want := r.A.Value.RowF32((j + i/3*1) % 4)[i%3]; a.RowF32(j)[i] != want {
				t.Errorf("A[%d,%d] is %g, want %g", j, i, a.RowF32(j)[i], want)
			}
		}
		for i := range out {
			if want := r.B.Value.RowF32((j + i/3*2) % 4)[i%3]; bt.RowF32(j)[i] != want {
				t.Errorf("B[%d,%d] is %g, want %g", j, i, bt.RowF32(j)[i], want)
			}
		}
	}
	if !slices.Equal(a.RowF32(4), r.OwnA.Data()) || !slices.Equal(bt.RowF32(4), r.OwnB.Data()) {
		t.Error("the unshared rank is not as it was")
	}
}

// TestNew: a new adapter of any kind changes nothing, has as many parameters as were counted beforehand, depends on the
// seed alone, and starts within the bounds of its rule.
func TestNew(t *testing.T) {
	for name, c := range configs() {
		base := newSmall(false)
		a, err := New(c, base, 3)
		if err != nil {
			t.Fatal(name, err)
		}

		again, err := New(c, base, 3)
		if err != nil {
			t.Fatal(name, err)
		}

		other, err := New(c, base, 4)
		if err != nil {
			t.Fatal(name, err)
		}

		differs := false
		for i, p := range a.Params() {
			if !slices.Equal(p.Data(), again.Params()[i].Data()) {
				t.Errorf("%s: %s is another one with the same seed", name, p.Name)
			}
			differs = differs || !slices.Equal(p.Data(), other.Params()[i].Data())
		}
		if !differs {
			t.Errorf("%s: another seed changes nothing", name)
		}

		trained, all := int64(0), int64(0)
		for _, p := range a.Params() {
			all += int64(p.Value.Len())
		}
		trained = a.Count()
		n, err := Trainable(&c, base.Modules())
		if err != nil || n != trained {
			t.Errorf("%s: %d trained parameters, counted %d (%v)", name, trained, n, err)
		}
		if n, err := Elements(&c, base.Modules()); err != nil || n != all {
			t.Errorf("%s: %d parameters, counted %d (%v)", name, all, n, err)
		}

		for _, l := range a.Low {
			checkStart(t, name, l, base)
		}
	}
}

// checkStart looks at the start of one module.
func checkStart(t *testing.T, name string, l *adapter.Low, base *small) {
	t.Helper()
	x, y := l.Pair()
	zero := func(m kernels.Mat) bool {
		return !slices.ContainsFunc(m.Buf.F32(), func(v float32) bool { return v != 0 })
	}

	if !zero(x) && !zero(y) {
		t.Errorf("%s: %s changes the base", name, l.Module.Path)
	}
	if zero(x) && zero(y) {
		t.Errorf("%s: %s can never learn: both factors are zero", name, l.Module.Path)
	}
	if _, frozen := l.Factors.(Vector); !l.Module.Table && !frozen {
		bound := float32(1 / math.Sqrt(float64(l.Module.In)))
		if p, weighed := l.Factors.(Pooled); weighed {
			bound *= slices.Max(p.D.Data())
		}
		if top := max(slices.Max(x.Buf.F32()), -slices.Min(x.Buf.F32())); top > bound || top < bound/2 {
			t.Errorf("%s: %s starts with up to %g, the bound is %g", name, l.Module.Path, top, bound)
		}
	}

	if l.Magnitude == nil {
		return
	}
	w := base.values[l.Module.Tensor]
	for o, m := range l.Magnitude.Data() {
		square := 0.0
		for i := range l.Module.In {
			v := float64(0)
			if l.Module.Transposed || l.Module.Table {
				v = float64(w.RowF32(i)[o])
			} else {
				v = float64(w.RowF32(o)[i])
			}
			square += v * v
		}
		if math.Abs(float64(m)-math.Sqrt(square)) > 1e-6*math.Sqrt(square) {
			t.Errorf("%s: magnitude %d of %s is %g, the norm %g", name, o, l.Module.Path, m, math.Sqrt(square))
		}
	}
}

// TestPools: RaSA's blocks have r-k ranks of their own and one pool for each kind of projection, half of alpha for
// either; ShareLoRA's have in common what they are to have, and nothing else.
func TestPools(t *testing.T) {
	list := configs()
	a, err := New(list["rasa"], newSmall(false), 1)
	if err != nil {
		t.Fatal(err)
	}

	first, second := a.Find("model.layers.0.mlp.up_proj"), a.Find("model.layers.1.mlp.up_proj")
	x, y := first.Factors.(Pooled), second.Factors.(Pooled)
	if x.SharedA != y.SharedA || x.SharedB != y.SharedB || x.OwnA == y.OwnA || x.D == y.D {
		t.Error("the pool is not what the blocks have in common")
	}
	if a.Find("model.layers.0.mlp.gate_proj").Factors.(Pooled).SharedA == x.SharedA {
		t.Error("two kinds of projections have one pool")
	}
	// Rank 4, of which one is shared by two blocks; alpha is 8.
	if want := []float32{4. / 3, 4. / 3, 4. / 3, 2, 2}; first.Rank != 5 || first.Scale != 1 ||
		!slices.Equal(x.D.Data(), want) {
		t.Errorf("rank %d, scale %g, weights %v", first.Rank, first.Scale, x.D.Data())
	}

	for name, common := range map[string][2]bool{
		"share a": {true, false}, "share b": {false, true}, "share both": {true, true},
	} {
		a, err := New(list[name], newSmall(false), 1)
		if err != nil {
			t.Fatal(err)
		}
		x, y := a.Low[0].Factors.(Shared), a.Low[7].Factors.(Shared)
		if got := [2]bool{x.A == y.A, x.B == y.B}; got != common || a.Low[0].Module.Role != a.Low[7].Module.Role {
			t.Errorf("%s: A and B in common: %v", name, got)
		}
	}

	for _, c := range []adapter.Config{
		{Kind: adapter.RaSA, Rank: 2, Alpha: 1, Targets: list["rasa"].Targets, RaSA: adapter.RaSAConfig{Shared: 3}},
		{Kind: adapter.RaSA, Rank: 2, Alpha: 1, Targets: list["rasa"].Targets},
		{Kind: adapter.Share, Rank: 2, Alpha: 1, Targets: list["rasa"].Targets, Share: "c"},
	} {
		if _, err := New(c, newSmall(false), 1); !errors.Is(err, adapter.ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestShared: VeRA's frozen factors are one pair for all modules; shards of a pool belong to all blocks.
func TestShared(t *testing.T) {
	list := configs()
	a, err := New(list["vera"], newSmall(false), 1)
	if err != nil {
		t.Fatal(err)
	}

	first := a.Low[0].Factors.(Vector)
	for _, l := range a.Low {
		if v := l.Factors.(Vector); v.Down != first.Down || v.Up != first.Up || !v.Down.Frozen || !v.Up.Frozen {
			t.Errorf("%s has frozen factors of its own", l.Module.Path)
		}
	}

	if a, err = New(list["mos"], newSmall(false), 1); err != nil {
		t.Fatal(err)
	}
	if n := len(mos.Pools(a)); n != 7 {
		t.Errorf("%d pools for 7 kinds of matrices", n)
	}
}

// TestTied: with ensure_weight_tying the head's factors are the table's, the other way round, whichever of the two is
// named.
func TestTied(t *testing.T) {
	for _, target := range []string{"embed_tokens", "lm_head"} {
		c := adapter.Config{
			Kind: adapter.LoRA, Rank: 2, Alpha: 2, Tying: true,
			Targets: adapter.Match{Names: []string{target, "q_proj"}},
		}
		a, err := New(c, newSmall(true), 1)
		if err != nil {
			t.Fatal(target, err)
		}

		table, head := a.Find("model.embed_tokens"), a.Find("lm_head")
		if table == nil || head == nil {
			t.Fatalf("%s: %v and %v", target, table, head)
		}

		x, y := table.Pair()
		v, w := head.Pair()
		for r := range 2 {
			for i := range 20 {
				if x.RowF32(r)[i] != w.RowF32(i)[r] {
					t.Fatalf("%s: the head's B is not the table's A", target)
				}
			}
			for o := range 8 {
				if y.RowF32(o)[r] != v.RowF32(r)[o] {
					t.Fatalf("%s: the head's A is not the table's B", target)
				}
			}
		}
		if a.Count() != 2*(20+8)+2*2*(8+8) {
			t.Errorf("%s: %d parameters", target, a.Count())
		}
	}
}

// TestWhole: tensors that are trained whole start as the base's, in copies, each once, by the names of their modules; a
// tied head is called by its own.
func TestWhole(t *testing.T) {
	base := newSmall(true)
	c := adapter.Config{
		Kind: adapter.LoRA, Rank: 2, Alpha: 2, Targets: adapter.Match{Names: []string{"q_proj"}},
		WholeModules: []string{"norm", "lm_head", "k_proj", "0.self_attn.k_proj"}, Biases: adapter.LoRABias,
	}
	a, err := New(c, base, 1)
	if err != nil {
		t.Fatal(err)
	}

	var keys []string
	for _, w := range a.Whole {
		keys = append(keys, w.Key)
		from := w.Tensor
		if w.Head() {
			from = "model.embed_tokens.weight"
		}
		if !slices.Equal(w.Value.Data(), base.values[from].Buf.F32()) {
			t.Errorf("%s does not start as the base's", w.Key)
		}
		w.Value.Data()[0]++
		if slices.Equal(w.Value.Data(), base.values[from].Buf.F32()) {
			t.Errorf("%s is the base's own memory", w.Key)
		}
	}

	slices.Sort(keys)
	want := []string{
		"lm_head.weight", "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.q_proj.bias",
		"model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.q_proj.bias", "model.norm.weight",
	}
	if !slices.Equal(keys, want) {
		t.Errorf("%q, want %q", keys, want)
	}
}

// TestRefused: settings that no adapter can have, each by its own kind of error.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *adapter.Config)
		want   error
	}{
		"no rank":          {func(c *adapter.Config) { c.Rank = 0 }, adapter.ErrConfig},
		"a vast rank":      {func(c *adapter.Config) { c.Rank = 1 << 21 }, adapter.ErrConfig},
		"no alpha":         {func(c *adapter.Config) { c.Alpha = 0 }, adapter.ErrConfig},
		"infinite alpha":   {func(c *adapter.Config) { c.Alpha = math.Inf(1) }, adapter.ErrConfig},
		"dropout of all":   {func(c *adapter.Config) { c.Dropout = 1 }, adapter.ErrConfig},
		"no number":        {func(c *adapter.Config) { c.Dropout = math.NaN() }, adapter.ErrConfig},
		"another kind":     {func(c *adapter.Config) { c.Kind = "x" }, adapter.ErrConfig},
		"another bias":     {func(c *adapter.Config) { c.Biases = "some" }, adapter.ErrConfig},
		"DoRA and zeros":   {func(c *adapter.Config) { c.DoRA, c.KeepZeros = true, true }, adapter.ErrConfig},
		"VeRA with DoRA":   {func(c *adapter.Config) { c.Kind, c.DoRA = adapter.VeRA, true }, adapter.ErrConfig},
		"VeRA with scale":  {func(c *adapter.Config) { c.Kind, c.RSLoRA = adapter.VeRA, true }, adapter.ErrConfig},
		"MoS that is tied": {func(c *adapter.Config) { c.Kind, c.Tying = adapter.MoS, true }, adapter.ErrConfig},
		"no target":        {func(c *adapter.Config) { c.Targets.Names = []string{"x"} }, adapter.ErrTarget},
		"no whole module":  {func(c *adapter.Config) { c.WholeModules = []string{"x"} }, adapter.ErrTarget},
		"tied, untied":     {func(c *adapter.Config) { c.Tying = true }, adapter.ErrTarget},
		"all unshared": {func(c *adapter.Config) {
			c.Kind = adapter.PRoLoRA
			c.PRoLoRA = adapter.PRoLoRAConfig{Unshared: 2, InParts: 1, OutParts: 1}
		}, adapter.ErrConfig},
		"too many parts": {func(c *adapter.Config) {
			c.Kind = adapter.PRoLoRA
			c.PRoLoRA = adapter.PRoLoRAConfig{InParts: 100, OutParts: 1}
		}, adapter.ErrConfig},
		"more memory than there is": {func(c *adapter.Config) {
			c.Rank = 1 << 20
			c.Targets = adapter.Match{Names: []string{"embed_tokens"}}
			c.RankPattern = []adapter.Pattern{{Key: "embed_tokens", Value: 1 << 38}}
		}, adapter.ErrConfig},
	} {
		cfg := adapter.Config{Kind: adapter.LoRA, Rank: 2, Alpha: 2, Targets: adapter.Match{Names: []string{"q_proj"}}}
		c.change(&cfg)
		if _, err := New(cfg, newSmall(false), 1); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
