//go:build linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"errors"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
)

// maskCheck compares the masks that a device makes by a formula, interpreted and compiled, with that of scores
// computed on the host, in float64 and rounded after every operation.
type maskCheck struct {
	Formula       string  `json:"formula"`
	Elements      int     `json:"elements"`
	Other         int     `json:"differing"`                  // elements with another fate than on the host
	NearTies      int     `json:"near_ties"`                  // those of them nearer to the cut than nearTie
	LargestMargin float64 `json:"largest_margin"`             // relative distance of a differing element to the cut
	SameBits      bool    `json:"interpreted_equal_compiled"` // scores and masks
}

// nearTie is how far, relatively, approximate functions may move a score (package fused reports such weights by
// the same bound).
const nearTie = 0x1p-18

// checkedFormulas lists formulas of |w| (BF16) and a vector: those of exactly rounded operations first.
var checkedFormulas = []struct {
	name  string
	exact bool
	f     Formula
}{
	{"|w|*x", true, Formula{{Op: LoadMatrix}, {Op: LoadCol}, {Op: Times, A: 0, B: 1}}},
	{"w^2/(|x|+1e-8) - sqrt|w|", true, Formula{
		{Op: LoadMatrix},
		{Op: LoadCol},
		{Op: Square, A: 0},
		{Op: Quotient, A: 2, B: 1},
		{Op: Root, A: 0},
		{Op: Minus, A: 3, B: 4},
	}},
	{"log(|w|) * x", false, Formula{{Op: LoadMatrix}, {Op: LoadCol}, {Op: Logarithm, A: 0}, {Op: Times, A: 2, B: 1}}},
	{"exp(|w|) + x", false, Formula{{Op: LoadMatrix}, {Op: LoadCol}, {Op: Exponential, A: 0}, {Op: Plus, A: 2, B: 1}}},
	{"tanh(|w|*x)", false, Formula{
		{Op: LoadMatrix},
		{Op: LoadCol},
		{Op: Times, A: 0, B: 1},
		{Op: HyperbolicTangent, A: 2},
	}},
}

// hostScore computes a formula over a weight and a column's value.
func hostScore(f Formula, w, x float32) float32 {
	v := make([]float64, len(f))
	for n, i := range f {
		switch i.Op {
		case LoadMatrix:
			v[n] = math.Abs(float64(w))
		case LoadCol:
			v[n] = float64(x)
		default:
			v[n] = plain(i.Op, v[i.A], v[i.B])
		}
	}

	return float32(v[len(f)-1])
}

// compareMasks checks all of checkedFormulas over a matrix, half of every row dropped.
func compareMasks(t testing.TB, d *Device, rows, cols int) (list []maskCheck) {
	t.Helper()
	w, x := random(t, d, kernels.BF16, rows, cols), random(t, d, kernels.F32, 1, cols)
	weights, factors := make([]byte, 2*rows*cols), kernels.NewHost(kernels.F32, cols)
	for m, to := range map[*kernels.Buffer][]byte{w.Buf: weights, x.Buf: factors.Bytes()} {
		if err := d.Download(to, m, 0); err != nil {
			t.Fatal(err)
		}
	}

	stats := place(t, d, kernels.NewHost(kernels.F32, 2), 1, 2)
	in := FormulaInputs{Matrices: []kernels.Mat{w}, Vectors: []kernels.Mat{x}, Stats: stats}
	patience := d.programs.patience
	defer func() { d.programs.patience = patience }()

	for _, c := range checkedFormulas {
		d.programs.patience = 1 << 30
		mask, scores := d.masked(t, c.f, in, rows, cols)
		d.programs.patience = 0
		other, again := d.masked(t, c.f, in, rows, cols)
		check := maskCheck{
			Formula: c.name, Elements: rows * cols,
			SameBits: slices.Equal(mask, other) && slices.Equal(scores, again),
		}

		row := make([]float32, cols)
		for i := range rows {
			for j := range row {
				u := uint32(weights[2*(i*cols+j)]) | uint32(weights[2*(i*cols+j)+1])<<8
				row[j] = hostScore(c.f, math.Float32frombits(u<<16), factors.F32()[j])
			}
			check.row(row, mask[i*cols:(i+1)*cols])
		}

		if !check.SameBits {
			t.Errorf("%s: an interpreted formula gives other bits than a compiled one", c.name)
		}

		if check.Other > check.NearTies || c.exact && check.Other > 0 {
			t.Errorf("%s: %d elements of %d have another fate than on the host, %d of them near ties, the "+
				"farthest by %g", c.name, check.Other, check.Elements, check.NearTies, check.LargestMargin)
		}

		list = append(list, check)
	}

	return list
}

// masked is the mask of a formula and its scores, as bytes.
func (d *Device) masked(t testing.TB, f Formula, in FormulaInputs, rows, cols int) (mask, scores []byte) {
	t.Helper()
	m, err := d.Alloc(kernels.U8, rows*cols)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()

	s := place(t, d, kernels.NewHost(kernels.F32, rows*cols), rows, cols)
	defer s.Buf.Free()

	mask, scores = make([]byte, rows*cols), make([]byte, 4*rows*cols)
	if err := errors.Join(d.SelectFormula(kernels.MatOf(m, rows, cols), f, in, cols/2), d.Score(s, f, in),
		d.Download(mask, m, 0), d.Download(scores, s.Buf, 0)); err != nil {
		t.Fatal(err)
	}

	return mask, scores
}

// row adds one row: of equal scores the lower column goes first.
func (c *maskCheck) row(scores []float32, mask []byte) {
	order := make([]int, len(scores))
	for j := range order {
		order[j] = j
	}

	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[a], scores[b]) })
	drop := len(order) / 2
	below, above := float64(scores[order[drop-1]]), float64(scores[order[drop]])
	for rank, j := range order {
		if keep := rank >= drop; keep != (mask[j] != 0) {
			v, cut := float64(scores[j]), above
			if keep {
				cut = below
			}

			margin := math.Abs(v-cut) / max(math.Abs(v), math.Abs(cut), math.SmallestNonzeroFloat32)
			c.Other++
			c.LargestMargin = max(c.LargestMargin, margin)
			if margin <= nearTie {
				c.NearTies++
			}
		}
	}
}

// conformance is what the tests on the device said.
type conformance struct {
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"`
	Skipped  int      `json:"skipped"`
	Failures []string `json:"failures,omitempty"` // names, and panics
}

// readConformance reads the output of tests, if the file is there.
func readConformance(t testing.TB, file string) *conformance {
	t.Helper()
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		t.Fatal(err)
	}

	c := &conformance{}
	for l := range strings.Lines(string(text)) {
		word := strings.Fields(l)
		switch {
		case strings.HasPrefix(l, "panic: "), strings.HasPrefix(l, "fatal error: "):
			c.Failed++
			c.Failures = append(c.Failures, strings.TrimSpace(l))
		case len(word) < 3 || word[0] != "---":
		case word[1] == "PASS:":
			c.Passed++
		case word[1] == "SKIP:":
			c.Skipped++
		case word[1] == "FAIL:":
			c.Failed++
			c.Failures = append(c.Failures, word[2])
		}
	}

	return c
}

// TestMasksCount: elements that change sides are counted, with their distance to the cut.
func TestMasksCount(t *testing.T) {
	c := maskCheck{}
	c.row([]float32{4, 1, 2, 2.000001, 3, 1}, []byte{1, 0, 1, 0, 1, 0}) // two changed sides, by half a millionth
	if c.Other != 2 || c.NearTies != 2 || c.LargestMargin > 1e-6 || c.LargestMargin == 0 {
		t.Errorf("%+v", c)
	}

	c = maskCheck{}
	c.row([]float32{4, 1, 2, 3}, []byte{0, 1, 0, 1})
	if c.Other != 2 || c.NearTies != 0 || c.LargestMargin != 2.0/3 {
		t.Errorf("%+v", c)
	}
}
