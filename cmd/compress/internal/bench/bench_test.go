package bench

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/kernels/ref"
)

func TestRingIsLargerThanCaches(t *testing.T) {
	b := newMats(cpu.New(cpu.Options{}))
	w := b.mat(kernels.F32, 64, 1024)
	next := b.ring(w)
	seen := map[*kernels.Buffer]bool{}
	for range 2 * ringBytes / (4 * w.Len()) {
		seen[next().Buf] = true
	}
	if b.err != nil || len(seen)*4*w.Len() < ringBytes {
		t.Errorf("%d matrices, %v", len(seen), b.err)
	}
}

func TestMeasureKeepsTheBest(t *testing.T) {
	r, n := &Report{PeakFlops: 1e12, Bandwidth: 1e10}, 0
	c := timed{name: "case", flops: 1e6, bytes: 1e6, run: func() error { n++; return nil }}
	f, err := r.measure(context.Background(), c, 0, ref.New())
	if err != nil || n < 3 || f.Repeats != n || f.Seconds <= 0 || math.IsInf(f.PerSec, 0) {
		t.Errorf("%+v after %d runs, %v", f, n, err)
	}
	failed := errors.New("out of order")
	if _, err := r.measure(context.Background(), timed{run: func() error { return failed }}, 0, ref.New()); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.measure(ctx, c, 0, ref.New()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestUnknownSuite(t *testing.T) {
	if _, err := Run(context.Background(), ref.New(), "cooking", Options{}); err == nil {
		t.Error("a suite that does not exist ran")
	}
}

// TestSparseCases: the packed model is the dense one, smaller, and each case runs both.
func TestSparseCases(t *testing.T) {
	dev := cpu.New(cpu.Options{Threads: 1})
	s := shape{vocab: 64, hidden: 128, inner: 256, blocks: 2, heads: 4, kv: 2, positions: 512, thin: 0.6}
	cases, done, err := sparseCases(context.Background(), dev, s, Options{Progress: func(string, int64, int64) {}})
	defer done()
	if err != nil || len(cases) != len(sparseRows) {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, c := range cases {
		f, err := (&Report{}).measure(context.Background(), c, 0, dev)
		// 60 % zeros in BF16 leave 0.8 bytes of two and an eighth for the mask: 2.16 times, less for rows and the head.
		if err != nil || f.Dense == nil || f.Dense.Seconds <= 0 || f.Dense.Smaller < 1.5 || f.Dense.Smaller > 2.17 {
			t.Errorf("%+v, %+v, %v", f, f.Dense, err)
		}
	}
}
