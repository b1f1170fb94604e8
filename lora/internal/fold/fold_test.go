package fold

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// open opens one of the package's small bases.
func open(t *testing.T, name string) *adapter.Checkpoint {
	t.Helper()
	c, err := adapter.OpenCheckpoint(t.Context(), filepath.Join("..", "..", "testdata", "peft", "base-"+name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// memory is a writer that keeps what is written.
type memory struct {
	mu   sync.Mutex
	data map[string][]byte
}

// WriteAt implements [Writer].
func (m *memory) WriteAt(name string, data []byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		m.data = map[string][]byte{}
	}
	for int64(len(m.data[name])) < off+int64(len(data)) {
		m.data[name] = append(m.data[name], 0)
	}
	copy(m.data[name][off:], data)
	return nil
}

// floats reads F32.
func (m *memory) floats(name string) []float32 { return f32(m.data[name]) }

func f32(raw []byte) []float32 {
	out := make([]float32, len(raw)/4)
	for i := range out {
		bits := uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24
		out[i] = math.Float32frombits(bits)
	}
	return out
}

// filled is a parameter of random numbers.
func filled(random *rand.Rand, rows, cols int, mean, std float64) *adapter.Param {
	p := adapter.NewParam("p", rows, cols)
	for i := range p.Data() {
		p.Data()[i] = float32(mean + std*random.NormFloat64())
	}
	return p
}

// find is a module by the end of its path.
func find(t *testing.T, c *adapter.Checkpoint, end string) adapter.Module {
	t.Helper()
	i := slices.IndexFunc(c.Modules, func(m adapter.Module) bool { return strings.HasSuffix(m.Path, end) })
	if i < 0 {
		t.Fatalf("no module %s", end)
	}
	return c.Modules[i]
}

// low is a random change of a module.
func low(random *rand.Rand, m adapter.Module, rank int) *adapter.Low {
	return &adapter.Low{Module: m, Rank: rank, Alpha: 1, Scale: 0.75, Factors: adapter.Plain{
		A: filled(random, rank, m.In, 0, 1), B: filled(random, m.Out, rank, 0, 1),
	}}
}

// stored is what the base has.
func stored(t *testing.T, c *adapter.Checkpoint, name string) ([]float32, []int64) {
	t.Helper()
	raw, err := c.Tensors.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}
	shape, _ := c.Tensors.Shape(name)
	return f32(raw), shape
}

// expected is the matrix with a change, by the formula, in float64: W + s·B·A, with DoRA its outputs scaled to the
// magnitudes, and where keep is set zero where W is.
func expected(w []float32, shape []int64, l *adapter.Low, keep bool) []float64 {
	m := l.Module
	f := l.Factors.(adapter.Plain)
	turned := m.Transposed || m.Table
	out := make([]float64, len(w))
	square := make([]float64, m.Out)
	output := func(k int) (o, i int) {
		row, col := k/int(shape[1]), k%int(shape[1])
		if turned {
			return col, row
		}
		return row, col
	}

	for k, v := range w {
		o, i := output(k)
		out[k] = float64(v)
		for r := range l.Rank {
			out[k] += l.Scale * float64(f.B.Value.RowF32(o)[r]) * float64(f.A.Value.RowF32(r)[i])
		}
		square[o] += out[k] * out[k]
	}

	for k, v := range w {
		o, _ := output(k)
		if l.Magnitude != nil {
			out[k] *= float64(l.Magnitude.Data()[o]) / math.Sqrt(square[o])
		}
		if keep && v == 0 {
			out[k] = 0
		}
	}

	return out
}

// TestEdit: every kind of change of a tensor, stored either way and in blocks of any size, is the one of the formula up
// to the rounding of its float32 sums, and the sums of the report are those of what was written.
func TestEdit(t *testing.T) {
	for _, c := range []struct {
		base, module string
		dora, keep   bool
		rows         bool
	}{
		{base: "llama", module: "0.self_attn.q_proj"},
		{base: "llama", module: "1.mlp.down_proj", dora: true},
		{base: "gpt2", module: "0.attn.c_attn"},
		{base: "gpt2", module: "0.attn.c_attn", dora: true},
		{base: "llama", module: "embed_tokens"},
		{base: "llama", module: "embed_tokens", dora: true, rows: true},
		{base: "llama", module: "2.mlp.up_proj", keep: true},
	} {
		for _, block := range []int{1, 70, 0} {
			base := open(t, c.base)
			random := rand.New(rand.NewPCG(3, 5))
			l := low(random, find(t, base, c.module), 3)
			if c.dora {
				l.Magnitude = filled(random, 1, l.Module.Out, 1, 0.2)
			}

			a := &adapter.Adapter{Low: []*adapter.Low{l}}
			w, shape := stored(t, base, l.Module.Tensor)
			w = slices.Clone(w)
			if c.rows { // trained rows stand for the base's, and are changed as these would be
				rows := &adapter.Rows{
					Module: l.Module, IDs: []int32{7, 2}, Value: filled(random, 2, l.Module.Out, 0, 1),
				}
				a.Rows = append(a.Rows, rows)
				for i, id := range rows.IDs {
					copy(w[int(id)*l.Module.Out:], rows.Value.Value.RowF32(i))
				}
			}

			p, err := NewPlan(base, a)
			if err != nil {
				t.Fatal(err)
			}

			var out memory
			e := &Editor{Base: base, Out: &out, Threads: 3, Block: block, KeepZeros: c.keep}
			s, err := e.Edit(t.Context(), p.Edits[l.Module.Tensor])
			if err != nil {
				t.Fatal(err)
			}

			got := out.floats(l.Module.Tensor)
			want := expected(w, shape, l, c.keep)
			for k, v := range got {
				// The delta is rounded, scaled and added in float32: three roundings of numbers of some units.
				if math.Abs(float64(v)-want[k]) > 3e-6 {
					t.Fatalf("%+v in blocks of %d: element %d is %g, want %g", c, block, k, v, want[k])
				}
			}

			before, _ := stored(t, base, l.Module.Tensor)
			checkSums(t, fmt.Sprintf("%+v in blocks of %d", c, block), s, before, got)
		}
	}
}

// checkSums compares the sums of a change with those of what was there and what is.
func checkSums(t *testing.T, what string, got Sums, before, after []float32) {
	t.Helper()
	var want Sums
	for i, v := range after {
		d := float64(v) - float64(before[i])
		if d != 0 {
			want.Moved++
		}
		if before[i] == 0 {
			want.Before++
		}
		if v == 0 {
			want.After++
		}
		want.MaxAbs = max(want.MaxAbs, math.Abs(d))
		want.Was += float64(before[i]) * float64(before[i])
		want.Difference += d * d
	}

	if got.Moved != want.Moved || got.Before != want.Before || got.After != want.After || got.MaxAbs != want.MaxAbs ||
		math.Abs(got.Relative()-want.Relative()) > 1e-9 {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// TestCompare: any number of elements, of both zeros, the smallest and the largest, is counted as one by one, and the
// first that is no number or infinite is found wherever it lies.
func TestCompare(t *testing.T) {
	negative := float32(math.Copysign(0, -1))
	values := []float32{
		0, negative, 1, -1, math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, math.MaxFloat32,
		-math.MaxFloat32,
	}
	random := rand.New(rand.NewPCG(7, 9))
	for n := range 12 {
		for range 50 {
			now, was := make([]float32, n), make([]float32, n)
			for i := range n {
				now[i], was[i] = values[random.IntN(len(values))], values[random.IntN(len(values))]
			}
			var s Sums
			if i := s.compare(now, was); i != -1 {
				t.Fatalf("element %d of %v is not finite", i, now)
			}
			checkSums(t, fmt.Sprintf("%v after %v", now, was), s, was, now)

			for i := range n {
				bad := slices.Clone(now)
				bad[i] = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[i%3]
				bad[n-1] = bad[i]
				kept := s
				if at := s.compare(bad, was); at != i || s != kept {
					t.Fatalf("of %v element %d is not finite", bad, at)
				}
			}
		}
	}
}

// TestSums: those of parts add up; ratios of nothing are 0.
func TestSums(t *testing.T) {
	a := Sums{Moved: 1, MaxAbs: 3, Was: 4, Difference: 1, Before: 2, After: 1, Whole: 16, Left: 4}
	b := Sums{Moved: 2, MaxAbs: 2, Was: 5, Difference: 8, Before: 1, After: 5}
	a.Add(b)
	if a != (Sums{Moved: 3, MaxAbs: 3, Was: 9, Difference: 9, Before: 3, After: 6, Whole: 16, Left: 4}) {
		t.Errorf("%+v", a)
	}
	if a.Relative() != 1 || a.Lost() != 0.5 || b.Lost() != 0 || new(Sums).Relative() != 0 {
		t.Errorf("relative %g, lost %g", a.Relative(), a.Lost())
	}
}

// TestPlanTied: a change of the table of a tied model leaves the head as it was, on a tensor of its own, and the other
// way round; a change of both alike leaves them tied.
func TestPlanTied(t *testing.T) {
	base := open(t, "llamatied")
	random := rand.New(rand.NewPCG(1, 1))
	table, head := find(t, base, "embed_tokens"), find(t, base, "lm_head")
	twin := low(random, table, 2)
	other := &adapter.Low{
		Module: head, Rank: 2, Scale: twin.Scale, Factors: adapter.Twin{Plain: twin.Factors.(adapter.Plain)},
	}
	query := find(t, base, "0.self_attn.q_proj")

	for what, c := range map[string]struct {
		low   []*adapter.Low
		names []string
		untie bool
	}{
		"the table": {[]*adapter.Low{low(random, table, 2)}, []string{table.Tensor, "lm_head.weight"}, true},
		"the head":  {[]*adapter.Low{low(random, head, 2)}, []string{"lm_head.weight"}, true},
		"both":      {[]*adapter.Low{twin, other}, []string{table.Tensor}, false},
		"a matrix":  {[]*adapter.Low{low(random, query, 2)}, []string{query.Tensor}, false},
	} {
		p, err := NewPlan(base, &adapter.Adapter{Low: c.low})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.Names, c.names) || p.Untie != c.untie || (p.Head != "") != c.untie {
			t.Errorf("%s: %q, head %q, untied %v", what, p.Names, p.Head, p.Untie)
		}

		// A head of its own starts from the table, and has the table's bytes where nothing changes it.
		e := p.Edits[p.Head]
		if c.untie {
			var out memory
			s, err := (&Editor{Base: base, Out: &out}).Edit(t.Context(), e)
			if err != nil || e.From != table.Tensor || (s.Moved == 0) != (what == "the table") {
				t.Errorf("%s: the head comes from %s, %d of its elements move (%v)", what, e.From, s.Moved, err)
			}
		}
	}
}

// TestPlanRefuses: what does not fit the base, and what nothing is folded into.
func TestPlanRefuses(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	base := open(t, "llama")
	q := find(t, base, "0.self_attn.q_proj")
	missing := low(random, q, 2)
	missing.Module.Tensor = "model.layers.9.self_attn.q_proj.weight"
	biased := low(random, q, 2)
	biased.Bias = filled(random, 1, q.Out, 0, 1)

	for what, c := range map[string]struct {
		a    *adapter.Adapter
		want error
	}{
		"a tensor that lacks": {&adapter.Adapter{Low: []*adapter.Low{missing}}, adapter.ErrBase},
		"a bias that lacks":   {&adapter.Adapter{Low: []*adapter.Low{biased}}, adapter.ErrUnsupported},
		"another shape": {&adapter.Adapter{Whole: []*adapter.Whole{{
			Tensor: "model.norm.weight", Key: "x", Value: filled(random, 1, 3, 0, 1), Shape: []int64{3},
		}}}, adapter.ErrBase},
	} {
		if _, err := NewPlan(base, c.a); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}

	// Integers are named with the way out.
	p := &planner{base: base, Plan: Plan{Edits: map[string]*Edit{}}}
	if _, err := p.edit("model.norm.weight"); err != nil {
		t.Error(err)
	}
	if again, err := p.edit("model.norm.weight"); err != nil || again != p.Edits["model.norm.weight"] {
		t.Errorf("a second edit of one tensor, %v", err)
	}
}

// TestEditRefuses: results that are not finite, and DoRA of an output of zeros, name the tensor and the place.
func TestEditRefuses(t *testing.T) {
	base := open(t, "llama")
	random := rand.New(rand.NewPCG(1, 1))
	l := low(random, find(t, base, "0.self_attn.q_proj"), 1)
	f := l.Factors.(adapter.Plain)
	clear(f.B.Data())
	f.A.Data()[3] = 3e38
	f.B.Data()[2] = 3e38
	p, err := NewPlan(base, &adapter.Adapter{Low: []*adapter.Low{l}})
	if err != nil {
		t.Fatal(err)
	}

	e := &Editor{Base: base, Out: &memory{}}
	_, err = e.Edit(t.Context(), p.Edits[l.Module.Tensor])
	want := fmt.Sprintf("element %d", 2*l.Module.In+3)
	if !errors.Is(err, adapter.ErrFile) || !strings.Contains(err.Error(), l.Module.Tensor) ||
		!strings.Contains(err.Error(), want) || failure.Hint(err) != "" {
		t.Errorf("an infinite result: %v, want %s", err, want)
	}
}

// TestRound: a delta is rounded to the element type of the base, to the nearest.
func TestRound(t *testing.T) {
	const v = 1 + 1.0/512 + 1.0/4096
	for dtype, want := range map[safetensors.DType]float32{
		safetensors.F32: v, safetensors.BF16: 1, safetensors.F16: 1 + 2.0/1024, // steps of 1/128 and 1/1024
	} {
		if got := round(v, dtype); got != want {
			t.Errorf("%v: %g, want %g", dtype, got, want)
		}
	}
}
