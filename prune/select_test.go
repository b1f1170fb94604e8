package prune

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
)

func TestCounts(t *testing.T) {
	for _, c := range []struct {
		in   int
		p    float64
		want int
	}{{100, .29, 28}, {64, .6, 38}, {172, .6, 103}, {64, .7, 44}, {8, .5, 4}, {7, .5, 3}, {5, 0, 0}, {1, .99, 0}} {
		if got := rowCount(c.in, c.p); got != c.want {
			t.Errorf("rowCount(%d, %g) = %d, want %d", c.in, c.p, got, c.want)
		}
	}

	for _, c := range []struct {
		n    int
		p    float64
		want int
	}{{16, .5, 8}, {16, 0, -1}, {16, .01, 0}, {10, .9999999999999999, 9}} {
		if got := layerRank(c.n, c.p); got != c.want {
			t.Errorf("layerRank(%d, %g) = %d, want %d", c.n, c.p, got, c.want)
		}
	}
}

func TestTiesGoLowerColumnFirst(t *testing.T) {
	for name, dev := range devices(t) {
		flat := kernels.Score{X: kernels.MatOf(kernels.WrapF32([]float32{1, -1, 1, 1, -1, 1, 1, 1}), 1, 8)}
		for _, c := range []struct {
			s    selection
			want string
		}{
			{selection{group: Row, sparsity: .5}, "00001111"},
			{selection{group: Row, pattern: Pattern{2, 4}}, "00110011"},
			{selection{group: Row, pattern: Pattern{1, 3}}, "01101101"},
			{selection{group: Layer, sparsity: .1}, "00000000"}, // everything not above the threshold goes
		} {
			if got := maskString(t, dev, c.s, flat); got != c.want {
				t.Errorf("%s: %+v: %s, want %s", name, c.s, got, c.want)
			}
		}
	}
}

// A short last group loses N too, or everything: 172 inputs at 4:8 lose the whole last group of four.
func TestShortLastGroup(t *testing.T) {
	for name, dev := range devices(t) {
		x := make([]float32, 172)
		for j := range x {
			x[j] = float32(j%8 + 1)
		}

		got := maskString(t, dev, selection{pattern: Pattern{4, 8}},
			kernels.Score{X: kernels.MatOf(kernels.WrapF32(x), 1, 172)})
		if want := strings.Repeat("00001111", 21) + "0000"; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// Any selection equals the plain sort of the definitions, on every backend and for every type of weight.
func TestSelectionEqualsDefinition(t *testing.T) {
	devs := devices(t)
	rapid.Check(t, func(rt *rapid.T) {
		rows, cols := rapid.IntRange(1, 9).Draw(rt, "rows"), rapid.IntRange(1, 70).Draw(rt, "cols")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		levels := rapid.SampledFrom([]int{2, 5, 1 << 20}).Draw(rt, "levels") // few levels: many ties
		w := make([]float32, rows*cols)
		for i := range w {
			w[i] = float32(rng.IntN(2*levels+1)-levels) / 64
		}

		m := rapid.IntRange(2, 20).Draw(rt, "m")
		s := rapid.SampledFrom([]selection{
			{group: Row, sparsity: rng.Float64()},
			{group: Layer, sparsity: rng.Float64()},
			{group: Row, pattern: Pattern{1 + rng.IntN(m-1), m}},
			{group: Row},
			{group: Layer},
		}).Draw(rt, "selection")

		want := plainMask(s, w, rows, cols)
		for name, dev := range devs {
			if got := maskString(t, dev, s,
				kernels.Score{X: kernels.MatOf(kernels.WrapF32(w), rows, cols)}); got != want {
				rt.Fatalf("%s: %+v\n got %s\nwant %s", name, s, got, want)
			}
		}
	})
}

// plainMask selects by sorting, as the package comment says it.
func plainMask(s selection, w []float32, rows, cols int) string {
	keep := []byte(strings.Repeat("1", len(w)))
	drop := func(group []int, n int) {
		slices.SortStableFunc(group, func(a, b int) int {
			switch x, y := abs(w[a]), abs(w[b]); {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return a - b
		})

		for _, i := range group[:n] {
			keep[i] = '0'
		}
	}

	span := func(lo, hi int) (out []int) {
		for i := lo; i < hi; i++ {
			out = append(out, i)
		}
		return out
	}

	switch {
	case s.pattern.M > 0:
		for i := range rows {
			for j := 0; j < cols; j += s.pattern.M {
				end := min(j+s.pattern.M, cols)
				drop(span(i*cols+j, i*cols+end), min(s.pattern.N, end-j))
			}
		}
	case s.group == Layer && s.sparsity > 0:
		all := make([]float32, len(w))
		for i, v := range w {
			all[i] = abs(v)
		}

		slices.Sort(all)
		threshold := all[int(float64(len(w))*s.sparsity)]
		for i, v := range w {
			if abs(v) <= threshold {
				keep[i] = '0'
			}
		}
	case s.group == Row:
		for i := range rows {
			drop(span(i*cols, (i+1)*cols), int(float64(cols)*s.sparsity))
		}
	}

	var out []string
	for i := range rows {
		out = append(out, string(keep[i*cols:(i+1)*cols]))
	}

	return strings.Join(out, " ")
}

func abs(v float32) float32 {
	if v < 0 {
		return -v
	}
	return v
}

func TestCheckGroups(t *testing.T) {
	dev := devices(t)["cpu"]
	w := []float32{0, 1, 0, 2, 3, 0, 4, 5, 0, 6 /**/, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0}
	for _, c := range []struct {
		p    Pattern
		want int64
	}{{Pattern{2, 4}, 4}, {Pattern{1, 4}, 1}, {Pattern{1, 2}, 3}} {
		bad, err := hostmat.BadGroups(dev, kernels.MatOf(kernels.WrapF32(w), 2, 10), c.p.N, c.p.M, nil)
		if err != nil || bad != c.want {
			t.Errorf("%s: %d bad groups, %v; want %d", c.p, bad, err, c.want)
		}

		half, err := dev.Alloc(kernels.BF16, len(w))
		if err != nil {
			t.Fatal(err)
		}

		dev.Ops().Convert(kernels.MatOf(half, 2, 10), kernels.MatOf(kernels.WrapF32(w), 2, 10))

		if bad, err = hostmat.BadGroups(dev, kernels.MatOf(half, 2, 10), c.p.N, c.p.M, nil); err != nil ||
			bad != c.want {
			t.Errorf("%s in BF16: %d bad groups, %v; want %d", c.p, bad, err, c.want)
		}
	}
}

func TestTransposedTwice(t *testing.T) {
	dev := devices(t)["cpu"]
	rapid.Check(t, func(rt *rapid.T) {
		rows, cols := rapid.IntRange(1, 80).Draw(rt, "rows"), rapid.IntRange(1, 80).Draw(rt, "cols")
		dtype := rapid.SampledFrom([]kernels.DType{kernels.F32, kernels.BF16, kernels.F16, kernels.U8}).Draw(rt, "type")
		buf, err := dev.Alloc(dtype, rows*cols)
		if err != nil {
			rt.Fatal(err)
		}

		for i := range buf.Bytes() {
			buf.Bytes()[i] = byte(i*7 + i>>8)
		}

		m := kernels.MatOf(buf, rows, cols)
		once, err := hostmat.Transposed(dev, m)
		if err != nil {
			rt.Fatal(err)
		}

		size := dtype.Size()
		for i := range rows {
			for j := range cols {
				if string(buf.Bytes()[(i*cols+j)*size:][:size]) != string(once.Buf.Bytes()[(j*rows+i)*size:][:size]) {
					rt.Fatalf("element [%d, %d] is not where it belongs", i, j)
				}
			}
		}
	})
}
