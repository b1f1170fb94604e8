package prune

import (
	"math"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/prune/internal/allocation"
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
		stats, err := actstats.New(dev, []lm.Linear{q, l}, actstats.SumSquares, 1, 0)
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

var goldenG = []float32{
	.2, .1, .9, .05, 1.5, .3, .02, 4,
	.4, 2, .7, .6, .1, .05, .3, .25,
}

// golden prunes the matrix of the golden vectors.
func golden(t *testing.T, dev kernels.Device, o Options) *change {
	t.Helper()
	o.setDefaults()
	w := &walk{site: on(dev), o: o, report: &Report{Blocks: []Block{{Target: o.Sparsity}}}}
	l := lm.Linear{Name: "w", Role: arch.Q, Expert: -1, In: 8, Out: 2}
	stats, err := actstats.New(dev, []lm.Linear{l}, actstats.SumSquares|actstats.Hessian, 1, o.Update.Damping)
	if err != nil {
		t.Fatal(err)
	}

	stats.Hooks().LinearInput(l, goldenX())
	c := &change{plan: w.plan(l)}
	if c.in, _, err = w.inputs(l, kernels.MatOf(kernels.WrapF32(append([]float32(nil), goldenW...)), 2, 8),
		stats); err != nil {
		t.Fatal(err)
	}

	c.in.G = kernels.MatOf(kernels.WrapF32(goldenG), 2, 8)
	if _, err = w.chooseInto(ctx, l, c, stats); err == nil {
		err = w.update(ctx, l, c, stats)
	}
	if err == nil {
		err = w.measureChange(l, c, stats)
	}
	if err != nil {
		t.Fatal(err)
	}

	return c
}

// The metrics on the golden matrix.
func TestGoldenMethods(t *testing.T) {
	for _, c := range []struct {
		metric Metric
		group  Group
		p      Pattern
		want   string
	}{
		{PrunerZero(), Row, Pattern{}, "01110100 10010011"},
		{PrunerZero(), Row, Pattern{2, 4}, "01010101 10010011"},
		{RIA(), Row, Pattern{}, "01010110 10001101"},
		{RIA(), Row, Pattern{2, 4}, "01010110 10101001"},
		{GBLM(), Row, Pattern{}, "01010110 10000111"},
		{GBLM(), Row, Pattern{2, 4}, "01010110 10010011"},
	} {
		for name, dev := range devices(t) {
			o := Options{Metric: c.metric, Group: c.group, Pattern: c.p, Sparsity: .5}
			if got := digits(golden(t, dev, o).keep); got != c.want {
				t.Errorf("%s %s on %s: %s, want %s", c.metric.Name, c.p, name, got, c.want)
			}
		}
	}
}

// SparseGPT on the golden matrix. The reference is in F64 with six digits; the products of the Hessian here are in F32.
func TestGoldenSparseGPT(t *testing.T) {
	for _, c := range []struct {
		p    Pattern
		want []float64
		loss float64
	}{
		{Pattern{2, 4}, []float64{
			0, -.983646, 0, 1.975274, 0, 0, -.82268, -.237832, 1, 0, 0, .351481, 0, 0, -.048718,
			.657382,
		}, .824949},
		{Pattern{}, []float64{
			0, -.983646, 0, 1.975274, 0, .64947, -1.44625, .286761, 0, 0, 0, 0, 0, 0, .041876,
			.740428,
		}, .878594},
	} {
		for name, dev := range devices(t) {
			got := golden(t, dev, Options{Metric: SparseGPT(), Pattern: c.p, Sparsity: .5})
			if d := got.t.Damping; d == nil || math.Abs(d.Added-.619514) > 1e-5 || d.Tries != 1 {
				t.Errorf("damping %+v, want 0.619514", d)
			}
			if math.Abs(got.t.Loss-c.loss) > 2e-5 {
				t.Errorf("%s on %s: loss %.6f, want %.6f", c.p, name, got.t.Loss, c.loss)
			}

			for i, want := range c.want {
				if math.Abs(float64(got.after.Buf.F32()[i])-want) > 2e-5 {
					t.Errorf("%s on %s: element %d is %.6f, want %.6f", c.p, name, i, got.after.Buf.F32()[i], want)
				}
			}
		}
	}
}

// What zeroing and what updates do to the outputs, ‖ΔW·X‖²: the golden values, and least squares no worse than
// SparseGPT with the same mask.
func TestGoldenChange(t *testing.T) {
	dev := devices(t)["cpu"]
	total := 0.0
	x := goldenX()
	for i := range 16 {
		for r := range 2 {
			y := 0.0
			for j, v := range x.RowF32(i) {
				y += float64(v) * float64(goldenW[8*r+j])
			}
			total += y * y
		}
	}

	obs := golden(t, dev,
		Options{Metric: Wanda(), Pattern: Pattern{2, 4}, Update: Update{Name: SparseGPTUpdate}}).t.Change
	if math.Abs(obs.Masked*total-27.476865) > 1e-4 {
		t.Errorf("Wanda: %.6f, want 27.476865", obs.Masked*total)
	}

	if c := golden(t, dev,
		Options{
			Metric: PrunerZero(), Pattern: Pattern{2, 4},
			Update: Update{Name: SparseGPTUpdate},
		}).t.Change; math.Abs(c.Masked*total-116.091105) > 1e-4 {
		t.Errorf("Pruner-Zero: %.6f, want 116.091105", c.Masked*total)
	}

	if c := golden(t, dev, Options{Metric: SparseGPT(), Pattern: Pattern{2, 4}}).t.Change; math.Abs(
		c.Updated*total-.003703) > 1e-4 {
		t.Errorf("SparseGPT: %.6f, want 0.003703", c.Updated*total)
	}

	ls := golden(t, dev,
		Options{Metric: Wanda(), Pattern: Pattern{2, 4}, Update: Update{Name: ADMM, Damping: .01, Polish: 30}}).t.Change
	if ls.Updated > obs.Updated || obs.Updated > obs.Masked/2 {
		t.Errorf("of the outputs' energy least squares lose %.3g, SparseGPT %.3g, zeroing %.3g", ls.Updated,
			obs.Updated, obs.Masked)
	}

	t.Logf("masked %.3g, sparsegpt %.3g, least squares %.3g", obs.Masked, obs.Updated, ls.Updated)
}

// digits writes a mask, rows apart.
func digits(keep kernels.Mat) string {
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

	return digits(keep)
}

// OWL's published example.
func TestGoldenOWL(t *testing.T) {
	got, err := allocation.OWL([]float64{7, 3, 1, 5}, .7, .08)
	if err != nil {
		t.Fatal(err)
	}

	for l, want := range []float64{.62, .726667, .78, .673333} {
		if math.Abs(got[l]-want) > 1e-6 { // printed with six digits
			t.Errorf("block %d: %.6f, want %.6f", l, got[l], want)
		}
	}

	if got, err = allocation.OWL([]float64{2, 2}, .5, .08); err != nil || got[0] != .5 || got[1] != .5 {
		t.Errorf("equal blocks: %v, %v", got, err)
	}
	if got, err = allocation.OWL([]float64{0, 9}, .05, .08); err != nil || got[1] != .01 {
		t.Errorf("a block that would gain weights: %v, %v; want 0.01", got, err)
	}
	if _, err = allocation.OWL([]float64{0, 9}, .95, .08); err == nil {
		t.Error("a block that would lose everything is accepted")
	}
}
