package layer

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// TestPredictions: every token but the last of a sequence predicts the next one; rows count on over sequences, those
// without a prediction too; of labels that do not count the rows are left out, with their numbers kept.
func TestPredictions(t *testing.T) {
	labels := [][]int32{{9, 1, -100, 3}, {7}, {}, {8, 4}}
	rows, want := Predictions([]int{4, 1, 0, 2}, labels)
	if !slices.Equal(rows, []int32{0, 1, 2, 5}) || !slices.Equal(want, []int32{1, -100, 3, 4}) {
		t.Errorf("rows %v, labels %v", rows, want)
	}

	counted, kept, at := CountedRows(rows, want)
	if !slices.Equal(counted, []int32{0, 2, 5}) || !slices.Equal(kept, []int32{1, 3, 4}) ||
		!slices.Equal(at, []int{0, 2, 3}) {
		t.Errorf("rows %v, labels %v, numbers %v", counted, kept, at)
	}
}

// TestNotFinite: the first loss that is no finite number, by its sequence and its place in that.
func TestNotFinite(t *testing.T) {
	losses := []float64{1, 2, 3, 4, 5, 6}
	for at, want := range map[int][2]int{0: {0, 0}, 2: {0, 2}, 3: {2, 0}, 5: {3, 1}} {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			broken := slices.Clone(losses)
			broken[at] = bad
			seq, pos, v, found := NotFinite([]int{4, 1, 2, 3}, broken)
			if !found || seq != want[0] || pos != want[1] || math.Float64bits(v) != math.Float64bits(bad) {
				t.Errorf("%g at %d: %d, %d, %g, %v; want %v", bad, at, seq, pos, v, found, want)
			}
		}
	}
	if _, _, _, found := NotFinite([]int{4, 1, 2, 3}, losses); found {
		t.Error("finite losses are not")
	}
}

// TestJudge: losses are log Σ exp(x) − x of the wanted columns, whatever row of logits, and the largest column is the
// first of equal ones. The total is taken over from the loss of token 0 unless that is impossible.
func TestJudge(t *testing.T) {
	s := &Setup{host: true}
	inf := float32(math.Inf(-1))
	x := kernels.MatOf(kernels.WrapF32([]float32{1, 3, 3, 0, inf, 2, 1, 5}), 2, 4)
	first := []float64{0, math.Inf(1)}
	for _, v := range []float64{1, 3, 3, 0} {
		first[0] += math.Exp(v)
	}
	first[0] = math.Log(first[0]) - 1

	losses, best := make([][]float64, 2), make([]int32, 2)
	if err := s.Judge(x, first, [][]int32{{0, 3}, {3, 1, 2}}, losses, best); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(best, []int32{1, 3}) {
		t.Errorf("the largest are %v", best)
	}
	for i, want := range [][]int{{0, 3}, {3, 1, 2}} {
		total := 0.0
		for _, v := range x.RowF32(i) {
			total += math.Exp(float64(v))
		}
		for k, column := range want {
			loss := math.Log(total) - float64(x.RowF32(i)[column])
			if math.Abs(losses[i][k]-loss) > 1e-12 {
				t.Errorf("row %d, token %d: %g, want %g", i, column, losses[i][k], loss)
			}
		}
	}
}

// TestBranches: what each branch of a tree finds before it, and the first that follows none of its ancestors.
func TestBranches(t *testing.T) {
	kv := make([]KV, 1)
	//       0        a given sequence of 10 tokens
	//     ┌─┴──┐
	//     0    3     of 2 and 4 tokens
	//   ┌─┴┐
	//   1  2         of 3 and 1
	past, deepest, bad := Branches(kv, 10, []int{2, 3, 1, 4}, []int{-1, 0, 0, -1})
	if bad != -1 || deepest != 5 {
		t.Fatalf("deepest %d, bad %d", deepest, bad)
	}
	for i, want := range [][2]int{{0, 10}, {2, 12}, {2, 12}, {0, 10}} {
		if p := past[i]; p.Extra != want[0] || p.Start != want[1] {
			t.Errorf("branch %d: %d rows before it, position %d; want %v", i, p.Extra, p.Start, want)
		}
	}

	// The rows of a sibling have been written over, so what follows must not count on them.
	for _, parents := range [][]int{{-1, 0, 0, 1}, {0}, {-1, 1}, {-1, -2}} {
		if _, _, bad := Branches(kv, 10, make([]int, len(parents)), parents); bad != len(parents)-1 {
			t.Errorf("%v: %d is refused", parents, bad)
		}
	}
}

// setup is one for caches of a width.
func setup(t *testing.T, cols int) *Setup {
	c := &arch.Config{Arch: &arch.Arch{Norm: arch.RMS}, KVHeads: 1, HeadDim: cols, Hidden: cols}
	return NewSetup(c, host(t), kernels.Exact, nil)
}

// TestRoom: a cache that grows keeps its rows in their order; with a window, those that have left it may go, the last
// ones stay; what has room is left alone.
func TestRoom(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	s := setup(t, 3)
	for _, window := range []int{0, 5, 40} {
		kv := &KV{}
		var all []float32 // one number for each token that was ever written
		for step := range 60 {
			n := 1 + random.IntN(40)
			if err := s.Room(kv, n, window); err != nil {
				t.Fatal(err)
			}
			if kv.Rows+n > kv.Keys.Rows || kv.Rows > len(all) {
				t.Fatalf("window %d, step %d: %d rows in use of %d, %d more wanted", window, step, kv.Rows,
					kv.Keys.Rows, n)
			}

			buf := kv.Keys.Buf
			if err := s.Room(kv, n, window); err != nil || kv.Keys.Buf != buf {
				t.Fatalf("window %d: room for what has room, %v", window, err)
			}

			for i := range n {
				v := random.Float32()
				all = append(all, v)
				for j := range 3 {
					kv.Keys.RowF32(kv.Rows + i)[j] = v
					kv.Values.RowF32(kv.Rows + i)[j] = -v
				}
			}
			kv.Rows += n

			seen := len(all)
			if window > 0 {
				seen = min(seen, window)
			}
			for k := range seen { // the last ones, backwards
				row, want := kv.Rows-1-k, all[len(all)-1-k]
				if kv.Keys.RowF32(row)[2] != want || kv.Values.RowF32(row)[0] != -want {
					t.Fatalf("window %d, step %d: the last but %d is another", window, step, k)
				}
			}
		}

		if window > 0 && kv.Keys.Rows > 4*window+2*40+2*cacheChunk {
			t.Errorf("window %d: the cache has grown to %d rows", window, kv.Keys.Rows)
		}
		kv.Free()
		if kv.Rows != 0 || !kv.Keys.IsZero() {
			t.Error("a cache that is freed is not empty")
		}
	}
}

// TestCopyKV: some rows of a cache, in memory of their own.
func TestCopyKV(t *testing.T) {
	s := setup(t, 2)
	kv := &KV{}
	if err := s.Room(kv, 5, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		kv.Keys.RowF32(i)[0] = float32(i)
		kv.Values.RowF32(i)[1] = float32(10 * i)
	}
	kv.Rows = 5

	fresh, err := s.CopyKV(kv, 1, 4, 8)
	if err != nil || fresh.Rows != 3 || fresh.Keys.Rows != 8 {
		t.Fatalf("%+v, %v", fresh, err)
	}
	kv.Keys.RowF32(1)[0] = 99
	for i := range 3 {
		if fresh.Keys.RowF32(i)[0] != float32(i+1) || fresh.Values.RowF32(i)[1] != float32(10*(i+1)) {
			t.Errorf("row %d: %v, %v", i, fresh.Keys.RowF32(i), fresh.Values.RowF32(i))
		}
	}
	fresh.Free()
	kv.Free()
}

// TestTail: the last tokens of sequences that run again from one block up, with what the earlier ones have left behind,
// leave the blocks as whole sequences do; parts and joined tails have their rows.
func TestTail(t *testing.T) {
	o := kinds["llama"]
	m := o.make(2)
	two := *m.b // the same parameters, as a second block
	two.Index = 1
	m.c.Layers = 2
	m.c.Windows = []int{0, 4}
	m.c.AttnScales = []float32{0.5, 0.5}
	blocks := []*Block{m.b, &two}
	s := NewSetup(m.c, host(t), kernels.Exact, blocks)
	defer s.Free()
	scratch := &Scratch{}
	defer scratch.Free()

	total, from := []int{5, 4, 6}, []int{3, 0, 5}
	for first := range 2 {
		x, _ := m.input(15)
		want := clone(x)
		p, err := s.Begin(scratch, total, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			if err := p.Run(b, want); err != nil {
				t.Fatal(err)
			}
		}
		p.End()

		tail, err := s.NewTail(total, from, first)
		if err != nil {
			t.Fatal(err)
		}
		if tail.First() != first {
			t.Errorf("it begins at block %d, not %d", tail.First(), first)
		}

		// All tokens once, which fills the caches and keeps what enters the first block.
		if p, err = s.Begin(scratch, total, tail.Before()); err != nil {
			t.Fatal(err)
		}
		whole := clone(x)
		for l, b := range blocks {
			tail.Enter(l, whole)
			if err := p.Run(b, whole); err != nil {
				t.Fatal(err)
			}
		}
		p.End()
		tail.Filled(from)

		check := func(what string, list []*Tail, sequences []int) {
			t.Helper()
			y, lens, past, err := s.Join(list)
			if err != nil {
				t.Fatal(err)
			}
			defer y.Buf.Free()

			p, err := s.Begin(scratch, lens, past)
			if err != nil {
				t.Fatal(err)
			}
			defer p.End()
			for _, b := range blocks[first:] {
				if err := p.Run(b, y); err != nil {
					t.Fatal(err)
				}
			}

			row := 0
			for _, i := range sequences {
				start := []int{0, 5, 9}[i]
				for k := from[i]; k < total[i]; k++ {
					for j, v := range want.RowF32(start + k) {
						if !near(y.RowF32(row)[j], float64(v)) {
							t.Fatalf("%s, from block %d: token %d of sequence %d: %g, want %g", what, first, k, i,
								y.RowF32(row)[j], v)
						}
					}
					row++
				}
			}
			if row != y.Rows {
				t.Errorf("%s: %d rows, want %d", what, y.Rows, row)
			}
		}

		check("all", []*Tail{tail}, []int{0, 1, 2})
		check("a part", []*Tail{tail.Part(1, 3)}, []int{1, 2})
		check("joined", []*Tail{tail.Part(2, 3), tail.Part(0, 1)}, []int{2, 0})
		tail.Free()
	}

	if i := Outside(total, []int{4, 3, 6}); i != 2 {
		t.Errorf("sequence %d has no such token", i)
	}
	if i := Outside(total, []int{4, -1, 0}); i != 1 {
		t.Errorf("sequence %d has no such token", i)
	}
	if i := Outside(total, []int{4, 3, 5}); i != -1 {
		t.Errorf("sequence %d has no such token", i)
	}
}

// addition is a delta of a matrix of its own: y += x·Mᵀ.
type addition struct {
	m, grad [][]float64
	trains  bool
}

// Forward implements [Delta].
func (a *addition) Forward(x, y kernels.Mat) error {
	for i := range x.Rows {
		for o, row := range a.m {
			for j, v := range row {
				y.RowF32(i)[o] += float32(v * float64(x.RowF32(i)[j]))
			}
		}
	}
	return nil
}

// Backward implements [Delta].
func (a *addition) Backward(x, dy, dx kernels.Mat) error {
	for i := range x.Rows {
		for o, row := range a.m {
			g := float64(dy.RowF32(i)[o])
			for j, v := range row {
				dx.RowF32(i)[j] += float32(v * g)
				a.grad[o][j] += g * float64(x.RowF32(i)[j])
			}
		}
	}
	return nil
}

// Trains implements [Delta].
func (a *addition) Trains() bool { return a.trains }

// TestDeltas: a delta changes what its matrix gives, and not what that is added to; its gradients and those of what is
// below are the plain block's differences, also where nobody asks for the input's.
func TestDeltas(t *testing.T) {
	for _, name := range []string{"llama", "gpt2", "qwen2-moe"} {
		for _, below := range []bool{true, false} {
			m := kinds[name].make(4)
			ref := newPlain(m.c, m.b, lens, m.weights)
			deltas := map[*Linear]*addition{}
			for _, l := range m.b.Linears() {
				a := &addition{trains: true}
				for range l.Out {
					a.m = append(a.m, make([]float64, l.In))
					a.grad = append(a.grad, make([]float64, l.In))
					for j := range l.In {
						v := 0.2 * m.random.NormFloat64()
						a.m[len(a.m)-1][j] = v
						ref.deltas[l] = append(ref.deltas[l], v)
					}
				}
				deltas[l] = a
				l.Deltas = append(l.Deltas, a)
			}

			x, in := m.input(total(lens))
			c, _ := m.input(total(lens))
			s := NewSetup(m.c, host(t), kernels.Exact, []*Block{m.b})
			s.Attached(len(deltas))
			scratch, tape := &Scratch{}, &Tape{}
			p, err := s.Begin(scratch, lens, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !m.b.Trains() {
				t.Error("no delta of the block trains")
			}

			y, d := clone(x), clone(c)
			if err := p.Record(m.b, y, tape); err != nil {
				t.Fatal(err)
			}
			for i, row := range ref.run(in) {
				for j, want := range row {
					if !near(y.RowF32(i)[j], want) {
						t.Fatalf("%s: row %d, column %d: %g, want %g", name, i, j, y.RowF32(i)[j], want)
					}
				}
			}
			if err := p.Backward(m.b, tape, d, below); err != nil {
				t.Fatal(err)
			}

			loss := func() float64 { return dot(c, ref.run(in)) }
			if below {
				for j := range 4 {
					if want := slope(&in[2][j], loss); !near(d.RowF32(2)[j], want) {
						t.Fatalf("%s: gradient of the input: %g, want %g", name, d.RowF32(2)[j], want)
					}
				}
			}
			for l, a := range deltas {
				for k := 0; k < l.Out*l.In; k += 11 {
					want := slope(&ref.deltas[l][k], loss)
					if got := float32(a.grad[k/l.In][k%l.In]); !near(got, want) {
						t.Fatalf("%s: gradient of the delta of %s at %d: %g, want %g", name, l.W.Name, k, got, want)
					}
				}

				l.Remove(func(d Delta) bool { return d == Delta(a) })
				if len(l.Deltas) > 0 {
					t.Errorf("%s: a delta is still there", l.W.Name)
				}
			}

			p.End()
			tape.Free()
			scratch.Free()
			s.Free()
		}
	}
}

// TestSumSquares: of a matrix whose rows lie apart too.
func TestSumSquares(t *testing.T) {
	s := setup(t, 2)
	x := kernels.Mat{Buf: kernels.WrapF32([]float32{1, 2, 99, 3, 4, 99}), Rows: 2, Cols: 2, Stride: 3}
	if sum, err := s.SumSquares(x); err != nil || sum != 30 {
		t.Errorf("%g, %v", sum, err)
	}
	if err := s.Zero(x); err != nil || x.Buf.F32()[2] != 99 || x.Buf.F32()[4] != 0 {
		t.Errorf("%v, %v", x.Buf.F32(), err)
	}
}
