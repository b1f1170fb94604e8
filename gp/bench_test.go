package gp

import (
	"fmt"
	"testing"
	"time"

	"github.com/modelcompress/compress/gp/internal/lanes"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
)

// benchInputs makes a matrix pair of the given types, and vectors.
func benchInputs(rows, cols int, wt, gt kernels.DType) Inputs {
	in := synthetic(rng.NewStream(5), 1, cols)
	r := rng.NewStream(7)
	fill := func(d kernels.DType, f func() float32) kernels.Mat {
		b := kernels.NewHost(d, rows*cols)
		for i := range rows * cols {
			v := f()
			switch d {
			case kernels.F32:
				b.F32()[i] = v
			case kernels.BF16:
				b.U16()[i] = kernels.ToBF16(v)
			default:
				b.U16()[i] = kernels.ToF16(v)
			}
		}

		return kernels.MatOf(b, rows, cols)
	}

	in.W = fill(wt, func() float32 { return float32(r.Float()+r.Float()-1) / 20 })
	in.G = fill(gt, func() float32 { return float32(r.Float() * r.Float()) })
	return in
}

// opByOp evaluates a tree as a tensor library does: one loop and one new matrix per node, on the same vector kernels.
func opByOp(in Inputs, e *Expr, l *lanes.Loops) []float32 {
	n := in.W.Len()
	out := make([]float32, n)
	switch {
	case e.Sym == W:
		if in.W.DType() == kernels.F32 {
			l.Abs(out, in.W.Buf.F32())
		} else {
			l.BF16(out, in.W.Buf.U16(), 0x7fff)
		}
		return out
	case e.Sym == G:
		if in.G.DType() == kernels.F32 {
			return in.G.Buf.F32()
		}
		l.F16(out, in.G.Buf.U16(), 0xffff)
		return out
	case e.Sym == X:
		for i := range in.W.Rows {
			copy(out[i*in.W.Cols:], in.X)
		}
		return out
	}

	a := opByOp(in, e.Left, l)
	if e.Sym == Div {
		b := opByOp(in, e.Right, l)
		l.Affine(out, a, 0, float32(l.SumSq(b)))
		return out
	}

	var b []float32
	if e.Right != nil {
		b = opByOp(in, e.Right, l)
	}

	switch e.Sym {
	case Mms:
		lo, hi, _ := l.Range(a)
		t := make([]float32, n)
		l.Affine(t, a, lo, 1)
		l.Affine(out, t, 0, hi-lo)
	case Zsn:
		m := l.Moments(a)
		t := make([]float32, n)
		l.Affine(t, a, float32(m.Mean), 1)
		l.Affine(out, t, 0, float32(m.Dev))
	case Log:
		t, u := make([]float32, n), make([]float32, n)
		l.Abs(t, a)
		l.Affine(u, t, -0.001, 1)
		l.Log(out, u)
	case Sqr, Pow:
		l.Sqr(out, a)
	case Abs:
		l.Abs(out, a)
	case Neg:
		l.Neg(out, a)
	case Sqrt:
		l.Sqrt(out, a)
	case Exp:
		l.Exp(out, a)
	case Tanh:
		l.Tanh(out, a)
	case Add:
		l.Add(out, a, b)
	case Sub:
		l.Sub(out, a, b)
	case Mul:
		l.Mul(out, a, b)
	}

	return out
}

var benchTrees = []string{
	"W*sqrt(X)",
	"abs(W*W)*mms(G)",
	"sqr(W)*sqrt(G) + W*G",
	"(W*W)*mms(G) + abs(W - G)*sqrt(X) - W*G", // 15 nodes or so
	"log(W*G) + zsn(W)*sqrt(X)",
	"exp(mms(W)) - tanh(-mms(G))",
}

// BenchmarkTrees times the fused program against reading and writing the same bytes, and against one loop per node. One
// thread; the minima of interleaved repeats.
func BenchmarkTrees(b *testing.B) {
	const n = 4096
	for _, types := range [][2]kernels.DType{{kernels.F32, kernels.F32}, {kernels.BF16, kernels.F16}} {
		in := benchInputs(n, n, types[0], types[1])
		dst := kernels.MatOf(kernels.NewHost(kernels.F32, n*n), n, n)
		for _, text := range benchTrees {
			p, err := Compile(mustParse(b, text))
			if err != nil {
				b.Fatal(err)
			}

			b.Run(fmt.Sprintf("%s-%s/%s", types[0], types[1], text), func(b *testing.B) {
				var fused, stream, apart time.Duration
				least := func(d *time.Duration, f func()) {
					start := time.Now()
					f()
					if t := time.Since(start); *d == 0 || t < *d {
						*d = t
					}
				}

				for range max(b.N, 4) {
					least(&fused, func() {
						if err := p.Eval(dst, in, Exec{Threads: 1}); err != nil {
							b.Fatal(err)
						}
					})

					least(&stream, func() { moveBytes(p, dst, in) })
					least(&apart, func() { opByOp(in, p.Expr, lanes.Best()) })
				}

				b.ReportMetric(float64(fused.Microseconds())/1000, "ms")
				b.ReportMetric(100*float64(stream)/float64(fused), "%bandwidth")
				b.ReportMetric(float64(apart)/float64(fused), "x-op-by-op")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// moveBytes does only the memory traffic of a program: every pass reads the matrices that it needs, the last one also
// writes the scores.
func moveBytes(p *Program, dst kernels.Mat, in Inputs) {
	l := lanes.Best()
	for pass := range p.Passes {
		final := pass == p.Passes-1
		pl := p.plan(pass, final)
		for i := range dst.Rows {
			for _, s := range pl.steps {
				if s.Op == OpLoad {
					m := in.matrix(s.Term)
					if m.DType() == kernels.F32 {
						l.Finite(m.RowF32(i))
					} else {
						o := m.Off + i*m.Stride
						raw := m.Buf.Bytes()[2*o : 2*(o+m.Cols)]
						half, _ := kernels.Wrap(kernels.F32, raw)
						l.Finite(half.F32())
					}
				}
			}

			if final {
				clear(dst.RowF32(i))
			}
		}
	}
}

// BenchmarkSelect times a tree together with the selection of half of every row, scores kept in cache only.
func BenchmarkSelect(b *testing.B) {
	const n = 4096
	dev := cpu.New(cpu.Options{Threads: 1})
	p, err := Compile(mustParse(b, "abs(W*W)*mms(G)"))
	if err != nil {
		b.Fatal(err)
	}

	for _, types := range [][2]kernels.DType{{kernels.F32, kernels.F32}, {kernels.BF16, kernels.F16}} {
		in := benchInputs(n, n, types[0], types[1])
		mask := kernels.MatOf(kernels.NewHost(kernels.U8, n*n), n, n)
		b.Run(fmt.Sprintf("%s-%s", types[0], types[1]), func(b *testing.B) {
			for b.Loop() {
				s, err := p.Scorer(in, Exec{Threads: 1, Finite: true})
				if err != nil {
					b.Fatal(err)
				}

				err = s.Each(0, func(first int, scores kernels.Mat) error {
					dev.Ops().SelectRows(mask.RowRange(first, first+scores.Rows), kernels.Score{X: scores, Raw: true},
						n/2)
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCandidate times what a new candidate costs a search before its fitness: canonical form, checks, fingerprint.
func BenchmarkCandidate(b *testing.B) {
	probe, g := SyntheticProbe(0), FullGrammar()
	e := mustParse(b, "abs(W*W)*mms(G) + log(W*X)")
	for b.Loop() {
		if _, err := g.Check(e, probe); err != nil {
			b.Fatal(err)
		}
	}
}
