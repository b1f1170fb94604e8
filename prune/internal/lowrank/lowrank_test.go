package lowrank

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/modelcompress/compress/internal/linalg"
	"github.com/modelcompress/compress/internal/rng"
	"github.com/modelcompress/compress/kernels"
)

// rows keeps so many of every row, by sorting.
func rows(keep int) func(mask, score kernels.Mat) error {
	return func(mask, score kernels.Mat) error {
		for i := range score.Rows {
			order := make([]int, score.Cols)
			for j := range order {
				order[j] = j
			}
			s := score.RowF32(i)
			slices.SortStableFunc(order, func(a, b int) int {
				switch {
				case s[a] > s[b]:
					return -1
				case s[a] < s[b]:
					return 1
				}
				return 0
			})
			clear(mask.RowU8(i))
			for _, j := range order[:keep] {
				mask.RowU8(i)[j] = 1
			}
		}
		return nil
	}
}

// drawn is a matrix of rank so much with noise and some large elements, and scales of its inputs.
func drawn(out, in, rank int, noise float64, seed uint64) (kernels.Mat, []float64) {
	s := rng.NewStream(seed)
	u, v := linalg.New(out, rank), linalg.New(rank, in)
	for _, m := range []linalg.Matrix{u, v} {
		for i := range m.Data {
			m.Data[i] = s.Normal()
		}
	}

	w := linalg.New(out, in)
	linalg.Solver{Threads: 1}.Mul(w, u, v, linalg.Product{})
	m := kernels.MatOf(kernels.NewHost(kernels.F32, out*in), out, in)
	for i := range w.Data {
		x := w.Data[i] + noise*s.Normal()
		if s.Below(8) == 0 {
			x += 10 * s.Normal()
		}
		m.Buf.F32()[i] = float32(x)
	}

	scale := make([]float64, in)
	for j := range scale {
		scale[j] = math.Exp(s.Normal() / 2)
	}
	return m, scale
}

func job(w kernels.Mat, scale []float64, rank, turns, keep int) Job {
	return Job{
		W: w, Scale: scale, Mask: kernels.MatOf(kernels.NewHost(kernels.U8, w.Len()), w.Rows, w.Cols), Rank: rank,
		Turns: turns, Threads: 1, Choose: rows(keep),
	}
}

func copied(m kernels.Mat) kernels.Mat {
	return kernels.MatOf(kernels.WrapF32(slices.Clone(m.Buf.F32())), m.Rows, m.Cols)
}

// left is ‖(W - S - B·A)·D‖² by ‖W·D‖², from what a run gave.
func left(w, sparse kernels.Mat, r Result, scale []float64) float64 {
	all, rest := 0.0, 0.0
	for i := range w.Rows {
		for j, v := range w.RowF32(i) {
			e := float64(v) - float64(sparse.RowF32(i)[j])
			for k := range r.A.Rows {
				e -= float64(r.B.RowF32(i)[k]) * float64(r.A.RowF32(k)[j])
			}
			all += float64(v) * float64(v) * scale[j] * scale[j]
			rest += e * e * scale[j] * scale[j]
		}
	}
	return rest / all
}

// byDefinition alternates with whole decompositions.
func byDefinition(t *testing.T, w kernels.Mat, scale []float64, rank, turns, keep int) float64 {
	t.Helper()
	s := linalg.Solver{Threads: 1}
	all := linalg.FromMat(w)
	for i := range all.Rows {
		for j := range all.Row(i) {
			all.Row(i)[j] *= scale[j]
		}
	}

	rest, mask := all.Clone(), kernels.MatOf(kernels.NewHost(kernels.U8, w.Len()), w.Rows, w.Cols)
	score := kernels.MatOf(kernels.NewHost(kernels.F32, w.Len()), w.Rows, w.Cols)
	choose := rows(keep)
	sum := 0.0
	for range turns {
		u, values, v, err := s.SVD(rest)
		if err != nil {
			t.Fatal(err)
		}

		sum = 0
		for i := range all.Rows {
			for j := range all.Cols {
				x := 0.0
				for k := range rank {
					x += u.At(i, k) * values[k] * v.At(j, k)
				}
				rest.Set(i, j, x)
				score.RowF32(i)[j] = float32(math.Abs(all.At(i, j) - x))
			}
		}
		if err := choose(mask, score); err != nil {
			t.Fatal(err)
		}
		for i := range all.Rows {
			for j := range all.Cols {
				if mask.RowU8(i)[j] == 0 {
					e := all.At(i, j) - rest.At(i, j)
					sum += e * e
					rest.Set(i, j, all.At(i, j))
				}
			}
		}
	}
	return sum / (all.Norm() * all.Norm())
}

// TestDivision: what is reported is what the parts leave of the matrix; turns lower it, to within 3 % of what
// whole decompositions reach.
func TestDivision(t *testing.T) {
	for seed, shape := range [][3]int{{24, 40, 3}, {64, 48, 5}, {90, 130, 8}} {
		out, in := shape[0], shape[1]
		rank := shape[2]
		w, scale := drawn(out, in, rank, .3, uint64(seed))
		keep := in / 4
		sparse := copied(w)
		j := job(sparse, scale, rank, 40, keep)
		r, err := j.Run()
		if err != nil {
			t.Fatal(err)
		}

		if got := left(w, sparse, r, scale); math.Abs(got-r.Last) > 1e-5*r.Last+1e-10 {
			t.Errorf("%v: %g is left, reported is %g", shape, got, r.Last)
		}
		if !(r.Last < r.First) {
			t.Errorf("%v: from %g to %g", shape, r.First, r.Last)
		}
		if want := byDefinition(t, w, scale, rank, 40, keep); r.Last > 1.03*want {
			t.Errorf("%v: %g is left, of whole decompositions %g", shape, r.Last, want)
		}
		for i := range out {
			kept := 0
			for k, v := range sparse.RowF32(i) {
				if j.Mask.RowU8(i)[k] != 0 {
					kept++
				} else if v != 0 {
					t.Fatalf("%v: element %d, %d is %g without the mask", shape, i, k, v)
				}
			}
			if kept != keep {
				t.Fatalf("%v: row %d has %d elements", shape, i, kept)
			}
		}
	}
}

// TestLowRankAlone: of a matrix that has the rank nothing is left after one turn.
func TestLowRankAlone(t *testing.T) {
	u, v := linalg.New(60, 3), linalg.New(3, 80)
	s := rng.NewStream(7)
	for _, m := range []linalg.Matrix{u, v} {
		for i := range m.Data {
			m.Data[i] = s.Normal()
		}
	}
	w, scale := drawn(60, 80, 3, .3, 7)
	for i := range 60 {
		for j := range 80 {
			x := 0.0
			for k := range 3 {
				x += u.At(i, k) * v.At(k, j)
			}
			w.RowF32(i)[j] = float32(x)
		}
	}

	r, err := job(copied(w), scale, 3, 1, 10).Run()
	if err != nil || r.Last > 1e-12 {
		t.Errorf("%g is left, %v", r.Last, err)
	}
}

// TestThreads: any number of threads gives the same bits.
func TestThreads(t *testing.T) {
	w, scale := drawn(130, 200, 4, .3, 3)
	var want []float32
	for _, threads := range []int{1, 2, 5} {
		sparse := copied(w)
		j := job(sparse, scale, 9, 6, 50)
		j.Threads = threads
		r, err := j.Run()
		if err != nil {
			t.Fatal(err)
		}
		got := slices.Concat(sparse.Buf.F32(), r.A.Buf.F32(), r.B.Buf.F32())
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d threads: other bits", threads)
		}
	}
}

// TestIdleInputs: inputs that are always 0 have no part in either factor; a matrix of no other inputs becomes 0.
func TestIdleInputs(t *testing.T) {
	w, scale := drawn(20, 30, 2, .3, 5)
	scale[3], scale[17] = 0, 0
	sparse := copied(w)
	r, err := job(sparse, scale, 3, 10, 10).Run()
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range []int{3, 17} {
		for i := range 20 {
			if sparse.RowF32(i)[j] != 0 {
				t.Errorf("input %d has weight %g", j, sparse.RowF32(i)[j])
			}
		}
		for k := range 3 {
			if r.A.RowF32(k)[j] != 0 {
				t.Errorf("input %d has a part in A", j)
			}
		}
	}

	clear(scale)
	if r, err = job(sparse, scale, 3, 10, 10).Run(); err != nil || r.Last != 0 || sparse.Buf.F32()[5] != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestStop: what Stop says ends the work.
func TestStop(t *testing.T) {
	enough := errors.New("enough")
	w, scale := drawn(20, 30, 2, .3, 5)
	j := job(w, scale, 3, 10, 10)
	turns := 0
	j.Stop = func() error {
		if turns++; turns > 4 {
			return enough
		}
		return nil
	}
	if _, err := j.Run(); !errors.Is(err, enough) {
		t.Error(err)
	}
}

// BenchmarkDivision: a turn of a matrix of 576 by 1536 at half of the values, a quarter of them low-rank.
func BenchmarkDivision(b *testing.B) {
	w, scale := drawn(576, 1536, 40, .3, 1)
	j := job(w, scale, 52, b.N, 576)
	j.Choose = func(mask, score kernels.Mat) error {
		for i := range score.Rows {
			for k, v := range score.RowF32(i) {
				mask.RowU8(i)[k] = 0
				if v > 1 {
					mask.RowU8(i)[k] = 1
				}
			}
		}
		return nil
	}
	if _, err := j.Run(); err != nil {
		b.Fatal(err)
	}
}
