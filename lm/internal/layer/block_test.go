package layer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm/arch"
)

// host is the device of these tests.
func host(t testing.TB) kernels.Device {
	t.Helper()
	d := device.Complete(cpu.New(cpu.Options{Threads: 2}))
	t.Cleanup(func() { d.Close() })
	return d
}

// made is a block with random parameters.
type made struct {
	c       *arch.Config
	b       *Block
	weights []*Weight
	random  *rand.Rand
}

// weight makes a parameter of normal values with a mean.
func (m *made) weight(name string, rows, cols int, mean, std float64) *Weight {
	w := &Weight{Name: name, Value: kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)}
	for i := range w.Value.Buf.F32() {
		w.Value.Buf.F32()[i] = float32(mean + std*m.random.NormFloat64())
	}
	m.weights = append(m.weights, w)
	return w
}

func (m *made) norm(name string, cols int, bias bool) Norm {
	mean := 1.0
	if m.c.Arch.Norm == arch.RMSPlusOne {
		mean = 0
	}
	n := Norm{W: m.weight(name, 1, cols, mean, 0.3)}
	if bias {
		n.B = m.weight(name+".bias", 1, cols, 0, 0.3)
	}
	return n
}

func (m *made) linear(name string, in, out int, o options) *Linear {
	l := &Linear{Expert: -1, In: in, Out: out, Transposed: o.transposed}
	rows, cols := out, in
	if o.transposed {
		rows, cols = in, out
	}
	l.W = m.weight(name, rows, cols, 0, 1/math.Sqrt(float64(in)))
	if o.bias {
		l.B = m.weight(name+".bias", 1, out, 0, 0.3)
	}
	return l
}

func (m *made) mlp(name string, inner int, o options) MLP {
	hidden := m.c.Hidden
	f := MLP{Down: m.linear(name+".down", inner, hidden, o)}
	switch o.mlp {
	case "gated":
		f.Gate = m.linear(name+".gate", hidden, inner, o)
		f.Up = m.linear(name+".up", hidden, inner, o)
	case "fused":
		f.GateUp = m.linear(name+".gate_up", hidden, 2*inner, o)
	default:
		f.Up = m.linear(name+".up", hidden, inner, o)
	}
	return f
}

// options are what the architectures differ in.
type options struct {
	change     func(c *arch.Config)
	bias       bool
	transposed bool
	mlp        string // gated, fused; "": up and down
	fusedQKV   bool
	postNorms  bool // of the branches
	secondNorm bool // of the MLP; where norms come first it is always there
}

// make makes the block.
func (o options) make(seed uint64) *made {
	c := &arch.Config{
		Arch: &arch.Arch{Norm: arch.RMS}, Hidden: 12, EmbedDim: 12, Layers: 1, Heads: 4, KVHeads: 2, HeadDim: 4,
		Inner: 10, Eps: 1e-5, Activation: arch.SiLU, AttnScales: []float32{0.5}, Windows: []int{0},
		Rope: &arch.Rope{Type: "default", Dim: 4, Theta: 100, MaxPositions: 64}, Mixture: []bool{false},
		ResidualScale: 1, LogitScale: 1, RoutedScale: 1, RopeOf: slices.Repeat([]int{-1}, 4),
	}
	if o.change != nil {
		o.change(c)
	}
	c.QKNorm = c.Arch.QKNorm
	if c.Rope != nil {
		c.Ropes = []*arch.Rope{c.Rope}
		clear(c.RopeOf)
	}

	m := &made{c: c, b: NewBlock(0, c), random: rand.New(rand.NewPCG(seed, 7))}
	b := m.b
	layerNorm := c.Arch.Norm == arch.LayerNorm && o.bias
	b.AttnNorm = m.norm("attn_norm", c.Hidden, layerNorm)
	if !c.Parallel || o.secondNorm {
		b.MLPNorm = m.norm("mlp_norm", c.Hidden, layerNorm)
	}
	if o.postNorms {
		b.AttnPost = m.norm("attn_post", c.Hidden, false)
		b.MLPPost = m.norm("mlp_post", c.Hidden, false)
	}

	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	if o.fusedQKV {
		b.QKV = m.linear("qkv", c.Hidden, q+2*kv, o)
	} else {
		b.Q = m.linear("q", c.Hidden, q, o)
		b.K = m.linear("k", c.Hidden, kv, o)
		b.V = m.linear("v", c.Hidden, kv, o)
	}

	b.O = m.linear("o", q, c.Hidden, o)
	switch c.Arch.QKNorm {
	case arch.PerHead:
		b.QNorm = m.norm("q_norm", c.HeadDim, false)
		b.KNorm = m.norm("k_norm", c.HeadDim, false)
	case arch.PerRow:
		b.QNorm = m.norm("q_norm", q, false)
		b.KNorm = m.norm("k_norm", kv, false)
	}

	for e := range b.Experts {
		b.Experts[e] = m.mlp(fmt.Sprintf("expert.%d", e), c.Inner, o)
	}
	if b.Mixture {
		b.Router = m.weight("router", c.Experts, c.Hidden, 0, 1)
	}
	if c.SharedInner > 0 {
		shared := m.mlp("shared", c.SharedInner, o)
		b.Shared = &shared
		b.SharedRouter = m.weight("shared_router", 1, c.Hidden, 0, 1)
	}

	return m
}

// kinds are blocks as architectures have them, every step of the forward pass in one of them at least.
var kinds = map[string]options{
	"llama": {mlp: "gated"},
	"gemma2": {mlp: "gated", postNorms: true, change: func(c *arch.Config) {
		c.Arch.Norm = arch.RMSPlusOne
		c.Activation = arch.GELUTanh
		c.AttnSoftcap = 1.5
		c.Windows[0] = 3
	}},
	"qwen3": {mlp: "gated", change: func(c *arch.Config) { c.Arch.QKNorm = arch.PerHead }},
	"olmo2": {mlp: "gated", change: func(c *arch.Config) { c.Arch.QKNorm = arch.PerRow }},
	"phi3":  {mlp: "fused", fusedQKV: true},
	"gpt2": {bias: true, transposed: true, fusedQKV: true, change: func(c *arch.Config) {
		c.Arch.Norm = arch.LayerNorm
		c.Activation = arch.GELU
		c.Rope = nil
	}},
	"opt, norms last": {bias: true, change: func(c *arch.Config) {
		c.Arch.Norm = arch.LayerNorm
		c.Activation = arch.ReLU
		c.PostNorm = true
		c.Rope = nil
	}},
	"neox": {bias: true, fusedQKV: true, secondNorm: true, change: func(c *arch.Config) {
		c.Arch.Norm = arch.LayerNorm
		c.Arch.QKV = arch.HeadBlocks
		c.KVHeads = c.Heads
		c.Parallel = true
		c.Activation = arch.GELU
		c.Rope.Dim = 2
	}},
	"phi": {bias: true, change: func(c *arch.Config) {
		c.Arch.Norm = arch.LayerNorm
		c.Parallel = true
		c.Activation = arch.GELUTanh
		c.Rope.Dim = 2
		c.Rope.Interleaved = true
	}},
	"olmo": {mlp: "gated", change: func(c *arch.Config) {
		c.Arch.Norm = arch.LayerNorm
		c.ClipQKV = 0.7
	}},
	"dbrx, clamped in one": {fusedQKV: true, change: func(c *arch.Config) { c.ClipQKV = 0.7 }},
	"mixtral": {mlp: "gated", change: func(c *arch.Config) {
		c.Mixture[0] = true
		c.Experts, c.TopK = 4, 2
		c.NormTopK = true
	}},
	"qwen2-moe": {mlp: "gated", change: func(c *arch.Config) {
		c.Mixture[0] = true
		c.Experts, c.TopK = 5, 2
		c.SharedInner = 6
	}},
}

// lens are the sequences of these tests: one of a single token, one that is empty.
var lens = []int{5, 1, 0, 3}

func total(lens []int) (n int) {
	for _, k := range lens {
		n += k
	}
	return n
}

// input is a random matrix, on the device and in float64.
func (m *made) input(n int) (kernels.Mat, rows) {
	x := kernels.MatOf(kernels.NewHost(kernels.F32, n*m.c.Hidden), n, m.c.Hidden)
	for i := range x.Buf.F32() {
		x.Buf.F32()[i] = float32(m.random.NormFloat64())
	}
	return x, wide(x)
}

// wide is a matrix in float64.
func wide(x kernels.Mat) rows {
	out := make(rows, x.Rows)
	for i := range out {
		for _, v := range x.RowF32(i) {
			out[i] = append(out[i], float64(v))
		}
	}
	return out
}

func clone(x kernels.Mat) kernels.Mat {
	y := kernels.MatOf(kernels.NewHost(kernels.F32, x.Len()), x.Rows, x.Cols)
	for i := range x.Rows {
		copy(y.RowF32(i), x.RowF32(i))
	}
	return y
}

// tolerance: sums of at most 16 float32 products of values of order 1, through some ten steps, each of which may double
// what the ones before have lost: 16·10·2⁻²⁴ ≈ 1e-5, of the result or of 1 where that cancels.
const tolerance = 2e-5

// near compares a float32 number with what it should be.
func near(got float32, want float64) bool {
	return math.Abs(float64(got)-want) <= tolerance*(1+math.Abs(want))
}

// dot is Σ c·y: the loss of these tests, whose gradient with respect to y is c.
func dot(c kernels.Mat, y rows) float64 {
	s := 0.0
	for i := range y {
		for j, v := range y[i] {
			s += float64(c.RowF32(i)[j]) * v
		}
	}
	return s
}

// slope is the derivative of f by a number, as a central difference: off by h²/6 times the third derivative, below
// 1e-7 here, beside 1e-16/h.
func slope(at *float64, f func() float64) float64 {
	const h = 1e-5
	was := *at
	*at = was + h
	up := f()
	*at = was - h
	down := f()
	*at = was
	return (up - down) / (2 * h)
}

// TestBlock: the forward pass of every kind of block is the plain one, the gradients of its input and of all its
// parameters are the plain one's differences.
func TestBlock(t *testing.T) {
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			m := o.make(uint64(len(name)))
			ref := newPlain(m.c, m.b, lens, m.weights)
			x, in := m.input(total(lens))
			c, _ := m.input(total(lens))

			s := NewSetup(m.c, host(t), kernels.Exact, []*Block{m.b})
			defer s.Free()
			scratch, tape := &Scratch{}, &Tape{}
			defer scratch.Free()
			defer tape.Free()

			p, err := s.Begin(scratch, lens, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer p.End()

			y := clone(x)
			if err := p.Run(m.b, y); err != nil {
				t.Fatal(err)
			}

			for i, row := range ref.run(in) {
				for j, want := range row {
					if !near(y.RowF32(i)[j], want) {
						t.Fatalf("row %d, column %d: %g, want %g", i, j, y.RowF32(i)[j], want)
					}
				}
			}

			out, d := clone(x), clone(c)
			p.Grads = grads(m.weights)
			if err := p.Record(m.b, out, tape); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(out.Buf.F32(), y.Buf.F32()) {
				t.Error("a recorded run gives other bits than a plain one")
			}
			if err := p.Backward(m.b, tape, d, true); err != nil {
				t.Fatal(err)
			}

			loss := func() float64 { return dot(c, ref.run(in)) }
			for i := range in {
				for j := i % 2; j < len(in[i]); j += 2 {
					if want := slope(&in[i][j], loss); !near(d.RowF32(i)[j], want) {
						t.Fatalf("gradient of the input at %d, %d: %g, want %g", i, j, d.RowF32(i)[j], want)
					}
				}
			}

			for _, w := range m.weights {
				values := ref.values[w]
				for k := len(values) % 5; k < len(values); k += 5 {
					got := p.Grads[w].Buf.F32()[k]
					if want := slope(&values[k], loss); !near(got, want) {
						t.Fatalf("gradient of %s at %d: %g, want %g", w.Name, k, got, want)
					}
				}
			}
		})
	}
}

// grads makes room for the gradients of parameters: zeros for those with one row, to which kernels add, and nonsense
// for matrices, which are overwritten.
func grads(weights []*Weight) map[*Weight]kernels.Mat {
	list := map[*Weight]kernels.Mat{}
	for _, w := range weights {
		g := kernels.MatOf(kernels.NewHost(kernels.F32, w.Value.Len()), w.Value.Rows, w.Value.Cols)
		if g.Rows > 1 {
			for i := range g.Buf.F32() {
				g.Buf.F32()[i] = 1e9
			}
		}
		list[w] = g
	}
	return list
}

// TestReplay: a block that is run again from its input gives the same gradients to the last bit, and leaves the input
// as it is; so does a tape that has served another block before.
func TestReplay(t *testing.T) {
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			m := o.make(3)
			x, _ := m.input(total(lens))
			c, _ := m.input(total(lens))
			s := NewSetup(m.c, host(t), kernels.Exact, []*Block{m.b})
			defer s.Free()
			scratch := &Scratch{}
			defer scratch.Free()

			p, err := s.Begin(scratch, lens, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer p.End()

			asked := 0
			p.Input = func(*Linear, kernels.Mat) { asked++ }
			var want []float32
			tape := &Tape{}
			defer tape.Free()
			for round, begin := range []func() error{
				func() error { return p.Record(m.b, clone(x), tape) },
				func() error { return p.Replay(m.b, x, tape) },
				func() error { return p.Replay(m.b, x, tape) },
			} {
				before, told := clone(x), asked
				p.Grads = grads(m.weights)
				d := clone(c)
				if err := begin(); err != nil {
					t.Fatal(err)
				}
				if err := p.Backward(m.b, tape, d, true); err != nil {
					t.Fatal(err)
				}

				got := slices.Clone(d.Buf.F32())
				for _, w := range m.weights {
					got = append(got, p.Grads[w].Buf.F32()...)
				}

				switch {
				case round == 0:
					want = got
					if asked == told {
						t.Error("nobody was told what matrices see")
					}
				case asked != told:
					t.Error("a replay tells again what matrices see")
				case !slices.Equal(got, want):
					t.Error("the gradients of a replay have other bits")
				}
				if !slices.Equal(before.Buf.F32(), x.Buf.F32()) {
					t.Error("the input has changed")
				}
			}
		})
	}
}

// TestUnwanted: what nobody asks for is left out, and what is asked for is the same to the last bit whatever else is:
// parameter by parameter, without the gradient of the input.
func TestUnwanted(t *testing.T) {
	for _, name := range []string{"gemma2", "neox", "phi", "opt, norms last", "qwen2-moe"} {
		t.Run(name, func(t *testing.T) {
			m := kinds[name].make(5)
			x, _ := m.input(total(lens))
			c, _ := m.input(total(lens))
			s := NewSetup(m.c, host(t), kernels.Exact, []*Block{m.b})
			defer s.Free()
			scratch, tape := &Scratch{}, &Tape{}
			defer scratch.Free()
			defer tape.Free()

			p, err := s.Begin(scratch, lens, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer p.End()

			gradients := func(weights []*Weight, below bool) {
				p.Grads = grads(weights)
				if err := p.Replay(m.b, x, tape); err != nil {
					t.Fatal(err)
				}
				if err := p.Backward(m.b, tape, clone(c), below); err != nil {
					t.Fatal(err)
				}
			}

			gradients(m.weights, true)
			all := p.Grads
			for _, w := range m.weights {
				gradients([]*Weight{w}, false)
				if !slices.Equal(p.Grads[w].Buf.F32(), all[w].Buf.F32()) {
					t.Errorf("alone, the gradient of %s has other bits", w.Name)
				}
			}
		})
	}
}

// TestLateRows: gradients from a row on are those of all rows, where no parameter's are asked for.
func TestLateRows(t *testing.T) {
	for name, o := range kinds {
		m := o.make(8)
		if m.b.Mixture {
			continue // experts have rows of their own, so a mixture computes all
		}

		one := []int{7}
		x, _ := m.input(7)
		c, _ := m.input(7)
		const from = 3
		for i := range from { // what is left out has no gradient
			clear(c.RowF32(i))
		}

		s := NewSetup(m.c, host(t), kernels.Exact, []*Block{m.b})
		scratch, tape := &Scratch{}, &Tape{}
		p, err := s.Begin(scratch, one, nil)
		if err != nil {
			t.Fatal(err)
		}

		whole, late := clone(c), clone(c)
		for _, r := range []struct {
			from int
			d    kernels.Mat
		}{{0, whole}, {from, late}} {
			p.From = r.from
			if err := p.Replay(m.b, x, tape); err != nil {
				t.Fatal(err)
			}
			if err := p.Backward(m.b, tape, r.d, true); err != nil {
				t.Fatal(err)
			}
		}

		for i := from; i < 7; i++ {
			for j, want := range whole.RowF32(i) {
				if !near(late.RowF32(i)[j], float64(want)) {
					t.Fatalf("%s: row %d, column %d: %g, want %g", name, i, j, late.RowF32(i)[j], want)
				}
			}
		}

		p.End()
		tape.Free()
		scratch.Free()
		s.Free()
	}
}

// TestCache: tokens that come in several passes, with the keys and values of the ones before kept, leave the block as
// they do in one pass; rows that have left the window may be gone.
func TestCache(t *testing.T) {
	for name, o := range kinds {
		m := o.make(9)
		one := []int{9}
		x, in := m.input(9)
		want := newPlain(m.c, m.b, one, m.weights).run(in)

		s := NewSetup(m.c, host(t), kernels.Exact, []*Block{m.b})
		scratch := &Scratch{}
		past := []Past{{KV: make([]KV, 1)}}
		at := 0
		for _, n := range []int{4, 1, 3, 1} {
			kv := &past[0].KV[0]
			if err := s.Room(kv, n, m.c.Windows[0]); err != nil {
				t.Fatal(err)
			}

			past[0].Start = at
			p, err := s.Begin(scratch, []int{n}, past)
			if err != nil {
				t.Fatal(err)
			}

			y := clone(x.RowRange(at, at+n))
			if err := p.Run(m.b, y); err != nil {
				t.Fatal(err)
			}
			p.End()
			kv.Rows += n

			for i := range n {
				for j, v := range want[at+i] {
					if !near(y.RowF32(i)[j], v) {
						t.Fatalf("%s: token %d, column %d: %g, want %g", name, at+i, j, y.RowF32(i)[j], v)
					}
				}
			}
			at += n
		}

		past[0].KV[0].Free()
		scratch.Free()
		s.Free()
	}
}

// TestTapeBytes: a tape takes what it was said to, and no pass writes outside of it.
func TestTapeBytes(t *testing.T) {
	for name, o := range kinds {
		m := o.make(1)
		s := NewSetup(m.c, host(t), kernels.Exact, []*Block{m.b})
		tape := &Tape{}
		if err := s.reserveTape(tape, m.b, 11); err != nil {
			t.Fatal(err)
		}
		if want := s.TapeBytes(m.b, 11); int64(tape.arena.Len)*4 != want {
			t.Errorf("%s: %d bytes, said %d", name, tape.arena.Len*4, want)
		}
		tape.Free()
		s.Free()
	}
}
