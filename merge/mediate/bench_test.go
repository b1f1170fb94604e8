package mediate

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge"
)

// BenchmarkConflict measures the conflict between models m1 and m2 of the folder that COMPRESS_MERGE_BENCH
// names, or between the project's tiny experts.
func BenchmarkConflict(b *testing.B) {
	text := mediateRecipe("{}", trio...)
	if dir := os.Getenv("COMPRESS_MERGE_BENCH"); dir != "" {
		text = "merge_method: mediate\nbase_model: " + dir + "/base\nmodels: [{model: " + dir + "/m1}, {model: " + dir +
			"/m2}]\n"
	}

	for b.Loop() {
		report, err := Conflict(b.Context(), parse(b, text), ConflictOptions{})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(report.BytesIn)
	}
}

// BenchmarkSwitch changes between two experts of the folder that COMPRESS_MEDIATED names, or of the project's
// tiny ones, with a warm cache; the bytes are those that the experts have stored. BenchmarkSwitch/cold makes
// the weights of one of them first. BenchmarkSwitch/request is a pass over 256 tokens, and
// BenchmarkSwitch/route the decision about them, for comparison.
func BenchmarkSwitch(b *testing.B) {
	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	dir := os.Getenv("COMPRESS_MEDIATED")
	if dir == "" {
		dir, _ = mediated(b, strings.ReplaceAll(routedRecipe("keep: 0.1"), "FEATURES", "embed_mean"),
			merge.Options{Device: dev})
	}

	e, err := Open(b.Context(), dir)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()

	m, err := lm.Load(b.Context(), dir, dev, lm.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()

	r, err := e.Attach(m, 0)
	if err != nil {
		b.Fatal(err)
	}

	two := [2][]float64{make([]float64, len(e.Names())), make([]float64, len(e.Names()))}
	two[0][0], two[1][1] = 1, 1
	ids := make([]int32, 256)
	for i := range ids {
		ids[i] = int32(i)
	}

	b.Run("switch", func(b *testing.B) {
		v, err := e.Verify(b.Context())
		if err != nil {
			b.Fatal(err)
		}

		b.SetBytes(v.Experts[0].Bytes + v.Experts[1].Bytes)

		for i := range two {
			if err := r.Use(two[i]); err != nil { // from here on the cache is warm
				b.Fatal(err)
			}
		}

		for i := 0; b.Loop(); i++ {
			if err := r.Use(two[i%2]); err != nil {
				b.Fatal(err)
			}
		}
	})

	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			fresh, err := e.Attach(m, 0)
			if err == nil {
				err = errors.Join(fresh.Use(two[0]), fresh.Undo())
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})

	b.Run("request", func(b *testing.B) {
		for b.Loop() {
			if _, err := m.Forward(b.Context(), [][]int32{ids}, lm.ForwardOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})

	b.Run("route", func(b *testing.B) {
		if err := r.Undo(); err != nil || !e.HasRouter() {
			b.Skip("no router")
		}
		for b.Loop() {
			if _, _, err := r.Route(b.Context(), ids, Policy{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkMixed compares, for requests of a few tokens with two experts, one mixed pass, a pass for each of
// the two with weights in the cache, and the same with weights that are made anew. The folder is that of
// BenchmarkSwitch; its embeddings must not be routed.
func BenchmarkMixed(b *testing.B) {
	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	dir := os.Getenv("COMPRESS_MEDIATED")
	if dir == "" {
		dir, _ = mediated(b, mediateRecipe("{select: all, keep: {lowrank: 8}}", trio...), merge.Options{})
	}

	e, err := Open(b.Context(), dir)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()

	m, err := lm.Load(b.Context(), dir, dev, lm.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()

	weights := [][]float64{make([]float64, len(e.Names())), make([]float64, len(e.Names()))}
	weights[0][0], weights[1][1] = 1, 1
	forward := func(b *testing.B, ids ...[]int32) {
		if _, err := m.Forward(b.Context(), ids, lm.ForwardOptions{}); err != nil {
			b.Fatal(err)
		}
	}

	for _, n := range []int{1, 16, 256} {
		r, err := e.Attach(m, 0)
		if err != nil {
			b.Fatal(err)
		}

		ids := make([]int32, n)
		b.Run(fmt.Sprintf("tokens=%d/mixed", n), func(b *testing.B) {
			b.ReportMetric(boolMetric(r.MixedIsCheaper([]int{n, n}, weights)), "chosen-when-cold")
			for b.Loop() {
				undo, err := r.Mixed([]int{n, n}, weights)
				if err != nil {
					b.Fatal(err)
				}
				forward(b, ids, ids)
				undo()
			}
		})

		apart := func(b *testing.B, r *Routed) {
			for _, w := range weights {
				if err := r.Use(w); err != nil {
					b.Fatal(err)
				}
				forward(b, ids)
			}
			if err := r.Undo(); err != nil {
				b.Fatal(err)
			}
		}

		b.Run(fmt.Sprintf("tokens=%d/cached", n), func(b *testing.B) {
			apart(b, r)
			b.ReportMetric(boolMetric(r.MixedIsCheaper([]int{n, n}, weights)), "mixed-chosen")
			for b.Loop() {
				apart(b, r)
			}
		})

		b.Run(fmt.Sprintf("tokens=%d/cold", n), func(b *testing.B) {
			for b.Loop() {
				fresh, err := e.Attach(m, 0)
				if err != nil {
					b.Fatal(err)
				}
				apart(b, fresh)
			}
		})
	}
}

func boolMetric(x bool) float64 {
	if x {
		return 1
	}
	return 0
}
