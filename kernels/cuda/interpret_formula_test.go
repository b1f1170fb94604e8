//go:build linux && (amd64 || arm64)

package cuda

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/ref"
)

// bench is a matrix with its inputs in the memory of an interpreted device, and the same for package gp.
type bench struct {
	t          *testing.T
	rows, cols int
	types      []kernels.DType
	args       formulaArgs
	memory     []byte
	in         gp.Inputs
	vectors    int
}

// place puts bytes into the device's memory and returns their address.
func (b *bench) place(p []byte) uintptr {
	b.memory = append(b.memory, make([]byte, (16-len(b.memory)%16)%16)...)
	at := base + len(b.memory)
	b.memory = append(b.memory, p...)
	return uintptr(at)
}

// floatsAt reads n numbers back.
func (b *bench) floatsAt(at uintptr, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b.memory[int(at)-base+4*i:]))
	}
	return out
}

// matrix makes a matrix of a type with values in [lowest, 1), strided and at an odd element on the device,
// dense on the host.
func (b *bench) matrix(rng *rand.Rand, t kernels.DType, lowest float32) (mat, kernels.Mat) {
	host := kernels.NewHost(t, b.rows*b.cols)
	gap := 3
	size := t.Size()

	for i := range host.Len {
		v := lowest + (1-lowest)*rng.Float32()
		switch t {
		case kernels.BF16:
			binary.LittleEndian.PutUint16(host.Bytes()[2*i:], kernels.ToBF16(v))
		case kernels.F16:
			binary.LittleEndian.PutUint16(host.Bytes()[2*i:], kernels.ToF16(v))
		default:
			host.F32()[i] = v
		}
	}

	spaced := make([]byte, size)
	for i := range b.rows {
		spaced = append(append(spaced, host.Bytes()[i*b.cols*size:(i+1)*b.cols*size]...), make([]byte, gap*size)...)
	}

	return mat{b.place(spaced) + uintptr(size), b.cols + gap, int32(b.rows), int32(b.cols)},
		kernels.MatOf(host, b.rows, b.cols)
}

// newBench makes inputs for every terminal.
func newBench(t *testing.T, rows, cols int, w kernels.DType) *bench {
	b, rng := &bench{t: t, rows: rows, cols: cols, types: []kernels.DType{w, kernels.F32}},
		rand.New(rand.NewPCG(7, uint64(w)))
	b.args.m[0], b.in.W = b.matrix(rng, w, -1)
	b.args.m[1], b.in.G = b.matrix(rng, kernels.F32, 0) // magnitudes

	for _, v := range []*[]float32{&b.in.X, &b.in.Mean, &b.in.Var, &b.in.Hess, &b.in.Inv} {
		*v = make([]float32, cols)
		for j := range *v {
			(*v)[j] = rng.Float32() + 0.01
		}
		b.vector(bytesOf(*v))
	}

	b.args.scalars = b.place(make([]byte, 8*32))
	return b
}

// vector adds one that formulas may load.
func (b *bench) vector(p []byte) (number int) {
	b.args.vectors[b.vectors] = b.place(p)
	b.vectors++
	return b.vectors - 1
}

// run interprets a kernel with a formula in it; formula_fold has none, and those of interpret.cu read it.
func (b *bench) run(kernel string, f Formula, args formulaArgs, g grid) {
	b.t.Helper()
	text, err := kernelModule("interpret", kernel)
	if strings.HasPrefix(kernel, "formula") {
		text, err = formulaModule(kernel, f, b.types)
	}
	if err != nil {
		b.t.Fatal(err)
	}

	if code, ok := interpretable(f); ok {
		args.code, args.length = b.place(bytesOf(code)), int32(len(code)-1)
		args.type0, args.type1 = int32(b.types[0]), int32(b.types[1])
	}

	m, err := assembled(text)
	if err != nil {
		b.t.Fatal(err)
	}

	m.global, m.param = b.memory, unsafe.Slice((*byte)(unsafe.Pointer(&args)), unsafe.Sizeof(args))
	if err := m.run(g); err != nil {
		b.t.Fatalf("%s: %v", kernel, err)
	}
}

// scalars gathers statistic kind of a formula over a shape into a slot.
func (b *bench) scalars(f Formula, rows, cols int, kind StatKind, slot int) {
	g := grid{x: 2, y: 2, threads: 64}
	args := b.args
	args.d = mat{rows: int32(rows), cols: int32(cols)}
	args.kind, args.slot, args.parts = int32(kind), int32(slot), int32(g.x*g.y)
	args.part = b.place(make([]byte, 32*g.x*g.y))
	b.run("formula_stat", f, args, g)
	b.run("formula_fold", f, args, grid{x: 1, y: 1, threads: 64})
}

// sums gathers a statistic of every row or column, and returns the number of the vector.
func (b *bench) sums(f Formula, kind StatKind, along int32) int {
	n := b.rows
	if along == 1 {
		n = b.cols
	}

	number := b.vector(make([]byte, 4*n))
	args := b.args
	args.d = mat{p: args.vectors[number], rows: int32(b.rows), cols: int32(b.cols)}
	args.kind, args.slot = int32(kind), along
	b.run("formula_vector", f, args, grid{x: 3, y: 1, threads: 64})
	return number
}

// formula translates a program, and gathers its statistics on the way.
func (b *bench) formula(p *gp.Program) Formula {
	var f Formula
	vectors := map[gp.Symbol]int{gp.X: 0, gp.Xm: 1, gp.Xv: 2, gp.H: 3, gp.Hi: 4}
	for _, i := range p.Code[:p.Result+1] {
		out := FormulaInstr{Op: FormulaOp(i.Op) + 1, A: max(i.A, 0), B: max(i.B, 0)}
		switch i.Op {
		case gp.OpLoad:
			v, isVector := vectors[i.Term]
			out = (FormulaInstr{Op: LoadCol, Arg: v})
			if !isVector {
				out = FormulaInstr{Op: LoadMatrix}
				if i.Term == gp.G {
					out.Arg = 1
				}
			}
		case gp.OpStat:
			s := p.Stats[i.Stat]
			op := LoadRow
			kind := StatTotal
			along := int32(0)
			if s.Kind == gp.StatRowNorm || s.Kind == gp.StatColNorm {
				kind = StatNorm
			}
			if s.Kind == gp.StatColAbs || s.Kind == gp.StatColNorm {
				op, along = LoadCol, 1
			}

			out = FormulaInstr{Op: op, Arg: b.sums(f[:s.Of+1], kind, along)}
		case gp.OpAffine:
			s := p.Stats[i.Stat]
			rows, cols, shape := b.rows, b.cols, p.Code[s.Of].Shape
			if s.Kind == gp.StatNorm {
				shape = s.Over
			}
			if shape == gp.Row {
				rows = 1
			}
			if shape == gp.Col {
				cols = 1
			}

			b.scalars(f[:s.Of+1], rows, cols, StatKind(s.Kind), i.Stat)
			out.Arg = i.Stat
		}

		f = append(f, out)
	}

	return f
}

// score runs a formula on the device and returns its values and where they are.
func (b *bench) score(f Formula) ([]float32, mat) {
	args := b.args
	args.d = mat{b.place(make([]byte, 4*b.rows*b.cols)), b.cols, int32(b.rows), int32(b.cols)}
	b.run("formula_score", f, args, grid{x: 2, y: 2, threads: 64})
	return b.floatsAt(args.d.p, b.rows*b.cols), args.d
}

// TestFormulaPTXGivesWhatGPGives runs the PTX of formulas, as it goes to the driver, in an interpreter, and
// compares scores with the evaluation of package gp: every operation, every statistic, every type of weight.
func TestFormulaPTXGivesWhatGPGives(t *testing.T) {
	for n, text := range []string{
		"abs(W * W) * mms(G)",
		"W * sqrt(X)",
		"pdiv(W, Wr2) * sqrt(X) + pdiv(W, Wc1)",
		"zsn(W) - tanh(G) * log(X)",
		"exp(neg(G)) / W + min(W, X) - max(G, H)",
		"rnorm(W) + cnorm(G * W) + sqr(Hi) / X",
		"tanh(Xm) + mms(X * W) + Wr1 * Wc2 - Xv",
	} {
		e, err := gp.Parse(text)
		if err != nil {
			t.Fatal(err)
		}

		p, err := gp.Compile(e)
		if err != nil {
			t.Fatal(err)
		}

		b := newBench(t, 5, 71, []kernels.DType{kernels.F32, kernels.BF16, kernels.F16}[n%3])
		got, _ := b.score(b.formula(p))
		want := kernels.MatOf(kernels.NewHost(kernels.F32, b.rows*b.cols), b.rows, b.cols)
		if err := p.Eval(want, b.in, gp.Exec{Threads: 1}); err != nil {
			t.Fatal(err)
		}

		for i, v := range want.Buf.F32() {
			// float32 throughout, and functions to 2^-22: a dozen roundings of values up to a few times the result
			if d := math.Abs(float64(got[i] - v)); !(d <= 4e-6*(1+math.Abs(float64(v)))) {
				t.Fatalf("%s: score %d is %v, want %v", text, i, got[i], v)
			}
		}
	}
}

// TestFormulaPTXSpecials: NaN, infinities and zeros go through every operation as in float32 arithmetic on the host.
func TestFormulaPTXSpecials(t *testing.T) {
	b := newBench(t, 1, 9, kernels.F32)
	inf := float32(math.Inf(1))
	values := []float32{0, float32(math.Copysign(0, -1)), 1, -2, inf, -inf, float32(math.NaN()), 1e-40, 200}
	v, w := b.vector(bytesOf(values)), b.vector(bytesOf(slices.Concat(values[4:], values[:4])))

	x, y := FormulaInstr{Op: LoadCol, Arg: v}, FormulaInstr{Op: LoadCol, Arg: w}
	for op := Square; op <= Most; op++ {
		got, _ := b.score(Formula{x, y, {Op: op, A: 0, B: 1}})
		for j, s := range got {
			want := plain(op, float64(values[j]), float64(values[(j+4)%9]))
			if same := float64(s) == want || s != s && want != want; !same &&
				!(math.Abs(float64(s)-want) <= 1e-6*math.Abs(want)+1e-44) {
				t.Errorf("operation %d of %v and %v is %v, want %v", op, values[j], values[(j+4)%9], s, want)
			}
		}
	}
}

// plain is an operation in float64, rounded to float32, with the guards of package gp.
func plain(op FormulaOp, x, y float64) float64 {
	abs := math.Abs
	return float64(float32(map[FormulaOp]float64{
		Square: x * x, Negate: -x, Absolute: abs(x),
		Logarithm: math.Log(float64(float32(abs(x) + float64(float32(0.001))))), Exponential: math.Exp(min(x, 100)),
		Root:              math.Sqrt(abs(x)),
		HyperbolicTangent: math.Tanh(x), Plus: x + y, Minus: x - y, Times: x * y,
		Quotient: x / float64(float32(abs(y)+float64(float32(1e-8)))), Least: min(x, y), Most: max(x, y),
	}[op]))
}

// TestFormulaPTXSelects: the fused selection keeps what the reference backend keeps of the same scores, with
// and without equal ones, for any number to drop.
func TestFormulaPTXSelects(t *testing.T) {
	for _, c := range []struct {
		rows, cols int
		f          Formula
	}{
		{2, 700, Formula{{Op: LoadMatrix}, {Op: LoadCol}, {Op: Times, A: 0, B: 1}}},
		{1, 37, Formula{{Op: LoadMatrix}, {Op: Times, A: 0, B: 0}, {Op: Negate, A: 1}}},
		{1, 530, Formula{{Op: LoadMatrix}, {Op: Minus, A: 0, B: 0}}}, // all equal
	} {
		b := newBench(t, c.rows, c.cols, kernels.BF16)
		values, _ := b.score(c.f)
		scores := kernels.MatOf(kernels.WrapF32(values), c.rows, c.cols)
		for _, drop := range []int{0, 1, c.cols / 2, c.cols - 1, c.cols} {
			args := b.args
			args.mask = mat{b.place(make([]byte, c.rows*c.cols)), c.cols, int32(c.rows), int32(c.cols)}
			args.drop = drop
			b.run("formula_select", c.f, args, grid{x: 1, y: 1, threads: 512})
			want := kernels.MatOf(kernels.NewHost(kernels.U8, len(values)), c.rows, c.cols)
			ref.New().Ops().SelectRows(want, kernels.Score{X: scores, Raw: true}, drop)
			if at := int(args.mask.p) - base; !slices.Equal(b.memory[at:at+len(values)], want.Buf.Bytes()) {
				t.Errorf("%d×%d without %d: another mask than the reference's", c.rows, c.cols, drop)
			}
		}
	}
}

// TestInterpretedPTXHasTheBitsOfCompiledPTX runs the kernels that read a formula and those that have it in
// them, as both go to the driver: values, statistics and masks have the same bits for every operation and type
// of weight, special values included.
func TestInterpretedPTXHasTheBitsOfCompiledPTX(t *testing.T) {
	for _, w := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
		b := newBench(t, 3, 77, w)
		inf := float32(math.Inf(1))
		copy(b.memory[int(b.args.vectors[0])-base:],
			bytesOf([]float32{0, inf, -inf, float32(math.NaN()), 1e-40, 200, -0.01}))
		copy(b.memory[int(b.args.scalars)-base:], bytesOf([]float32{0.3, 0.7}))

		for _, f := range []Formula{
			everything, everything[:12], everything[:10],
			{{Op: LoadCol}, {Op: HyperbolicTangent, A: 0}, {Op: Quotient, A: 1, B: 0}},
		} {
			args := b.args
			results := func(prefix string) (all []byte) {
				score := args
				score.d = mat{b.place(make([]byte, 4*3*77)), 77, 3, 77}
				// three elements of a thread, of which the last is outside for some
				b.run(prefix+"_score", f, score, grid{x: 2, y: 2, threads: 32})

				stat := args
				stat.d = mat{rows: 3, cols: 77}
				stat.kind = int32(StatTotal)
				stat.part = b.place(make([]byte, 32*4))
				b.run(prefix+"_stat", f, stat, grid{x: 2, y: 2, threads: 32})

				vector := args
				vector.d = mat{p: b.place(make([]byte, 4*77)), rows: 3, cols: 77}
				vector.kind = int32(StatNorm)
				vector.slot = 1
				b.run(prefix+"_vector", f, vector, grid{x: 5, y: 1, threads: 32})
				sel := args
				sel.mask, sel.drop = mat{b.place(make([]byte, 77)), 77, 1, 77}, 30
				b.run(prefix+"_select", f, sel, grid{x: 1, y: 1, threads: 512})

				for _, part := range []struct {
					at uintptr
					n  int
				}{{score.d.p, 4 * 3 * 77}, {stat.part, 32 * 4}, {vector.d.p, 4 * 77}, {sel.mask.p, 77}} {
					all = append(all, b.memory[int(part.at)-base:int(part.at)-base+part.n]...)
				}

				return all
			}

			if !slices.Equal(results("formula"), results("interpret")) {
				t.Errorf("%v, %d instructions: other bits", w, len(f))
			}
		}
	}
}
