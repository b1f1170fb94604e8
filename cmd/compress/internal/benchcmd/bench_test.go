package benchcmd

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
)

var quiet = Options{Budget: 1, Progress: func(string, int64, int64) {}}

// tiny is a random Llama that is made in no time.
var tiny = shape{vocab: 64, hidden: 128, inner: 256, blocks: 2, heads: 4, kv: 2, positions: 512, thin: 0.6}

func TestRingIsLargerThanCaches(t *testing.T) {
	b := newMats(cpu.New(cpu.Options{}))
	next := b.ring(kernels.F32, 2048, 1024)
	seen := map[*kernels.Buffer]bool{}
	for range 2 * ringBytes / (4 * 2048 * 1024) {
		seen[next().Buf] = true
	}
	if b.err != nil || len(seen)*4*2048*1024 < ringBytes {
		t.Errorf("%d matrices, %v", len(seen), b.err)
	}
}

func TestMeasureTakesMedians(t *testing.T) {
	n, undone := 0, 0
	c := timed{
		name: "case", flops: 1e6, bytes: 1e6, run: func() error { n++; return nil },
		after: func() error { undone++; return nil },
	}

	f, err := measure(context.Background(), c, 0, ref.New())
	if err != nil || f.Repeats < leastRepeats || n != f.Repeats+1 || undone != n || f.Seconds <= 0 ||
		math.IsInf(f.Rate, 0) {
		t.Errorf("%+v after %d runs and %d undone, %v", f, n, undone, err)
	}

	if f.Fastest > f.Low || f.Low > f.Seconds || f.Seconds > f.High {
		t.Errorf("quantiles out of order: %+v", f)
	}

	failed := errors.New("out of order")
	if _, err := measure(context.Background(), timed{run: func() error { return failed }}, 0,
		ref.New()); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := measure(ctx, c, time.Hour, ref.New()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// The steps of one piece of work are timed apart, and the first does not count.
func TestMeasureTimesSteps(t *testing.T) {
	c := timed{name: "steps", steps: func(n int, mark func()) error {
		for range n {
			mark()
		}
		return nil
	}}

	f, err := measure(context.Background(), c, 0, ref.New())
	if err != nil || f.Repeats != leastRepeats {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values  []float64
		q, want float64
	}{
		{nil, 0.5, 0},
		{[]float64{3}, 0.25, 3},
		{[]float64{2, 1}, 0.5, 1.5},
		{[]float64{5, 1, 3}, 0.5, 3},
		{[]float64{4, 1, 2, 3}, 1, 4},
		{[]float64{0, 4, 8, 12, 16}, 0.25, 4},
	} {
		if got := quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile %g of %v: %g, want %g", c.q, c.values, got, c.want)
		}
	}
}

func TestUnknownSuite(t *testing.T) {
	if _, err := Run(context.Background(), ref.New(), "cooking", Options{}); err == nil {
		t.Error("a suite that does not exist ran")
	}
}

// TestSuitesRunTheirCases runs every case of the suites of small models once, and the others' names and counts
// are looked at.
func TestSuitesRunTheirCases(t *testing.T) {
	dev, b := cpu.New(cpu.Options{Threads: 1}), &bed{}
	defer b.close()

	seen := map[string]bool{}
	for _, make := range []func(context.Context, kernels.Device, *bed, Options) ([]timed, error){
		evalCases, searchCases, editCases,
		func(ctx context.Context, dev kernels.Device, b *bed, _ Options) ([]timed, error) {
			return mixedCases(ctx, dev, b, tiny)
		},
	} {
		cases, err := make(t.Context(), dev, b, quiet)
		if err != nil {
			t.Fatal(err)
		}

		for _, c := range cases {
			if seen[c.name] {
				t.Errorf("two cases are called %q", c.name)
			}

			seen[c.name] = true
			var times clocks
			if err := c.once(dev, c.run, &times); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}

		b.release()
	}

	if len(seen) < 20 {
		t.Errorf("%d cases", len(seen))
	}
}

// TestSparseCases: the packed model is the dense one, smaller, and each case runs both.
func TestSparseCases(t *testing.T) {
	dev, b := cpu.New(cpu.Options{Threads: 1}), &bed{}
	defer b.close()

	cases, err := sparseCases(t.Context(), dev, b, tiny, quiet)
	if err != nil || len(cases) != len(sparseRows) {
		t.Fatalf("%d cases, %v", len(cases), err)
	}

	for _, c := range cases {
		f, err := measure(t.Context(), c, 0, dev)
		// 60 % zeros in BF16 leave 0.8 bytes of two and an eighth for the mask: 2.16 times, less for rows and the head.
		if err != nil || f.Dense == nil || f.Dense.Seconds <= 0 || f.Dense.Smaller < 1.5 || f.Dense.Smaller > 2.17 {
			t.Errorf("%+v, %+v, %v", f, f.Dense, err)
		}
	}
}

// TestSharesNameTheNearestRoof: each figure stands under the roof of its number of threads and type.
func TestSharesNameTheNearestRoof(t *testing.T) {
	peaks := func(f float64) []cpu.Peak {
		return []cpu.Peak{{Set: "avx512", Flops: f}, {Set: cpu.AMX, Flops: 10 * f}}
	}
	r := &Report{
		Roofs: []Roof{{Threads: 1, Read: 10e9, Peaks: peaks(100e9)}, {Threads: 2, Read: 20e9, Peaks: peaks(200e9)}},
		Cases: []Figure{
			{Threads: 1, Rate: 50, GBs: 1},
			{Threads: 1, Rate: 50, GBs: 1, half: true},
			{Threads: 2, Rate: 50, GBs: 16},
			{Threads: 1, GBs: 5},
			{Threads: 2},
		},
	}

	r.shares()

	for i, want := range []struct {
		limit string
		share float64
	}{{"avx512", 0.5}, {memoryLimit, 0.1}, {memoryLimit, 0.8}, {memoryLimit, 0.5}, {"", 0}} {
		f := r.Cases[i]
		if f.Limit != want.limit || (f.Share == nil) != (want.limit == "") ||
			(f.Share != nil && math.Abs(*f.Share-want.share) > 1e-12) {
			t.Errorf("figure %d: %s, %v; want %+v", i, f.Limit, f.Share, want)
		}
	}

	if text := r.table().Note; text == "" {
		t.Error("no note")
	}
}

// TestContrast: what is slower by more than tolerance and noise is a regression, what is slower by less than
// the noise is not.
func TestContrast(t *testing.T) {
	figure := func(name string, cpu, spread float64) Figure {
		return Figure{
			Suite: "s", Name: name, Threads: 1, Seconds: cpu, CPU: cpu, Low: cpu * (1 - spread),
			High: cpu * (1 + spread),
		}
	}

	a := &Report{Cases: []Figure{
		figure("slow", 1, 0.01), figure("noisy", 1, 0.1), figure("fast", 1, 0.01),
		figure("same", 1, 0), figure("gone", 1, 0),
	}}
	b := &Report{Cases: []Figure{
		figure("same", 1.04, 0), figure("fast", 0.8, 0.01), figure("noisy", 1.2, 0.1),
		figure("slow", 1.1, 0.01), figure("new", 1, 0),
	}}
	c := contrast(a, b, CompareOptions{Tolerance: 0.05})
	var got []string
	for _, r := range c.Rows {
		got = append(got, r.Name+" "+r.Verdict)
	}
	if want := []string{"slow slower", "noisy undecided", "fast faster", "same same"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}

	if c.Slower != 1 || c.Faster != 1 || c.Undecided != 1 || len(c.OnlyA) != 1 || len(c.OnlyB) != 1 ||
		c.table() == nil {
		t.Errorf("%+v", c)
	}
}

// TestKeysStay: pipelines rely on the names in a report.
func TestKeysStay(t *testing.T) {
	data, err := json.Marshal(Report{Roofs: []Roof{{Peaks: []cpu.Peak{{}}}}, Cases: []Figure{{Dense: &Twin{}}}})
	if err != nil {
		t.Fatal(err)
	}

	var keys struct {
		Suite, Machine json.RawMessage
		Roofs          []map[string]json.RawMessage
		Cases          []map[string]json.RawMessage
	}

	if err := json.Unmarshal(data, &keys); err != nil {
		t.Fatal(err)
	}

	for _, k := range []string{
		"suite", "name", "threads", "repeats", "seconds", "seconds_min", "seconds_q1", "seconds_q3", "cpu_seconds",
		"flops", "bytes", "gflops",
		"gb_per_second", "of_peak", "of_bandwidth", "limit", "share", "dense",
	} {
		if keys.Cases[0][k] == nil {
			t.Errorf("a figure has no %s", k)
		}
	}

	for _, k := range []string{"threads", "read_bandwidth", "peaks"} {
		if keys.Roofs[0][k] == nil {
			t.Errorf("a roof has no %s", k)
		}
	}
}
