package prune

import (
	"math"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/prune/internal/allot"
	"github.com/modelcompress/compress/prune/internal/inflow"
)

// devices are the backends that every selection is tested on.
func devices(t testing.TB) map[string]kernels.Device {
	t.Helper()
	cpu, err := device.Open("cpu", device.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]kernels.Device{"ref": ref.New(), "cpu": cpu}
}

var goldenW = []float32{
	.5, -1, .25, 2, -.125, .75, -1.5, .1,
	1, .2, -.3, .4, -.5, .6, -.7, .8,
}

// goldenX is one sample of 16 tokens: x[t][j] = sin(1+8t+j)·(1+0.25j).
func goldenX() kernels.Mat {
	x := make([]float32, 16*8)
	for t := range 16 {
		for j := range 8 {
			x[8*t+j] = float32(math.Sin(float64(1+8*t+j)) * (1 + 0.25*float64(j)))
		}
	}
	return kernels.MatOf(kernels.WrapF32(x), 16, 8)
}

// goldenS is s of goldenX, to the digits that were published.
var goldenS = []float64{8.315847, 12.552824, 17.226034, 25.273247, 32.535359, 38.657843, 51.056361, 62.18803}

func TestGoldenStatistics(t *testing.T) {
	for name, dev := range devices(t) {
		l := lm.Linear{Name: "w", Role: arch.K, Expert: -1, In: 8, Out: 2}
		q := lm.Linear{Name: "q", Role: arch.Q, Expert: -1, In: 8, Out: 2}
		stats, err := inflow.New(dev, []lm.Linear{q, l}, SumSquares, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		hooks := stats.Hooks()
		hooks.LinearInput(q, goldenX())
		hooks.LinearInput(l, goldenX()) // the same input: must not count twice
		in, err := stats.Of(l)
		if err != nil {
			t.Fatal(err)
		}
		got := in.SumSquares
		for j, want := range goldenS {
			if math.Abs(got[j]-want) > 5e-6 { // the reference is in F64 with six digits; ours squares inputs in F32
				t.Errorf("%s: s[%d] = %.6f, want %.6f", name, j, got[j], want)
			}
		}
	}
}

func TestGoldenMasks(t *testing.T) {
	half, pairs := 0.5, Pattern{N: 2, M: 4}
	for _, c := range []struct {
		name   string
		metric Metric
		s      selection
		want   string
	}{
		{"wanda 50 %", Wanda(), selection{group: Row, sparsity: half}, "01010110 10000111"},
		{"wanda 2:4", Wanda(), selection{group: Row, pattern: pairs}, "01010110 10010011"},
		{"magnitude over the layer", Magnitude(), selection{group: Layer, sparsity: half}, "01010110 10000011"},
	} {
		for name, dev := range devices(t) {
			in := Inputs{Device: dev, Name: "w", W: kernels.MatOf(kernels.WrapF32(goldenW), 2, 8), SumSquares: goldenS}
			score, err := c.metric.Score(in)
			if err != nil {
				t.Fatal(err)
			}
			if got := maskString(t, dev, c.s, score); got != c.want {
				t.Errorf("%s on %s: %s, want %s", c.name, name, got, c.want)
			}
		}
	}
}

// maskString selects and writes the mask as digits, rows apart.
func maskString(t testing.TB, dev kernels.Device, s selection, score kernels.Score) string {
	t.Helper()
	buf, err := dev.Alloc(kernels.U8, score.X.Len())
	if err != nil {
		t.Fatal(err)
	}
	keep := kernels.MatOf(buf, score.X.Rows, score.X.Cols)
	s.mask(dev.Ops(), keep, score)
	if err := s.check(dev.Ops(), keep); err != nil {
		t.Error(err)
	}
	var rows []string
	for i := range keep.Rows {
		var b strings.Builder
		for _, v := range keep.RowU8(i) {
			b.WriteByte('0' + v)
		}
		rows = append(rows, b.String())
	}
	return strings.Join(rows, " ")
}

// OWL's published example.
func TestGoldenOWL(t *testing.T) {
	got, err := allot.OWL([]float64{7, 3, 1, 5}, .7, .08)
	if err != nil {
		t.Fatal(err)
	}
	for l, want := range []float64{.62, .726667, .78, .673333} {
		if math.Abs(got[l]-want) > 1e-6 { // printed with six digits
			t.Errorf("block %d: %.6f, want %.6f", l, got[l], want)
		}
	}
	if got, err = allot.OWL([]float64{2, 2}, .5, .08); err != nil || got[0] != .5 || got[1] != .5 {
		t.Errorf("equal blocks: %v, %v", got, err)
	}
	if got, err = allot.OWL([]float64{0, 9}, .05, .08); err != nil || got[1] != .01 {
		t.Errorf("a block that would gain weights: %v, %v; want 0.01", got, err)
	}
	if _, err = allot.OWL([]float64{0, 9}, .95, .08); err == nil {
		t.Error("a block that would lose everything is accepted")
	}
}
