package gp

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/gp/internal/lanes"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// plain is a value of the evaluator below, [rows, cols] in float64 with its logical shape.
type plain struct {
	v          []float64
	rows, cols int
}

func exactly(v float64) float64 { return v }

// walkTree evaluates a tree node by node in float64, each value a full matrix of its own shape: the definition,
// slowly. Every computed value, and both sides of a difference inside a node, pass through touch.
func walkTree(e *Expr, in Inputs, touch func(float64) float64) plain {
	rows, cols := in.W.Rows, in.W.Cols
	mat := func(m kernels.Mat, abs bool) plain {
		p := plain{make([]float64, rows*cols), rows, cols}
		for i := range rows {
			for j, v := range m.RowF32(i) {
				p.v[i*cols+j] = float64(v)
				if abs {
					p.v[i*cols+j] = math.Abs(float64(v))
				}
			}
		}

		return p
	}

	vec := func(v []float32) plain {
		p := plain{make([]float64, cols), 1, cols}
		for j := range v {
			p.v[j] = float64(v[j])
		}
		return p
	}

	switch e.Sym {
	case W:
		return mat(in.W, true)
	case G:
		return mat(in.G, false)
	case X, Xm, Xv, H, Hi:
		return vec(in.vector(e.Sym))
	case Wr1, Wc1:
		return sums(mat(in.W, true), e.Sym == Wr1, exactly, touch)
	case Wr2, Wc2:
		return sums(mat(in.W, true), e.Sym == Wr2, func(x float64) float64 { return x * x },
			func(x float64) float64 { return touch(math.Sqrt(x)) })
	}

	out := walkTree(e.Left, in, touch)
	if e.Right == nil {
		out = walkUnary(e.Sym, out, touch)
	} else {
		out = walkBinary(e.Sym, out, walkTree(e.Right, in, touch))
	}

	for i, v := range out.v {
		out.v[i] = touch(v)
	}

	return out
}

func sums(m plain, byRow bool, f, g func(float64) float64) plain {
	out := plain{make([]float64, m.cols), 1, m.cols}
	if byRow {
		out = plain{make([]float64, m.rows), m.rows, 1}
	}

	for i := range m.rows {
		for j := range m.cols {
			at := j
			if byRow {
				at = i
			}
			out.v[at] += f(m.v[i*m.cols+j])
		}
	}

	for i := range out.v {
		out.v[i] = g(out.v[i])
	}

	return out
}

func walkUnary(s Symbol, a plain, touch func(float64) float64) plain {
	out := plain{slices.Clone(a.v), a.rows, a.cols}
	each := func(f func(float64) float64) plain {
		for i, x := range a.v {
			out.v[i] = f(x)
		}
		return out
	}

	n := float64(len(a.v))
	mean := 0.0
	lo := math.Inf(1)
	hi := math.Inf(-1)
	for _, x := range a.v {
		mean += x / n
		lo, hi = math.Min(lo, x), math.Max(hi, x)
	}

	switch s {
	case Sqr, Pow:
		return each(func(x float64) float64 { return x * x })
	case Neg:
		return each(func(x float64) float64 { return -x })
	case Abs:
		return each(math.Abs)
	case Log:
		return each(func(x float64) float64 { return math.Log(math.Abs(x) + 0.001) })
	case Exp:
		return each(func(x float64) float64 { return math.Exp(math.Min(x, 100)) })
	case Sqrt:
		return each(func(x float64) float64 { return math.Sqrt(math.Abs(x)) })
	case Tanh:
		return each(math.Tanh)
	case Mms:
		return each(func(x float64) float64 { return (touch(x) - touch(lo)) / (touch(hi) - touch(lo)) })
	case Zsn:
		dev := 0.0
		for _, x := range a.v {
			dev += (x - mean) * (x - mean)
		}
		return each(func(x float64) float64 { return (touch(x) - touch(mean)) / math.Sqrt(dev/(n-1)) })
	case Rnorm, Cnorm:
		return walkBinary(Pdiv, a, sums(a, s == Rnorm, math.Abs, exactly))
	}

	return out
}

func walkBinary(s Symbol, a, b plain) plain {
	out := plain{rows: max(a.rows, b.rows), cols: max(a.cols, b.cols)}
	out.v = make([]float64, out.rows*out.cols)

	pick := func(p plain, i, j int) float64 { return p.v[min(i, p.rows-1)*p.cols+min(j, p.cols-1)] }
	norm := 0.0
	for i := range out.rows {
		for j := range out.cols {
			norm += pick(b, i, j) * pick(b, i, j)
		}
	}

	for i := range out.rows {
		for j := range out.cols {
			x, y := pick(a, i, j), pick(b, i, j)
			var v float64
			switch s {
			case Add:
				v = x + y
			case Sub:
				v = x - y
			case Mul:
				v = x * y
			case Div:
				v = x / math.Sqrt(norm)
			case Pdiv:
				v = x / (math.Abs(y) + 1e-8)
			case Min:
				v = math.Min(x, y)
			case Max:
				v = math.Max(x, y)
			}

			out.v[i*out.cols+j] = v
		}
	}

	return out
}

// TestProgramsAgainstDefinition: compiled programs give what the definition gives in float64, to 1e-3 of the
// largest score. Skipped are trees with a value outside [1e-15, 1e15], where a square may leave float32, and
// ill-conditioned ones.
func TestProgramsAgainstDefinition(t *testing.T) {
	good := 0
	rapid.Check(t, func(t *rapid.T) {
		e := anyExpr(Symbols()).Draw(t, "e")
		if e.Shape() != Matrix {
			return
		}

		in := edgeInputs(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(2, 9).Draw(t, "rows"),
			rapid.SampledFrom([]int{2, 7, 40, 515}).Draw(t, "cols"))
		if !moderate(e, in) || !conditioned(e, in) {
			return
		}

		want := walkTree(e, in, exactly)
		scale := want.largest()
		good++
		p, err := Compile(e)
		if err != nil {
			t.Fatal(err)
		}

		dst := kernels.MatOf(kernels.NewHost(kernels.F32, len(want.v)), want.rows, want.cols)
		if err := p.Eval(dst, in, Exec{Threads: 2}); err != nil {
			t.Fatal(err)
		}

		for i, v := range want.v {
			if g := float64(dst.Buf.F32()[i]); !(math.Abs(g-v) <= 1e-3*scale) {
				t.Fatalf("%s at %d: %g, want %g (largest %g)", e, i, g, v, scale)
			}
		}
	})

	if good < 10 && !testing.Short() { // -short draws a fifth of the trees
		t.Errorf("only %d expressions were compared", good)
	}
}

// moderate reports whether every value of every node is zero or in [1e-15, 1e15].
func moderate(e *Expr, in Inputs) bool {
	ok := true
	walkTree(e, in, func(v float64) float64 {
		a := math.Abs(v)
		ok = ok && (a == 0 || a > 1e-15 && a < 1e15)
		return v
	})
	return ok
}

// conditioned reports whether errors of up to 2e-6 of every value of every node, some 16 roundings, change the
// values of every node by less than 3e-4 of the node's largest: trees that divide by or normalise nearly equal
// numbers magnify rounding without bound, up to 0/0, which a min or max above may hide from the scores.
func conditioned(e *Expr, in Inputs) bool {
	ok := true
	e.walk(func(n *Expr) {
		want := walkTree(n, in, exactly)
		scale := want.largest()
		for seed := range uint64(6) {
			noise := rand.New(rand.NewPCG(seed, 0))
			got := walkTree(n, in, func(v float64) float64 { return v * (1 + 4e-6*(noise.Float64()-0.5)) })
			for i, v := range want.v {
				ok = ok && math.Abs(got.v[i]-v) <= 3e-4*scale
			}
		}
	})

	return ok
}

func (p plain) largest() float64 {
	scale := 0.0
	for _, v := range p.v {
		scale = max(scale, math.Abs(v))
	}
	return scale
}

// TestProgramBits: threads, instruction sets, 16-bit storage, strided views and row blocks don't change a bit.
func TestProgramBits(t *testing.T) {
	for _, text := range append([]string{
		"rnorm(W) + cnorm(G)*Wr2 - Wc1", "zsn(W)*mms(log(G)) + Xm/W",
		"zsn(mms(W*G) + zsn(X))*max(W, Hi)",
	}, benchTrees...) {
		e := mustParse(t, text)
		p, err := Compile(e)
		if err != nil {
			t.Fatal(err)
		}

		in := benchInputs(301, 530, kernels.BF16, kernels.F16)
		eval := func(in Inputs, o Exec) []float32 {
			dst := kernels.MatOf(kernels.NewHost(kernels.F32, 301*530), 301, 530)
			if err := p.Eval(dst, in, o); err != nil {
				t.Fatal(err)
			}
			return dst.Buf.F32()
		}

		want := eval(in, Exec{Threads: 1, loops: lanes.All()[0]})
		same := func(what string, got []float32) {
			for i := range want {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) && (got[i] == got[i] || want[i] == want[i]) {
					t.Fatalf("%s, %s: %g at %d, want %g", text, what, got[i], i, want[i])
				}
			}
		}

		for _, l := range lanes.All() {
			for threads := range 5 {
				same(fmt.Sprintf("%s with %d threads", l.Name, threads), eval(in, Exec{Threads: threads, loops: l}))
			}
		}

		same("float32 in wider rows", eval(widened(in), Exec{}))
		blocks := make([]float32, 301*530)
		s, err := p.Scorer(in, Exec{})
		if err != nil {
			t.Fatal(err)
		}

		if err := s.Each(17, func(first int, scores kernels.Mat) error {
			copy(blocks[first*530:], scores.Buf.F32()[:scores.Len()])
			return nil
		}); err != nil {
			t.Fatal(err)
		}

		same("in blocks", blocks)
	}
}

// widened copies the matrices to float32, with a gap between rows and with signs on W.
func widened(in Inputs) Inputs {
	for _, m := range []*kernels.Mat{&in.W, &in.G} {
		b := kernels.NewHost(kernels.F32, m.Rows*(m.Cols+5))
		for i := range m.Rows {
			for j, h := range m.RowU16(i) {
				v := kernels.FromF16(h)
				if m.DType() == kernels.BF16 {
					v = -kernels.FromBF16(h)
				}
				b.F32()[i*(m.Cols+5)+j] = v
			}
		}

		*m = kernels.MatOf(b, m.Rows, m.Cols+5).ColRange(0, m.Cols)
	}

	return in
}

func TestInputsRefused(t *testing.T) {
	in := edgeInputs(1, 4, 6)
	dst := kernels.MatOf(kernels.NewHost(kernels.F32, 24), 4, 6)
	p, err := Compile(mustParse(t, "W*G*X"))
	if err != nil {
		t.Fatal(err)
	}

	for name, change := range map[string]func(in *Inputs){
		"no G":         func(in *Inputs) { in.G = kernels.Mat{} },
		"another type": func(in *Inputs) { in.W = kernels.MatOf(kernels.NewHost(kernels.F64, 24), 4, 6) },
		"other shape":  func(in *Inputs) { in.G = in.G.RowRange(0, 3) },
		"no X":         func(in *Inputs) { in.X = nil },
		"short X":      func(in *Inputs) { in.X = in.X[:5] },
		"device":       func(in *Inputs) { in.G.Buf = kernels.NewDevice(kernels.F32, 24, 64, nil) },
	} {
		c := in
		change(&c)
		if !errors.Is(p.Eval(dst, c, Exec{}), ErrInput) {
			t.Errorf("%s: accepted", name)
		}
	}

	if err := p.Eval(dst.RowRange(0, 2), in, Exec{}); err != nil {
		t.Errorf("the first rows alone: %v", err)
	}
	if err := p.Eval(dst.ColRange(0, 5), in, Exec{}); !errors.Is(err, ErrInput) {
		t.Errorf("a narrow destination: %v", err)
	}

	in.G.Buf.F32()[15] = float32(math.NaN())
	if err := p.Eval(dst, in, Exec{Finite: true}); !errors.Is(err, ErrNonFinite) {
		t.Errorf("a NaN: %v", err)
	}
	if err := p.Eval(dst, in, Exec{}); err != nil {
		t.Errorf("a NaN that was not asked about: %v", err)
	}

	for _, text := range []string{"X*X", "Wr1 + Wr2"} {
		if _, err := Compile(mustParse(t, text)); !errors.Is(err, ErrShape) {
			t.Errorf("%s compiles: %v", text, err)
		}
	}

	if _, err := Compile(nil); !errors.Is(err, ErrSyntax) {
		t.Errorf("no tree: %v", err)
	}
}

// TestEmptyMatrices: no rows, no columns, one element.
func TestEmptyMatrices(t *testing.T) {
	for _, shape := range [][2]int{{0, 5}, {5, 0}, {1, 1}} {
		n := shape[0] * shape[1]
		w := kernels.MatOf(kernels.WrapF32(make([]float32, n)), shape[0], shape[1])
		in := Inputs{W: w, G: w, X: make([]float32, shape[1])}
		p, err := Compile(mustParse(t, "mms(W)*zsn(X) + rnorm(G) - W/X"))
		if err != nil {
			t.Fatal(err)
		}

		if err := p.Eval(kernels.MatOf(kernels.NewHost(kernels.F32, n), shape[0], shape[1]), in, Exec{}); err != nil {
			t.Errorf("%v: %v", shape, err)
		}
	}
}

// TestGolden: statistics, scores and masks of the small worked example, to the digits in which they are given.
func TestGolden(t *testing.T) {
	w := []float32{.5, -1, .25, 2, -.125, .75, -1.5, .1, 1, .2, -.3, .4, -.5, .6, -.7, .8}
	g := []float32{.2, .1, .9, .05, 1.5, .3, .02, 4, .4, 2, .7, .6, .1, .05, .3, .25}
	in := Inputs{
		W: kernels.MatOf(kernels.WrapF32(w), 2, 8), G: kernels.MatOf(kernels.WrapF32(g), 2, 8),
		X: make([]float32, 8),
	}

	for j := range in.X {
		s := 0.0
		for token := range 16 {
			x := math.Sin(1+8*float64(token)+float64(j)) * (1 + 0.25*float64(j))
			s += x * x
		}
		in.X[j] = float32(s)
	}

	for j, want := range []float64{
		8.315847, 12.552824, 17.226034, 25.273247, 32.535359, 38.657843, 51.056361,
		62.18803,
	} {
		if math.Abs(float64(in.X[j])-want) > 1e-5 {
			t.Errorf("s[%d] is %g", j, in.X[j])
		}
	}

	scores := evalAny(t, mustParse(t, "abs(W*W)*mms(G)"), in, nil)
	for j, want := range []float64{.011307, .020101, .013819, .030151, .00581, .039573, 0, .01} {
		if math.Abs(float64(scores.RowF32(0)[j])-want) > 1e-6 {
			t.Errorf("score %d is %g, want %g", j, scores.RowF32(0)[j], want)
		}
	}

	ops := ref.New().Ops()
	for text, want := range map[string][2]string{
		"abs(W*W)*mms(G)":      {"0111010010010011", "0101010110010011"},
		"sqr(abs(W*W)*mms(G))": {"0111010010010011", "0101010110010011"},
		"W*sqrt(X)":            {"0101011010000111", "0101011010010011"},
		"W*sqrt(X) + W*G":      {"0101011010000111", "0101011010010011"},
		"(pdiv(W, Wc1) + pdiv(W, Wr1))*sqrt(sqrt(X))": {"0101011010001101", "0101011010101001"},
	} {
		score := kernels.Score{X: evalAny(t, mustParse(t, text), in, nil), Raw: true}
		mask := kernels.MatOf(kernels.NewHost(kernels.U8, 16), 2, 8)
		ops.SelectRows(mask, score, 4)
		half := bits(mask)
		ops.SelectNM(mask, score, 2, 4)
		if got := [2]string{half, bits(mask)}; got != want {
			t.Errorf("%s keeps %v, want %v", text, got, want)
		}
	}
}

func bits(mask kernels.Mat) (s string) {
	for _, b := range mask.Buf.U8() {
		s += fmt.Sprint(b)
	}
	return s
}

// TestRandomSizes: the published generator's trees have 5.54 nodes (grow) on average, and half of them lack W.
func TestRandomSizes(t *testing.T) {
	g := PaperGrammar()
	const n = 20000
	nodes, lacking := 0, 0
	for i := range n {
		e := g.random(rng.NewStream(1, i), Matrix, false, g.InitDepth, 0)
		nodes += e.Size()
		if !e.Uses(W) {
			lacking++
		}
	}

	if mean := float64(nodes) / n; math.Abs(mean-5.5) > 0.15 {
		t.Errorf("mean size %.3f", mean)
	}
	if share := float64(lacking) / n; math.Abs(share-0.492) > 0.015 {
		t.Errorf("%.3f lack W", share)
	}
}
