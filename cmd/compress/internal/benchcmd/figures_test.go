package benchcmd

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

// written writes a report to a file.
func written(t *testing.T, r *Report) string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "bench.json")
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// measured is a figure of a quiet machine.
func measured(name string, seconds float64) Figure {
	return Figure{Suite: "s", Name: name, Threads: 2, Seconds: seconds, Low: seconds, High: seconds, CPU: 2 * seconds}
}

// TestCompareFiles: what a comparison prints and returns, and when it fails.
func TestCompareFiles(t *testing.T) {
	before := &Report{
		Machine: Machine{Model: "M", Processors: 4},
		Cases:   []Figure{measured("matmul", .010), measured("softmax", .004), measured("gone", 1)},
	}
	after := &Report{
		Machine: Machine{Model: "M", Processors: 8},
		Cases:   []Figure{measured("softmax", .002), measured("matmul", .015), measured("new", 1)},
	}
	a, b := written(t, before), written(t, after)
	compare := func(o CompareOptions, files ...string) clitest.Said {
		return clitest.Run(t, func(j *cli.Job) (any, error) { return Compare(j, files[0], files[1], o) })
	}

	said := compare(CompareOptions{Tolerance: .05, Wall: true}, a, b)
	want := `suite  case     threads  ms before  ms after  ratio  noise  verdict
───────────────────────────────────────────────────────────────────
s      matmul         2     10.000    15.000   1.50   0.00  slower
s      softmax        2      4.000     2.000   0.50   0.00  faster
wall time; 1 slower by more than 5 % and the noise, 1 faster, 0 within the noise, 0 the same; median ratio 1.000
`
	if said.Code != 0 || said.Stdout != want {
		t.Errorf("exit code %d, have\n%s\nwant\n%s", said.Code, said.Stdout, want)
	}
	if said.Stderr != "the reports are of different machines: M with 4 processors and M with 8 processors\n" {
		t.Errorf("%q", said.Stderr)
	}

	c, ok := said.Result.(*Comparison)
	if !ok || c.A != a || c.B != b || c.SameKind || c.MedianRatio != 1 || c.Clock != "wall" ||
		cmp.Diff(c.OnlyA, []Label{{"s", "gone", 2}}) != "" || cmp.Diff(c.OnlyB, []Label{{"s", "new", 2}}) != "" {
		t.Errorf("%+v", c)
	}

	said = compare(CompareOptions{Tolerance: .05, Check: true}, a, b)
	if said.Code != 1 ||
		!strings.Contains(said.Stderr, "1 of 2 figures are slower by more than 5 % and their noise") {
		t.Errorf("with --check: exit code %d, %s", said.Code, said.Stderr)
	}
	if said := compare(CompareOptions{Tolerance: .6, Check: true}, a, b); said.Code != 0 {
		t.Errorf("a wide tolerance: %s", said.Stderr)
	}

	for _, tolerance := range []float64{-.1, math.NaN(), math.Inf(1)} {
		clitest.Refused(t, compare(CompareOptions{Tolerance: tolerance, Check: true}, a, b), "want 0 or more")
	}

	none := written(t, &Report{Cases: []Figure{measured("other", 1)}})
	if said := compare(
		CompareOptions{},
		a,
		none,
	); said.Code != 1 ||
		!strings.Contains(said.Stderr, "no figure in common") {
		t.Errorf("%+v", said)
	}
	for _, text := range []string{"{}", "[]", "not JSON", `{"cases": []}`} {
		bad := filepath.Join(t.TempDir(), "bad.json")
		if err := os.WriteFile(bad, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if said := compare(CompareOptions{}, a, bad); said.Code != 1 ||
			!strings.Contains(said.Stderr, "no report of bench (HINT: compress bench all --report "+bad+")") {
			t.Errorf("%s: %+v", text, said)
		}
	}
}

// TestSidesOfAComparison: compared the other way round ratios are inverse, what was slower is faster, and what only one
// side has changes sides; the same report has nothing to tell.
func TestSidesOfAComparison(t *testing.T) {
	figure := rapid.Custom(func(t *rapid.T) Figure {
		f := measured(
			rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name"),
			rapid.Float64Range(.001, 10).Draw(t, "s"),
		)
		spread := rapid.Float64Range(0, .2).Draw(t, "spread")
		f.Low, f.High = f.Seconds*(1-spread), f.Seconds*(1+spread)
		if rapid.Bool().Draw(t, "too short for the processor's clock") {
			f.CPU = 0
		}
		return f
	})

	rapid.Check(t, func(t *rapid.T) {
		side := func(name string) *Report {
			return &Report{
				Cases: rapid.SliceOfNDistinct(figure, 1, 4, func(f Figure) string { return f.Name }).Draw(t, name),
			}
		}
		a, b := side("a"), side("b")
		o := CompareOptions{
			Tolerance: rapid.Float64Range(0, .5).Draw(t, "tolerance"),
			Wall:      rapid.Bool().Draw(t, "wall"),
		}
		there, back := contrast(a, b, o), contrast(b, a, o)
		if len(there.Rows) != len(back.Rows) || len(there.OnlyA) != len(back.OnlyB) ||
			there.Faster > back.Slower+back.Undecided {
			t.Fatalf("%+v\n%+v", there, back)
		}

		for _, r := range there.Rows {
			i := slices.IndexFunc(back.Rows, func(q Row) bool { return q.Label == r.Label })
			q := back.Rows[i]
			if math.Abs(q.Ratio*r.Ratio-1) > 1e-9 || q.A != r.B || math.Abs(q.Noise-r.Noise) > 1e-12 {
				t.Fatalf("%+v\n%+v", r, q)
			}
			if r.Verdict == faster && q.Verdict != slower || r.Verdict == slower && q.Verdict == slower {
				t.Fatalf("%s there, %s back", r.Verdict, q.Verdict)
			}
		}

		own := contrast(a, a, o)
		if own.Slower+own.Faster+own.Undecided+len(own.OnlyA)+len(own.OnlyB) != 0 || own.MedianRatio != 1 {
			t.Fatalf("against itself: %+v", own)
		}
	})
}

// TestQuantilesLieWithin: a quantile lies between the least and the largest value, grows with its rank, and does not
// depend on the order of the values, which stay as they are.
func TestQuantilesLieWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 9).Draw(t, "values")
		before := slices.Clone(values)
		p := rapid.Float64Range(0, 1).Draw(t, "p")
		q := rapid.Float64Range(p, 1).Draw(t, "q")
		low, high := quantile(values, p), quantile(values, q)
		if low > high+1e-9 || low < slices.Min(values)-1e-9 || high > slices.Max(values)+1e-9 {
			t.Errorf("%v: %g at %g, %g at %g", values, low, p, high, q)
		}

		slices.Reverse(values)
		if quantile(values, p) != low {
			t.Errorf("%v: it depends on their order", values)
		}

		slices.Reverse(values)
		if !slices.Equal(values, before) {
			t.Error("the values were moved")
		}
	})
}

// TestSummaries: rates are those of the median of the clock, by hand.
func TestSummaries(t *testing.T) {
	f := Figure{Flops: 8e9, Bytes: 4e9}
	f.summarise(clocks{wall: []float64{4, 1, 2, 3, 5}, cpu: []float64{9, 7, 8}})
	want := Figure{
		Flops: 8e9, Bytes: 4e9, Seconds: 3, Fastest: 1, Low: 2, High: 4, CPU: 8, Rate: 8. / 3, GBs: 4. / 3,
	}
	if diff := cmp.Diff(want, f, cmp.AllowUnexported(Figure{})); diff != "" {
		t.Error(diff)
	}
	if got := f.noise(); math.Abs(got-1./3) > 1e-12 {
		t.Errorf("half of the middle half is a third of the median, not %g", got)
	}

	if f.time(false) != 8 || f.time(true) != 3 || (&Figure{Seconds: 3}).time(false) != 3 {
		t.Error("which clock is compared")
	}
}

// TestTwinsTakeTurns: a case and its twin run in turn, and their figures are beside each other.
func TestTwinsTakeTurns(t *testing.T) {
	var order strings.Builder
	c := timed{
		bytes: 50, denseBytes: 100, run: func() error { order.WriteByte('p'); return nil },
		dense: func() error { order.WriteByte('d'); return nil },
	}
	f, err := measure(t.Context(), c, 0, ref.New())
	if err != nil || order.String() != "p"+strings.Repeat("pd", leastRepeats) {
		t.Fatalf("%s, %v", order.String(), err)
	}
	if f.Dense == nil || f.Dense.Smaller != 2 || math.Abs(f.Dense.Faster-f.Dense.Seconds/f.Seconds) > 1e-12 {
		t.Errorf("%+v", f.Dense)
	}

	broken := errors.New("broken")
	c.dense = func() error { return broken }
	if _, err := measure(t.Context(), c, 0, ref.New()); !errors.Is(err, broken) {
		t.Error(err)
	}
	undo := timed{run: func() error { return nil }, after: func() error { return broken }}
	if _, err := measure(t.Context(), undo, 0, ref.New()); !errors.Is(err, broken) {
		t.Errorf("what cannot be undone: %v", err)
	}
}

// TestTableOfFigures: figures as they are printed, and those that nothing was counted for have empty cells.
func TestTableOfFigures(t *testing.T) {
	share := .5
	r := &Report{
		Machine: Machine{Model: "M", System: "linux/amd64", Go: "go1"},
		Roofs:   []Roof{{Threads: 2, Read: 12e9, Peaks: []cpu.Peak{{Set: "avx2", Flops: 99.6e9}}}},
		Cases: []Figure{
			{
				Name:    "a",
				Threads: 2,
				Seconds: .0015,
				Low:     .0014,
				High:    .0017,
				CPU:     .003,
				Rate:    12.34,
				GBs:     5,
				Limit:   "memory",
				Share:   &share,
			},
			{Name: "b", Threads: 2, Seconds: 1},
		},
	}

	out, _ := clitest.Show(t, func(j *cli.Job) { j.Table(r.table()) })
	want := `case  threads        ms  ± %   CPU ms  GFLOP/s  GB/s  of roof %  roof
──────────────────────────────────────────────────────────────────────
a           2     1.500   10    3.000     12.3   5.0         50  memory
b           2  1000.000    0    0.000
M, linux/amd64, go1; roof with 2 thread(s): 12.0 GB/s read, 100 GFLOP/s avx2; medians, ± half of the middle half; ` +
		"what fits the caches may pass the bandwidth\n"
	if diff := cmp.Diff(strings.Fields(want), strings.Fields(out)); diff != "" {
		t.Errorf("%s\n%s", diff, out)
	}

	r.Cases[1].Dense = &Twin{Seconds: 2, Faster: 2, Smaller: 1.6}
	if got := r.table(); len(got.Columns) != 12 || got.Cell(0, 9) != "" || got.Cell(1, 9) != "2000.000" ||
		got.Cell(1, 11) != "1.60" {
		t.Errorf("%v", got.Rows)
	}
}

// TestShowRefuses: what cannot be measured is told before any device is opened.
func TestShowRefuses(t *testing.T) {
	for want, o := range map[string]Options{
		"--time 0s: want more than 0": {}, "--time -1ns": {Budget: -1},
		"--model: only bench forward runs a model": {Budget: 1, Model: "m"},
	} {
		clitest.Refused(t, clitest.Run(t, func(j *cli.Job) (any, error) { return Show(j, "kernels", o) }), want)
	}
}

// TestRandomModels: a checkpoint of random weights is what its shape says, opens as a model, and depends on its number
// and the seed alone; norms are ones.
func TestRandomModels(t *testing.T) {
	b := &bed{seed: 5}
	defer b.close()

	read := func(b *bed, number int) ([]byte, *lm.Model) {
		t.Helper()
		dir, err := b.random(tiny, safetensors.F32, number)
		if err != nil {
			t.Fatal(err)
		}
		m, err := b.load(t.Context(), dir, ref.New(), lm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return text, m
	}

	zero, m := read(b, 0)
	one, _ := read(b, 1)
	other := &bed{seed: 6}
	defer other.close()
	shifted, _ := read(other, 0)
	if slices.Equal(zero, one) || !slices.Equal(one, shifted) {
		t.Error("the weights of number 1 with seed 5 are not those of number 0 with seed 6 alone")
	}

	kv := tiny.hidden / tiny.heads * tiny.kv
	perBlock := 2*tiny.hidden*tiny.hidden + 2*tiny.hidden*kv + 3*tiny.hidden*tiny.inner + 2*tiny.hidden
	params := int64(2*tiny.vocab*tiny.hidden + tiny.blocks*perBlock + tiny.hidden)
	if m.NumParameters() != params || m.Blocks() != tiny.blocks || isHalf(m) {
		t.Errorf("%d parameters in %d blocks, want %d", m.NumParameters(), m.Blocks(), params)
	}
	if weights, bytes := multiplied(m); weights != float64(params)-float64(tiny.vocab*tiny.hidden) ||
		math.Abs(bytes-4*weights) > 1 {
		t.Errorf("%g weights of %g bytes are multiplied", weights, bytes)
	}

	// By hand for one block of 4 rows: q, k, v share a Hessian, o, gate with up, and down have one each.
	n, inner := float64(tiny.hidden), float64(tiny.inner)
	hessian := func(n float64) float64 { return 2*10*n*n + 4*n*n*n/3 }
	want := float64(2*tiny.hidden+2*kv+2*tiny.inner)*n*n + n*inner*inner + 3*hessian(n) + hessian(inner)
	if got := sweep(m, 10); math.Abs(got/want-1) > 1e-12 {
		t.Errorf("a sweep has %g operations, want %g", got, want)
	}
}

// TestValuesOfRandomWeights: uniform numbers have the deviation that they promise, as many zeros as asked for, and
// none outside of the matrices of blocks.
func TestValuesOfRandomWeights(t *testing.T) {
	s := shape{thin: .6}
	draw := func(role arch.Role, dims ...int64) (zeros int, deviation float64) {
		info := safetensors.Info{DType: safetensors.BF16, Shape: dims}
		data := s.values(rand.New(rand.NewPCG(1, 1)), info, role)
		square := 0.0
		for i := 0; i < len(data); i += 2 {
			v := float64(kernels.FromBF16(binary.LittleEndian.Uint16(data[i:])))
			square += v * v
			if v == 0 {
				zeros++
			}
		}
		return zeros, math.Sqrt(square / float64(len(data)/2))
	}

	const n = 64 * 64
	zeros, deviation := draw("q", 64, 64)
	if d := float64(zeros)/n - .6; math.Abs(d) > .04 { // five standard errors of a fraction over 4096 draws
		t.Errorf("%d of %d are zero", zeros, n)
	}
	if want := .02 * math.Sqrt(.4); math.Abs(deviation/want-1) > .08 {
		t.Errorf("a deviation of %g with zeros, want %g", deviation, want)
	}

	if zeros, deviation := draw("embed", 64, 64); zeros > 16 || math.Abs(deviation/.02-1) > .08 {
		t.Errorf("the token table: %d zeros, a deviation of %g", zeros, deviation)
	}
	if zeros, deviation := draw("norm", 64); zeros != 0 || deviation != 1 {
		t.Errorf("a norm: %d zeros, root of the mean square %g", zeros, deviation)
	}
}

// TestOddFolders: the temporary folder may have any name.
func TestOddFolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a, b #c: {d}")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)

	b := &bed{}
	defer b.close()
	path, err := b.task(choiceTask, 8)
	if err != nil {
		t.Fatal(err)
	}
	suite, err := task.Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	if err := suite.CheckData(); err != nil {
		t.Error(err)
	}

	cases, err := mixedCases(t.Context(), ref.New(), b, tiny)
	if err != nil || len(cases) != len(mergeRecipes)+1 {
		t.Errorf("%d merges, %v", len(cases), err)
	}
}

// TestBed: what is made once stays, what was opened is closed in reverse order, and the folder goes.
func TestBed(t *testing.T) {
	b := &bed{}
	made := 0
	for range 2 {
		if _, err := b.once("x", func(dir string) error { made++; return os.Mkdir(dir, 0o777) }); err != nil {
			t.Fatal(err)
		}
	}

	var order []int
	for i := range 3 {
		b.later(func() { order = append(order, i) })
	}

	dir := b.dir
	b.close()
	b.release()
	if made != 1 || !slices.Equal(order, []int{2, 1, 0}) {
		t.Errorf("made %d times; closed in the order %v", made, order)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder stays: %v", err)
	}

	for _, ids := range numbers(&lm.Config{Vocab: 10, MaxPositions: 3}, 2, 5) {
		if len(ids) != 3 || slices.Max(ids) > 9 || slices.Min(ids) < 0 {
			t.Errorf("ids %v", ids)
		}
	}
}
