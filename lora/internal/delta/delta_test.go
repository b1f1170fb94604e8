package delta

import (
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
)

// open loads one of the package's small bases: gpt2's matrices are stored [in, out] and have biases, llama's head is a
// matrix of its own, that of llamatied is the token table.
func open(t *testing.T, name string) *lm.Model {
	t.Helper()
	return load(t, filepath.Join("..", "..", "testdata", "peft", "base-"+name))
}

func load(t *testing.T, dir string) *lm.Model {
	t.Helper()
	dev := device.Complete(cpu.New(cpu.Options{Threads: 2}))
	m, err := lm.Load(t.Context(), dir, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); dev.Close() })
	return m
}

// ids are sequences for the bases, whose vocabularies are 31 tokens or more and whose positions 16.
var ids = [][]int32{{3, 1, 4, 1, 5, 9, 2, 6}, {5, 3, 5, 8}, {9}}

// adapted is an adapter with random numbers.
type adapted struct {
	*adapter.Adapter
	random *rand.Rand
}

func (a *adapted) param(name string, rows, cols int, mean, std float64) *adapter.Param {
	p := adapter.NewParam(name, rows, cols)
	for i := range p.Data() {
		p.Data()[i] = float32(mean + std*a.random.NormFloat64())
	}
	return p
}

// choice says what an adapter of these tests has.
type choice struct {
	base    string
	rank    int
	targets []string // ends of paths
	dora    bool
	bias    bool
	zeros   bool
	whole   string // a tensor that is replaced
	rows    []int32
}

// make makes the adapter, and where it keeps zeros puts some into the base.
func (c choice) make(t *testing.T, m *lm.Model) *adapted {
	t.Helper()
	a := &adapted{Adapter: &adapter.Adapter{}, random: rand.New(rand.NewPCG(uint64(c.rank), 5))}
	a.Config = adapter.Config{Kind: adapter.LoRA, Rank: c.rank, KeepZeros: c.zeros, DoRA: c.dora}

	modules, err := adapter.ModulesOf(m)
	if err != nil {
		t.Fatal(err)
	}

	for _, mod := range modules {
		if mod.Table && c.rows != nil {
			a.Rows = append(a.Rows, &adapter.Rows{
				Module: mod, IDs: c.rows, Value: a.param("rows", len(c.rows), mod.Out, 0, 0.5),
			})
		}
		if !slices.ContainsFunc(c.targets, func(s string) bool { return strings.HasSuffix(mod.Path, s) }) {
			continue
		}

		l := &adapter.Low{Module: mod, Rank: c.rank, Alpha: 3, Scale: 1.5, Factors: adapter.Plain{
			A: a.param(mod.Path+".A", c.rank, mod.In, 0, 0.3), B: a.param(mod.Path+".B", mod.Out, c.rank, 0, 0.3),
		}}
		if c.dora {
			l.Magnitude = a.param(mod.Path+".m", 1, mod.Out, 1, 0.3)
		}
		if c.bias {
			l.Bias = a.param(mod.Path+".bias", 1, mod.Out, 0, 0.3)
		}
		a.Low = append(a.Low, l)
	}

	if c.whole != "" {
		v, err := m.Param(c.whole)
		if err != nil {
			t.Fatal(err)
		}
		a.Whole = append(a.Whole, &adapter.Whole{
			Tensor: c.whole, Key: c.whole,
			Value: a.param(c.whole, v.Rows, v.Cols, 0.5, 0.5),
		})
	}

	return a
}

// prune puts zeros into the matrices of a model: every third element.
func prune(t *testing.T, m *lm.Model) {
	t.Helper()
	for l := range m.Blocks() {
		for _, lin := range m.Linears(l) {
			v, err := m.MutableParam(lin.Name)
			if err != nil {
				t.Fatal(err)
			}
			for i := range v.Rows {
				for j := range v.Cols {
					if (i+j)%3 == 0 {
						v.RowF32(i)[j] = 0
					}
				}
			}
			v.Buf.Changed()
		}
	}
}

// side is how an element of a matrix is found whichever way it is stored.
func side(mod adapter.Module, x kernels.Mat) func(o, i int) *float32 {
	if mod.Transposed || mod.Table {
		return func(o, i int) *float32 { return &x.RowF32(i)[o] }
	}
	return func(o, i int) *float32 { return &x.RowF32(o)[i] }
}

// change is what an adapter makes of one matrix, by its formula, in float64.
type change struct {
	low  *adapter.Low
	a, b func(r, k int) float64
	sum  [][]float64 // W + sBA where that may change
	norm []float64   // of its rows, with DoRA
	open [][]bool    // may change
}

// fold writes an adapter into a model's weights.
func (a *adapted) fold(t *testing.T, m *lm.Model) map[string]*change {
	t.Helper()
	done := map[string]*change{}
	for _, w := range a.Whole {
		v, err := m.MutableParam(w.Tensor)
		if err != nil {
			t.Fatal(err)
		}
		for i := range v.Rows {
			copy(v.RowF32(i), w.Value.Value.RowF32(i))
		}
		v.Buf.Changed()
	}

	for _, rows := range a.Rows {
		v, err := m.MutableParam(rows.Module.Tensor)
		if err != nil {
			t.Fatal(err)
		}
		for i, id := range rows.IDs {
			copy(v.RowF32(int(id)), rows.Value.Value.RowF32(i))
		}
		v.Buf.Changed()
	}

	for _, l := range a.Low {
		v, err := m.MutableParam(l.Module.Tensor)
		if err != nil {
			t.Fatal(err)
		}

		f := l.Factors.(adapter.Plain)
		c := &change{
			low: l, norm: make([]float64, l.Module.Out),
			a: func(r, i int) float64 { return float64(f.A.Value.RowF32(r)[i]) },
			b: func(r, o int) float64 { return float64(f.B.Value.RowF32(o)[r]) },
		}
		done[l.Module.Tensor] = c

		at := side(l.Module, v)
		for o := range l.Module.Out {
			c.sum = append(c.sum, make([]float64, l.Module.In))
			c.open = append(c.open, make([]bool, l.Module.In))
			square := 0.0
			for i := range l.Module.In {
				was := float64(*at(o, i))
				c.open[o][i] = !a.Config.KeepZeros || was != 0
				c.sum[o][i] = was
				for r := 0; c.open[o][i] && r < l.Rank; r++ {
					c.sum[o][i] += l.Scale * c.b(r, o) * c.a(r, i)
				}
				square += c.sum[o][i] * c.sum[o][i]
			}

			c.norm[o] = math.Sqrt(square)
			for i := range l.Module.In {
				*at(o, i) = float32(c.sum[o][i] * c.gain(o))
			}
		}
		v.Buf.Changed()

		if l.Bias != nil {
			b, err := m.MutableParam(l.Module.Bias)
			if err != nil {
				t.Fatal(err)
			}
			for o := range b.RowF32(0) {
				b.RowF32(0)[o] += float32(l.Scale) * l.Bias.Data()[o]
			}
			b.Buf.Changed()
		}
	}

	return done
}

// gain is DoRA's factor of an output, otherwise 1.
func (c *change) gain(o int) float64 {
	if c.low.Magnitude == nil {
		return 1
	}
	return float64(c.low.Magnitude.Data()[o]) / c.norm[o]
}

// gradients are those of a matrix' parameters by the chain rule, from that of the folded matrix. DoRA takes the norms
// as constants.
func (c *change) gradients(g kernels.Mat) (da, db, dm []float64) {
	l := c.low
	da = make([]float64, l.Rank*l.Module.In)
	db = make([]float64, l.Rank*l.Module.Out)
	dm = make([]float64, l.Module.Out)

	at := side(l.Module, g)
	for o := range l.Module.Out {
		for i := range l.Module.In {
			v := float64(*at(o, i))
			dm[o] += v * c.sum[o][i] / c.norm[o]
			if !c.open[o][i] {
				continue
			}
			for r := range l.Rank {
				da[r*l.Module.In+i] += l.Scale * c.b(r, o) * c.gain(o) * v
				db[o*l.Rank+r] += l.Scale * c.a(r, i) * c.gain(o) * v
			}
		}
	}
	return da, db, dm
}

// compare looks whether numbers are what they should be, up to the rounding of float32 sums: logits and gradients of
// these models pass some twenty products of up to 64 terms, 20·64·2⁻²⁴ = 8e-5 of the largest at most, and a tenth of
// that as a rule.
func compare(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	size := 1e-2
	for _, v := range want {
		size = max(size, math.Abs(v))
	}
	for i, v := range got {
		if !(math.Abs(float64(v)-want[i]) <= 3e-5*size) {
			t.Errorf("%s: element %d is %g, want %g", what, i, v, want[i])
			return
		}
	}
}

func wide(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// TestAttached: a model with an adapter computes what it does with the adapter folded into its weights, and the
// gradients of the adapter's parameters follow by the chain rule from those of the folded weights: for every variant,
// narrow and wide factors, matrices stored either way, tables, heads, rows, whole tensors and zeros that are kept.
func TestAttached(t *testing.T) {
	for name, c := range map[string]choice{
		"plain":           {base: "llama", rank: 3, targets: []string{"q_proj", "v_proj", "down_proj"}},
		"wide":            {base: "llama", rank: skinny + 4, targets: []string{"k_proj", "gate_proj"}},
		"turned":          {base: "gpt2", rank: 2, targets: []string{"c_attn", "mlp.c_proj"}},
		"turned, wide":    {base: "gpt2", rank: skinny + 1, targets: []string{"c_fc"}},
		"bias":            {base: "gpt2", rank: 2, targets: []string{"c_attn", "c_fc"}, bias: true},
		"bias, wide":      {base: "gpt2", rank: skinny + 1, targets: []string{"c_attn"}, bias: true},
		"dora":            {base: "llama", rank: 3, targets: []string{"q_proj", "up_proj"}, dora: true},
		"dora, wide":      {base: "llama", rank: skinny + 2, targets: []string{"o_proj"}, dora: true},
		"dora, turned":    {base: "gpt2", rank: 2, targets: []string{"c_attn", "c_fc"}, dora: true},
		"zeros":           {base: "llama", rank: 3, targets: []string{"q_proj", "down_proj"}, zeros: true},
		"zeros, turned":   {base: "gpt2", rank: 2, targets: []string{"c_attn"}, zeros: true},
		"head":            {base: "llama", rank: 2, targets: []string{"lm_head"}},
		"head, dora":      {base: "llama", rank: 2, targets: []string{"lm_head", "v_proj"}, dora: true},
		"table":           {base: "llama", rank: 2, targets: []string{"embed_tokens"}},
		"table, dora":     {base: "llama", rank: 2, targets: []string{"embed_tokens"}, dora: true},
		"rows":            {base: "llama", rank: 2, rows: []int32{5, 1, 30}},
		"rows, both uses": {base: "llamatied", rank: 2, rows: []int32{3, 9}},
		"whole":           {base: "llama", rank: 2, targets: []string{"q_proj"}, whole: "model.norm.weight"},
	} {
		t.Run(name, func(t *testing.T) {
			m, folded := open(t, c.base), open(t, c.base)
			if c.zeros {
				prune(t, m)
				prune(t, folded)
			}

			a := c.make(t, m)
			changes := a.fold(t, folded)
			of := map[string]kernels.Mat{}
			want, err := folded.Backward(t.Context(), ids, lm.BackwardOptions{Hooks: &lm.Hooks{
				WeightGrad: func(name string, g kernels.Mat) error {
					h := hostMat(g.Rows, g.Cols)
					for i := range g.Rows {
						copy(h.RowF32(i), g.RowF32(i))
					}
					of[name] = h
					return nil
				},
			}})
			if err != nil {
				t.Fatal(err)
			}

			r, err := Attach(m, a.Adapter, Options{Train: true})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Detach()

			got, err := r.Backward(t.Context(), ids, lm.BackwardOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got.Loss-want.Loss) > 3e-5 {
				t.Errorf("loss %g, want %g", got.Loss, want.Loss)
			}
			compare(t, "logits", logits(t, m), wide(logits(t, folded)))

			for tensor, ch := range changes {
				da, db, dm := ch.gradients(of[tensor])
				f := ch.low.Factors.(adapter.Plain)
				compare(t, tensor+": A", f.A.Grad.Buf.F32(), da)
				compare(t, tensor+": B", f.B.Grad.Buf.F32(), db)
				if c.dora {
					compare(t, tensor+": magnitudes", ch.low.Magnitude.Grad.Buf.F32(), dm)
				}
				if c.bias {
					want := wide(of[ch.low.Module.Bias].Buf.F32())
					for i := range want {
						want[i] *= ch.low.Scale
					}
					compare(t, tensor+": bias", ch.low.Bias.Grad.Buf.F32(), want)
				}
			}

			for _, w := range a.Whole {
				compare(t, w.Key, w.Value.Grad.Buf.F32(), wide(of[w.Tensor].Buf.F32()))
			}
			for _, rows := range a.Rows {
				for i, id := range rows.IDs {
					g := of[rows.Module.Tensor].RowF32(int(id))
					compare(t, "rows", rows.Value.Grad.RowF32(i), wide(g))
				}
			}
		})
	}
}

func logits(t *testing.T, m *lm.Model) []float32 {
	t.Helper()
	r, err := m.Forward(t.Context(), ids, lm.ForwardOptions{Logits: true})
	if err != nil {
		t.Fatal(err)
	}

	var all []float32
	for i := range r.Logits.Rows {
		all = append(all, r.Logits.RowF32(i)...)
	}
	return all
}

// TestAdjoint: with the factors held, the change of a linear is itself linear, F, in x, in A and in B. So for every x
// and dy, whatever dropout leaves of x: ⟨dy, F(x)⟩ = ⟨Fᵀ(dy), x⟩ = ⟨dA, A⟩ = ⟨dB, B⟩.
func TestAdjoint(t *testing.T) {
	for _, c := range []choice{
		{base: "llama", rank: 3, targets: []string{"down_proj"}},
		{base: "llama", rank: skinny + 3, targets: []string{"down_proj"}},
		{base: "gpt2", rank: 2, targets: []string{"c_fc"}},
		{base: "llama", rank: 3, targets: []string{"down_proj"}, zeros: true},
		{base: "gpt2", rank: 3, targets: []string{"c_fc"}, zeros: true},
	} {
		for _, dropout := range []float64{0, 0.4} {
			m := open(t, c.base)
			prune(t, m)
			a := c.make(t, m)
			a.Config.Dropout = dropout
			r, err := Attach(m, a.Adapter, Options{Train: true})
			if err != nil {
				t.Fatal(err)
			}

			l := a.Low[0]
			mod := r.modules[l.Module.Tensor]
			const n = 70 // rows: more than one goroutine takes
			x := a.param("x", n, l.Module.In, 0, 1).Value
			dy := a.param("dy", n, l.Module.Out, 0, 1).Value
			y, dx := hostMat(n, l.Module.Out), hostMat(n, l.Module.In)

			r.Drop(true, rng.New(7, "test"))
			r.ZeroGrad()
			if err := errors.Join(r.Forward(mod.lin, x, y), r.backward(mod.lin, x, dy, dx)); err != nil {
				t.Fatal(err)
			}

			f := l.Factors.(adapter.Plain)
			want := inner(y, dy)
			for what, got := range map[string]float64{
				"x": inner(x, dx), "A": inner(f.A.Value, f.A.Grad), "B": inner(f.B.Value, f.B.Grad),
			} {
				// Sums of n·out products of order 1, in float32 in parts.
				if math.Abs(got-want) > 1e-5*math.Sqrt(n*float64(l.Module.Out))*5 {
					t.Errorf("%+v, dropout %g: by %s %g, by y %g", c, dropout, what, got, want)
				}
			}

			again, other := hostMat(n, l.Module.Out), hostMat(n, l.Module.Out)
			if err := r.Forward(mod.lin, x, again); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(y.Buf.F32(), again.Buf.F32()) {
				t.Errorf("%+v, dropout %g: the same key gives another mask", c, dropout)
			}

			r.Drop(true, rng.New(8, "test"))
			if err := r.Forward(mod.lin, x, other); err != nil {
				t.Fatal(err)
			}
			if slices.Equal(y.Buf.F32(), other.Buf.F32()) != (dropout == 0) {
				t.Errorf("%+v, dropout %g: another key gives the same mask, or no dropout depends on it", c, dropout)
			}
			r.Detach()
		}
	}
}

// inner is the scalar product of two matrices.
func inner(a, b kernels.Mat) float64 {
	s := 0.0
	for i := range a.Rows {
		for j, v := range a.RowF32(i) {
			s += float64(v) * float64(b.RowF32(i)[j])
		}
	}
	return s
}

// TestUpdateAndDetach: changed parameters act after Update and not before; without the adapter the model has its own
// bits again, its tied head too.
func TestUpdateAndDetach(t *testing.T) {
	for _, c := range []choice{
		{base: "llama", rank: 2, targets: []string{"q_proj", "lm_head"}, whole: "model.norm.weight"},
		{base: "llamatied", rank: 2, targets: []string{"lm_head"}},
		{base: "gpt2", rank: 2, targets: []string{"c_attn"}, rows: []int32{3}},
	} {
		m := open(t, c.base)
		before := logits(t, m)
		a := c.make(t, m)
		r, err := Attach(m, a.Adapter, Options{})
		if err != nil {
			t.Fatal(err)
		}

		with := logits(t, m)
		if slices.Equal(before, with) {
			t.Errorf("%+v: the adapter changes nothing", c)
		}

		f := a.Low[0].Factors.(adapter.Plain)
		f.A.Data()[0] += 1
		f.A.Value.Buf.Changed()
		if !slices.Equal(with, logits(t, m)) {
			t.Errorf("%+v: a changed parameter acts before Update", c)
		}
		if err := r.Update(); err != nil {
			t.Fatal(err)
		}
		if slices.Equal(with, logits(t, m)) {
			t.Errorf("%+v: a changed parameter does not act after Update", c)
		}

		r.Detach()
		if !slices.Equal(before, logits(t, m)) {
			t.Errorf("%+v: the model is not what it was", c)
		}
	}
}

// TestAttachRefuses: what cannot act on a model is refused, and the model stays as it was.
func TestAttachRefuses(t *testing.T) {
	m := open(t, "llama")
	before := logits(t, m)
	plain := choice{base: "llama", rank: 2, targets: []string{"q_proj"}}
	for what, c := range map[string]struct {
		change func(a *adapter.Adapter)
		want   error
	}{
		"other sizes":       {func(a *adapter.Adapter) { a.Low[0].Module.Out++ }, adapter.ErrBase},
		"an unknown matrix": {func(a *adapter.Adapter) { a.Low[0].Module.Tensor = "x" }, adapter.ErrBase},
		"zeros and DoRA": {func(a *adapter.Adapter) {
			a.Config.KeepZeros = true
			a.Low[0].Magnitude = &adapter.Param{}
		}, adapter.ErrUnsupported},
		"a token that lacks": {func(a *adapter.Adapter) {
			a.Rows = []*adapter.Rows{rowsOf(t, m, 1<<20)}
		}, adapter.ErrBase},
		"the same twice": {func(a *adapter.Adapter) {
			a.Rows = []*adapter.Rows{rowsOf(t, m, 1), rowsOf(t, m, 2)}
		}, adapter.ErrUnsupported},
		"a whole of other sizes": {func(a *adapter.Adapter) {
			a.Whole = []*adapter.Whole{{Tensor: "model.norm.weight", Value: adapter.NewParam("x", 1, 3)}}
		}, adapter.ErrBase},
	} {
		a := plain.make(t, m)
		c.change(a.Adapter)
		if r, err := Attach(m, a.Adapter, Options{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
			if err == nil {
				r.Detach()
			}
		}
		if !slices.Equal(before, logits(t, m)) {
			t.Fatalf("%s: the model is not what it was", what)
		}
	}
}

func rowsOf(t *testing.T, m *lm.Model, id int32) *adapter.Rows {
	t.Helper()
	modules, err := adapter.ModulesOf(m)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(modules, func(mod adapter.Module) bool { return mod.Table })
	return &adapter.Rows{Module: modules[i], IDs: []int32{id}, Value: adapter.NewParam("rows", 1, modules[i].Out)}
}

// TestBank: every sequence of a pass has its own adapter, and computes what it does alone with that adapter attached.
func TestBank(t *testing.T) {
	m := open(t, "gpt2")
	adapters := map[string]*adapted{
		"a": choice{rank: 2, targets: []string{"c_attn", "c_fc"}}.make(t, m),
		"b": choice{rank: 5, targets: []string{"c_fc"}, bias: true}.make(t, m),
	}
	names := []string{"b", "", "a", "a"}
	batch := [][]int32{{1, 2, 3}, {4, 5}, {6, 7, 8, 9}, {3, 2}}

	var want []float64
	for i, name := range names {
		var undo func()
		if name != "" {
			r, err := Attach(m, adapters[name].Adapter, Options{})
			if err != nil {
				t.Fatal(err)
			}
			undo = r.Detach
		}

		r, err := m.Forward(t.Context(), batch[i:i+1], lm.ForwardOptions{Logits: true})
		if err != nil {
			t.Fatal(err)
		}
		for k := range r.Logits.Rows {
			want = append(want, wide(r.Logits.RowF32(k))...)
		}
		if undo != nil {
			undo()
		}
	}

	b, err := NewBank(m)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	for name, a := range adapters {
		if err := b.Add(name, a.Adapter); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add("a", adapters["b"].Adapter); !errors.Is(err, adapter.ErrConfig) {
		t.Errorf("a second adapter called a: %v", err)
	}
	dora := choice{rank: 2, targets: []string{"c_fc"}, dora: true}.make(t, m)
	if err := b.Add("c", dora.Adapter); !errors.Is(err, adapter.ErrUnsupported) {
		t.Errorf("DoRA in a bank: %v", err)
	}

	lens := []int{3, 2, 4, 2}
	run := func() (*lm.Result, error) { return m.Forward(t.Context(), batch, lm.ForwardOptions{Logits: true}) }
	r, err := b.Run(run, lens, names)
	if err != nil {
		t.Fatal(err)
	}

	var got []float32
	for k := range r.Logits.Rows {
		got = append(got, r.Logits.RowF32(k)...)
	}
	compare(t, "logits", got, want)

	b.Remove("a")
	if _, err := b.Run(run, lens, names); !errors.Is(err, adapter.ErrConfig) {
		t.Errorf("an adapter that is gone: %v", err)
	}
}
