package fitness

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/stats"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/structure"
)

// BenchmarkParts measures formulas of neurons on another model than the one that they were found on, in pairs by
// windows: COMPRESS_BENCH_MODEL is the model, COMPRESS_BENCH_TEXTS a calibration text and one to measure on with a
// comma between them, COMPRESS_BENCH_FORMULAS the formulas with semicolons, the first of which the others are compared
// with, COMPRESS_BENCH_WINDOWS how many windows of 128 tokens they are measured on (32).
func BenchmarkParts(b *testing.B) {
	dir := os.Getenv("COMPRESS_BENCH_MODEL")
	calib, heldout, _ := strings.Cut(os.Getenv("COMPRESS_BENCH_TEXTS"), ",")
	formulas := strings.Split(os.Getenv("COMPRESS_BENCH_FORMULAS"), ";")
	if dir == "" || heldout == "" {
		b.Skip("no COMPRESS_BENCH_MODEL or COMPRESS_BENCH_TEXTS")
	}

	dev := cpu(b, 0)
	s := Subject{Name: "model", Open: func(ctx context.Context) (*lm.Model, error) {
		return lm.Load(ctx, dir, dev, lm.Options{Decode: true})
	}}
	m, err := s.Open(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	cut := func(file string, first, n int) corpus.Windows {
		w, err := m.Cut(b.Context(), file, corpus.CutOptions{SeqLen: 128, Limit: first + n})
		if err != nil {
			b.Fatal(err)
		}
		return corpus.New(w.IDs[first:], file)
	}
	n := 32
	if text := os.Getenv("COMPRESS_BENCH_WINDOWS"); text != "" {
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	s.Calib, s.Test = cut(calib, 0, 8), cut(heldout, 4, n)
	s.Search, s.Select = cut(heldout, 0, 2), cut(heldout, 2, 2)
	m.Close()

	for b.Loop() {
		j := judge(b, Options{
			Structure: structure.Neurons, Settings: []Setting{{Sparsity: 0.25}, {Sparsity: 0.5}}, Windows: 1,
		}, s)
		dense := measure(b, j, Test, Dense)
		b.Logf("dense: %.4f nats a token", dense.Values[0])
		var first Measure
		for i, f := range formulas {
			got := measure(b, j, Test, prune.FormulaPrefix+strings.TrimSpace(f))
			if got.Rejected != "" {
				b.Fatal(f, ": ", got.Rejected)
			}
			if i == 0 {
				first = got
			}
			for k, v := range got.Values {
				x := stats.NewVersus(got.Windows[k], first.Windows[k])
				b.Logf("%s, %s: %.4f, more than the first %+.4f ± %.4f (95 %%), p %.2g", f, j.o.Settings[k], v,
					x.Difference, x.HalfWidth(), x.P)
			}
		}
	}
}
