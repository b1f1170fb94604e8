//go:build linux && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cuda"
)

// formulaBench is a matrix with what formulas read, on a device.
type formulaBench struct {
	t          *testing.T
	d          *cuda.Device
	rows, cols int
	in         cuda.FormulaInputs
}

func newFormulaBench(t *testing.T, d *cuda.Device, rows, cols int) *formulaBench {
	stats := make([]float32, 16)
	for i := range stats {
		stats[i] = float32(i%3) + 0.5
	}

	return &formulaBench{t, d, rows, cols, cuda.FormulaInputs{
		Matrices: []kernels.Mat{
			alloc(t, d, rows, cols, kernelBytes(floats(1, rows*cols))),
			alloc(t, d, rows, cols, kernelBytes(floats(2, rows*cols))),
		},
		Vectors: []kernels.Mat{
			alloc(t, d, 1, cols, kernelBytes(floats(3, cols))),
			alloc(t, d, 1, rows, kernelBytes(floats(4, rows))),
		},
		Stats: alloc(t, d, 1, len(stats), kernelBytes(stats)),
	}}
}

// all computes everything that formulas are used for; NaN has one pattern of bits.
func (b *formulaBench) all(f cuda.Formula) (values []float32, mask []byte) {
	b.t.Helper()
	scores, m := alloc(b.t, b.d, b.rows, b.cols, nil), masks(b.t, b.d, b.rows, b.cols)
	byRow, byCol := alloc(b.t, b.d, 1, b.rows, nil), alloc(b.t, b.d, 1, b.cols, nil)
	stats := b.in
	stats.Stats = alloc(b.t, b.d, 1, 16, kernelBytes(read(b.t, b.d, b.in.Stats)))
	err := errors.Join(b.d.Score(scores, f, b.in), b.d.SelectFormula(m, f, b.in, b.cols/3),
		b.d.Gather(b.rows, b.cols, f, stats, cuda.StatMoments, 5),
		b.d.Gather(b.rows, b.cols, f, stats, cuda.StatRange, 6), b.d.GatherRows(byRow, b.cols, f, b.in, cuda.StatTotal),
		b.d.GatherCols(byCol, b.rows, f, b.in, cuda.StatNorm))
	if err != nil {
		b.t.Fatal(err)
	}

	for _, x := range []kernels.Mat{scores, byRow, byCol, stats.Stats} {
		values = append(values, read(b.t, b.d, x)...)
	}

	mask = bits(b.t, b.d, m)
	for _, x := range []kernels.Mat{scores, m, byRow, byCol, stats.Stats} {
		x.Buf.Free()
	}

	return values, mask
}

// drawn is a formula of n instructions over everything that newFormulaBench has.
func drawn(rng *rand.Rand, n int) cuda.Formula {
	f := cuda.Formula{{Op: cuda.LoadMatrix}}
	for len(f) < n {
		i := cuda.FormulaInstr{Op: cuda.FormulaOp(1 + rng.IntN(int(cuda.Most))), A: rng.IntN(len(f)), B: len(f) - 1}
		switch i.Op {
		case cuda.LoadMatrix:
			i.Arg = rng.IntN(2)
		case cuda.LoadRow:
			i.Arg = 1
		case cuda.Affine:
			i.A, i.Arg = i.B, rng.IntN(8)
		}

		if i.Op > cuda.Affine && rng.IntN(2) == 0 {
			i.A, i.B = i.B, i.A
		}

		f = append(f, i)
	}

	return f
}

// TestInterpretedFormulasHaveTheBitsOfCompiledOnes compares values, masks and statistics of formulas that are drawn.
func TestInterpretedFormulasHaveTheBitsOfCompiledOnes(t *testing.T) {
	b := newFormulaBench(t, open(t, ""), 3, 331)
	rng := rand.New(rand.NewPCG(5, 6))
	interpreted := 0
	for n := range 10 {
		f := drawn(rng, 2+7*n)
		b.d.CompileAfter(1000)
		before := b.d.Programs()
		values, mask := b.all(f)
		if b.d.Programs() == before {
			interpreted++
		}

		b.d.CompileAfter(0)
		again, other := b.all(f)
		if b.d.Programs() == before && before < 64 {
			t.Fatalf("formula %d was not compiled", n)
		}

		for i, v := range values {
			if w := again[i]; v != w && (v == v || w == w) {
				t.Fatalf("formula %d: number %d is %v interpreted and %v compiled\n%v", n, i, v, w, f)
			}
		}

		if !slices.Equal(mask, other) {
			t.Fatalf("formula %d: interpretation and compilation give different masks\n%v", n, f)
		}
	}

	if interpreted < 7 {
		t.Errorf("%d of 10 formulas were interpreted", interpreted)
	}
}

// TestInterpreterHasRoom: formulas as a search makes them fit the interpreter's places, and one that needs more
// is compiled.
func TestInterpreterHasRoom(t *testing.T) {
	if !cuda.Interpretable(cuda.Formula{{Op: cuda.LoadMatrix}, {Op: cuda.LoadCol}, {Op: cuda.Times, A: 0, B: 1}}) {
		t.Error("|w|·x is not interpreted")
	}

	var tree func(depth int) cuda.Formula
	tree = func(depth int) cuda.Formula { // a full tree over different leaves
		if depth == 0 {
			return cuda.Formula{{Op: cuda.LoadMatrix}}
		}

		left, right := tree(depth-1), tree(depth-1)
		f := slices.Clone(left)
		for _, i := range right {
			i.A, i.B = i.A+len(left), i.B+len(left)
			f = append(f, i)
		}

		return append(f, cuda.FormulaInstr{Op: cuda.Plus, A: len(left) - 1, B: len(f) - 1})
	}

	if f := tree(7); !cuda.Interpretable(f) {
		t.Errorf("a tree of %d instructions is not interpreted", len(f))
	}

	f := cuda.Formula{{Op: cuda.LoadMatrix}}
	for n := range 12 { // twelve values, all of which are used after the last was made
		f = append(f, cuda.FormulaInstr{Op: cuda.Exponential, A: n})
	}
	for n := range 12 {
		f = append(f, cuda.FormulaInstr{Op: cuda.Plus, A: len(f) - 1, B: n})
	}
	if cuda.Interpretable(f) {
		t.Fatal("twelve values have room in eight places")
	}

	b := newFormulaBench(t, open(t, ""), 3, 40)
	out := alloc(t, b.d, 3, 40, nil)
	if err := b.d.Score(out, f, b.in); err != nil {
		t.Fatal(err)
	}
	if err := b.d.Ops().Sync(); err != nil || b.d.Programs() != 1 {
		t.Errorf("%d programs, error %v", b.d.Programs(), err)
	}
}

// numbered is a formula for every number.
func numbered(n int) cuda.Formula {
	f := cuda.Formula{{Op: cuda.LoadMatrix}}
	for b := n + 1; b > 0; b /= 2 {
		f = append(f, cuda.FormulaInstr{Op: []cuda.FormulaOp{cuda.Negate, cuda.Absolute}[b%2], A: len(f) - 1})
	}
	return f
}

// TestThousandsOfFormulas: a search goes through them without one compilation; those that come often are
// compiled, few stay loaded, and the driver holds no more modules than that.
func TestThousandsOfFormulas(t *testing.T) {
	lib, fake := configure(t, "")
	d, err := cuda.Open(0, cuda.Options{Library: lib})
	if err != nil {
		t.Fatal(err)
	}

	b := newFormulaBench(t, d, 1, 4)
	mask := masks(t, d, 1, 4)
	modules := func() int32 {
		held := make([]int32, 6)
		fake.held(&held[0])
		return held[4]
	}

	use := func(n int) {
		if err := d.SelectFormula(mask, numbered(n), b.in, 2); err != nil {
			t.Fatal(err)
		}
	}

	for n := range 1200 {
		use(n)
	}
	if n := modules(); d.Programs() != 0 || n != 1 {
		t.Errorf("%d programs, %d modules for formulas that came once", d.Programs(), n)
	}

	d.CompileAfter(3)
	most := int32(0)
	for n := range 80 {
		for range 4 {
			use(n)
		}
		d.Compiled()
		use(n)
		most = max(most, modules())
	}

	if n := d.Programs(); n != 64 || most > 66 {
		t.Errorf("%d programs are loaded, %d modules at most", n, most)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}

	leaks(t, fake)
}

// TestCompilationsFail: what the driver says of a compilation beside the work is told at a later use, once;
// where memory is short the formula is interpreted as before.
func TestCompilationsFail(t *testing.T) {
	for faults, want := range map[string]string{
		"fail:cuModuleLoadDataEx=218@2":  "cuModuleLoadDataEx",
		"fail:cuModuleGetFunction=500@2": "cuModuleGetFunction",
		"fail:cuModuleLoadDataEx=2@2":    "",
	} {
		t.Run(faults, func(t *testing.T) {
			d := open(t, faults)
			b := newFormulaBench(t, d, 3, 50)
			mask := masks(t, d, 3, 50)
			use := func() []byte {
				if err := d.SelectFormula(mask, numbered(1), b.in, 20); err != nil {
					t.Fatal(err)
				}
				d.Compiled()
				if d.Ops().Sync() != nil {
					return nil
				}
				return bits(t, d, mask)
			}

			right := use()
			d.CompileAfter(1)
			use() // begins a compilation
			if err := d.SelectFormula(mask, numbered(1), b.in, 20); err != nil {
				t.Fatal(err)
			}

			err := d.Ops().Sync()
			if (want == "") != (err == nil) ||
				err != nil && !strings.Contains(err.Error(), "cuda:0: SelectFormula: "+want) {
				t.Errorf("error %v", err)
			}

			if got := use(); !slices.Equal(got, right) {
				t.Errorf("mask %v, want %v", got, right)
			}
		})
	}
}

// TestLostWhileCompiling: a device that is lost with compilations under way fails every later use and gives
// everything back.
func TestLostWhileCompiling(t *testing.T) {
	lib, fake := configure(t, "lost@40")
	d, err := cuda.Open(0, cuda.Options{Library: lib})
	if err != nil {
		t.Fatal(err)
	}

	d.CompileAfter(2)
	b := newFormulaBench(t, d, 3, 50)
	mask := masks(t, d, 3, 50)
	for n := range 60 {
		err = d.SelectFormula(mask, numbered(n%5), b.in, 20)
		err = errors.Join(err, d.Ops().Sync())
	}
	if !errors.Is(err, cuda.ErrLost) {
		t.Errorf("error %v", err)
	}

	d.Close()
	held := make([]int32, 6)
	fake.held(&held[0])
	if held[4] != 0 {
		t.Errorf("%d modules were not unloaded", held[4])
	}
}

// TestFormulasFromManyGoroutines: uses, compilations and what is unloaded do not disturb each other.
func TestFormulasFromManyGoroutines(t *testing.T) {
	d := open(t, "")
	d.CompileAfter(2)

	b := newFormulaBench(t, d, 5, 64)
	var group sync.WaitGroup
	failures := make([]error, 4)
	for g := range failures {
		out, err := d.Alloc(kernels.F32, 5*64)
		if err != nil {
			t.Fatal(err)
		}

		group.Go(func() {
			m := kernels.MatOf(out, 5, 64)
			want := make([]float32, 5*64)
			for n := range 120 {
				if err := d.Score(m, numbered(n%30+100*g), b.in); err != nil {
					failures[g] = err
					return
				}

				host := kernels.NewHost(kernels.F32, 5*64)
				if err := d.Download(host.Bytes(), out, 0); err != nil {
					failures[g] = err
					return
				}

				if n < 30 {
					copy(want, host.F32())
				}

				for i, v := range host.F32() {
					if v*v != want[i]*want[i] { // signs and absolute values
						failures[g] = fmt.Errorf("element %d of formula %d: %v", i, n%30, v)
						return
					}
				}
			}
		})
	}

	group.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Error(err)
	}

	d.Compiled()
	out, err := d.Alloc(kernels.F32, 5*64)
	if err != nil {
		t.Fatal(err)
	}

	// takes up what was compiled while all was interpreted
	if err := d.Score(kernels.MatOf(out, 5, 64), numbered(0), b.in); err != nil {
		t.Fatal(err)
	}
	if d.Programs() == 0 {
		t.Error("nothing was compiled")
	}
}
