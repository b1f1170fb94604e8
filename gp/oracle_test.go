package gp

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gp/internal/lanes"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// eachOracle runs a test on every folder of reference data.
func eachOracle(t *testing.T, test func(t *testing.T, dir string)) {
	root := os.Getenv("COMPRESS_ORACLE")
	if root == "" {
		root = "../../shared/oracle"
	}

	root = filepath.Join(root, "prune")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Skipf("no reference data: %v", err)
	}

	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) { test(t, filepath.Join(root, e.Name())) })
	}
}

func openTensors(t *testing.T, path string) *safetensors.File {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// tensor reads a float32 matrix; a vector becomes one row.
func tensor(t *testing.T, f *safetensors.File, name string) kernels.Mat {
	t.Helper()
	info, ok := f.Info(name)
	if !ok {
		t.Fatalf("%s: no tensor %s", f.Path(), name)
	}

	raw, err := f.Bytes(name)
	if err != nil {
		t.Fatal(err)
	}

	v := make([]float32, len(raw)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}

	rows, cols := 1, int(info.Shape[0])
	if len(info.Shape) == 2 {
		rows, cols = int(info.Shape[0]), int(info.Shape[1])
	}

	return kernels.MatOf(kernels.WrapF32(v), rows, cols)
}

// ulps is the distance of two float32 in steps; equal for NaN with NaN.
func ulps(a, b float32) int64 {
	if a != a || b != b {
		if a != a && b != b {
			return 0
		}
		return math.MaxInt64
	}

	key := func(f float32) int64 {
		if u := math.Float32bits(f); u>>31 != 0 {
			return -int64(u & math.MaxInt32)
		} else {
			return int64(u)
		}
	}

	d := key(a) - key(b)
	return max(d, -d)
}

// TestOperatorOracle: every operator on matrices, vectors and a constant, NaN and infinities included.
// Arithmetic is exact; torch's sqrt, exp, log and tanh are good to 1 ulp and ours to 0.5, which makes 2 at a
// rounding boundary; the norm of div may differ by 1. In zsn torch's float32 mean is off by one rounding, which
// moves small results by up to 3e-7 of the largest.
func TestOperatorOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "ops.safetensors")
		if _, err := os.Stat(path); err != nil {
			t.Skipf("no operator table: %v", err)
		}

		f := openTensors(t, path)
		for _, name := range f.Names() {
			parts := strings.Split(name, ".")
			if parts[0] != "out" {
				continue
			}

			for _, l := range lanes.All() {
				want := tensor(t, f, name)
				got := evalOperator(t, f, parts[1], parts[2], l)

				limit := int64(0)
				switch parts[1] {
				case "sqrt", "exp", "log", "tanh", "div":
					limit = 2
				}

				worst, largest := int64(0), float32(1)
				for _, v := range want.Buf.F32() {
					largest = max(largest, v, -v)
				}

				for i := range want.Rows {
					for j, v := range want.RowF32(i) {
						g := got.RowF32(i)[j]
						if d := v - g; parts[1] == "zsn" && max(d, -d) <= 3e-7*largest {
							continue
						}
						worst = max(worst, ulps(v, g))
					}
				}

				if worst > limit {
					t.Errorf("%s, %s: %d ulps off, at most %d", name, l.Name, worst, limit)
				}
			}
		}
	})
}

// evalOperator applies one operator to the inputs of the table.
func evalOperator(t *testing.T, f *safetensors.File, op, operands string, l *lanes.Loops) kernels.Mat {
	t.Helper()
	sym, err := SymbolByName(op)
	if err != nil {
		t.Fatal(err)
	}

	in, e := Inputs{}, &Expr{Sym: sym}
	for i, name := range strings.Split(operands, "_") {
		m, leaf := tensor(t, f, "in."+name), Leaf(G)
		if name == "v" {
			leaf, in.X = Leaf(X), m.RowF32(0)
		} else if i == 0 || in.G.IsZero() {
			in.G = m
		} else { // a second matrix: binary operators take |W|, so its signs go through two halves
			in.W = m
			return signedBinary(t, sym, in, l)
		}

		if i == 0 {
			e.Left = leaf
		} else {
			e.Right = leaf
		}
	}

	if sym == Abs { // G counts as non-negative, so that abs of it is left out
		e.Left = Unary(Neg, e.Left)
	}

	return evalAny(t, e, in, l)
}

// signedBinary evaluates G op w for a signed w, by putting w in place of the loaded value.
func signedBinary(t *testing.T, sym Symbol, in Inputs, l *lanes.Loops) kernels.Mat {
	t.Helper()
	w, n := in.W, in.W.Len()
	all := slices.Concat(in.G.Buf.F32()[:n], w.Buf.F32()[:n])
	if sym == Div { // the norm doesn't see signs
		return evalAny(t, Binary(Div, Leaf(G), Leaf(W)), in, l)
	}

	dst := make([]float32, n)
	switch sym {
	case Add:
		l.Add(dst, all[:n], all[n:])
	case Sub:
		l.Sub(dst, all[:n], all[n:])
	case Mul:
		l.Mul(dst, all[:n], all[n:])
	}

	return kernels.MatOf(kernels.WrapF32(dst), w.Rows, w.Cols)
}

// evalAny evaluates an expression of any shape.
func evalAny(t testing.TB, e *Expr, in Inputs, l *lanes.Loops) kernels.Mat {
	t.Helper()
	p, err := compile(e)
	if err != nil {
		t.Fatal(err)
	}

	rows, cols, err := p.check(&in)
	if err != nil {
		t.Fatal(err)
	}

	dst := kernels.MatOf(kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	if err := p.Eval(dst, in, Exec{loops: l}); err != nil {
		t.Fatal(err)
	}

	return dst
}

// modelFile finds the weights of a case: beside it or among the data.
func modelFile(t *testing.T, dir string) *safetensors.File {
	t.Helper()
	name := filepath.Base(dir)
	for _, path := range []string{
		filepath.Join(dir, "model.safetensors"),
		filepath.Join(dir, "../../models", name, "model.safetensors"),
		filepath.Join(dir, "../../../data/models", name, "model.safetensors"),
	} {
		if _, err := os.Stat(path); err == nil {
			return openTensors(t, path)
		}
	}

	t.Skipf("no model for %s", dir)
	return nil
}

// TestTreeOracle: the scores of every tree that the published code ranked, from the stored X and from G rounded
// to float16. Tolerance: 4e-6 of the score's own size, or of the largest terms where a sum cancels: the
// reference takes its statistics and its exponentials in float32.
func TestTreeOracle(t *testing.T) {
	eachOracle(t, func(t *testing.T, dir string) {
		trees, _ := filepath.Glob(filepath.Join(dir, "trees", "*.json"))
		if len(trees) == 0 {
			t.Skipf("no trees in %s", dir)
		}

		model, grads := modelFile(t, dir), openTensors(t, filepath.Join(dir, "grads.safetensors"))
		for _, path := range trees {
			name := strings.TrimSuffix(filepath.Base(path), ".json")
			t.Run(name, func(t *testing.T) {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}

				e, err := ParseJSON(text)
				if err != nil {
					t.Fatal(err)
				}

				for _, pattern := range []string{
					"tree_" + name + ".*",
					map[string]string{"best": "pruner_zero.*"}[name],
				} {
					runs, _ := filepath.Glob(filepath.Join(dir, "runs", pattern+".safetensors"))
					for _, run := range runs {
						checkScores(t, e, openTensors(t, run), model, grads)
					}
				}
			})
		}
	})
}

func checkScores(t *testing.T, e *Expr, run, model, grads *safetensors.File) {
	t.Helper()

	for _, name := range run.Names() {
		linear, ok := strings.CutSuffix(name, ".score")
		if !ok {
			continue
		}

		want := tensor(t, run, name)
		in := Inputs{
			W: tensor(t, model, linear+".weight"), G: tensor(t, grads, linear+".G"),
			X: tensor(t, run, linear+".X").RowF32(0),
		}
		half := kernels.MatOf(kernels.NewHost(kernels.F16, in.G.Len()), in.G.Rows, in.G.Cols)
		for i, v := range in.G.Buf.F32() {
			half.Buf.U16()[i] = kernels.ToF16(v)
		}

		in.G = half
		got := evalAny(t, e, in, nil)

		scale := 0.0
		for _, v := range want.Buf.F32() {
			if a := math.Abs(float64(v)); a < math.MaxFloat32 {
				scale = max(scale, a)
			}
		}

		for i := range want.Rows {
			for j, w := range want.RowF32(i) {
				g := got.RowF32(i)[j]
				if w == g || w != w && g != g {
					continue
				}
				if d := math.Abs(float64(w) - float64(g)); !(d <= 4e-6*math.Abs(float64(w))+1e-6*min(scale, 10)) {
					t.Fatalf("%s %s [%d, %d]: %g, want %g", run.Path(), linear, i, j, g, w)
				}
			}
		}
	}
}
