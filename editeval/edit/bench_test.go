package edit

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcompress/compress/editeval/edit/internal/optimize"
	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/cputime"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// oracles is the folder of reference files, beside which the models and facts of the benchmarks are.
func oracles() string {
	return cmp.Or(os.Getenv("COMPRESS_ORACLE"), "../../../shared/oracle")
}

// labBench is the lab's model with some of its edits and statistics from its text.
func labBench(b *testing.B, n int) (*lm.Model, []Encoded, *Statistics) {
	b.Helper()
	root := oracles()
	return editBench(b, filepath.Join(root, "../data/lab/base"), filepath.Join(root, "editing/lab-counterfact.json"), n,
		[]int{1, 2, 3})
}

// realBench is the model that COMPRESS_REAL_MODEL names with some facts of CounterFact. Statistics are those of MEMIT's
// layers, from the facts.
func realBench(b *testing.B, n int) (*lm.Model, []Encoded, *Statistics) {
	b.Helper()
	dir := os.Getenv("COMPRESS_REAL_MODEL")
	if dir == "" {
		b.Skip("COMPRESS_REAL_MODEL names no folder")
	}
	return editBench(b, dir, filepath.Join(oracles(), "../data/tasks/editing/counterfact-edit.json"), n, nil)
}

// editBench is a model in one thread, facts for it, and the statistics of some layers, nil for MEMIT's, from the facts.
func editBench(b *testing.B, dir, facts string, n int, layers []int) (*lm.Model, []Encoded, *Statistics) {
	b.Helper()
	set, err := Read(facts)
	if err != nil {
		b.Skip(err)
	}

	m, err := lm.Load(context.Background(), dir, cpu.New(cpu.Options{Threads: 1}), lm.Options{})
	if err != nil {
		b.Skip(err)
	}

	b.Cleanup(func() { _ = m.Close() })
	tok, err := tokenizer.Load(dir)
	if err != nil {
		b.Fatal(err)
	}

	hp, err := Defaults("memit", m.Config())
	if err != nil {
		b.Fatal(err)
	}

	if layers == nil {
		layers = hp.Layers
	}

	x := &Encoder{Tokenizer: tok, Templates: hp.Templates}
	var reqs []Encoded
	var docs [][]int32
	for i := range min(len(set.Records), 1000) {
		r := &set.Records[i]
		ids, err := x.Document(r.Full()+" "+r.True, 512)
		if err != nil {
			b.Fatal(err)
		}

		docs = append(docs, ids)
		if i >= n {
			continue
		}

		e, err := x.Record(r)
		if err != nil {
			b.Fatal(err)
		}

		reqs = append(reqs, e)
	}

	st, err := Collect(context.Background(), m, docs, layers, nil)
	if err != nil {
		b.Fatal(err)
	}

	return m, reqs, st
}

// clock is the processor's time that this process has taken: other work on the machine does not count.
func clock() time.Duration {
	return cputime.Process()
}

// written applies requests in batches of a size and returns the processor time that Apply took.
func written(b *testing.B, m *lm.Model, st *Statistics, method string, reqs []Encoded,
	size int,
) (time.Duration, *Editing) {
	b.Helper()
	e, err := New(m, Options{Method: method, Statistics: st})
	if err != nil {
		b.Fatal(err)
	}

	start := clock()

	for lo := 0; lo < len(reqs); lo += size {
		if _, err := e.Apply(context.Background(), reqs[lo:min(lo+size, len(reqs))], nil); err != nil {
			b.Fatal(err)
		}
	}

	return clock() - start, e
}

// A batch of a hundred edits against a hundred batches of one, for every method that searches values in batches.
func BenchmarkBatch(b *testing.B) {
	m, reqs, st := labBench(b, 100)
	for _, method := range []string{"memit", "pmet", "emmet", "alphaedit"} {
		b.Run(method, func(b *testing.B) {
			ratio, whole := 0.0, 0.0
			for range b.N {
				one, e := written(b, m, st, method, reqs, 1)
				if err := e.Undo(0); err != nil {
					b.Fatal(err)
				}

				all, e := written(b, m, st, method, reqs, len(reqs))
				if err := e.Undo(0); err != nil {
					b.Fatal(err)
				}

				ratio = max(ratio, one.Seconds()/all.Seconds())
				top := e.HParams().Layers[len(e.HParams().Layers)-1]
				apart, sample := time.Duration(0), 5
				// the searches alone, as the published code runs them: whole prompts through the whole model
				for i := range sample {
					apart += time.Duration(len(reqs)/sample*e.HParams().Steps) * passes(b, m, &reqs[i], top, false)
				}

				whole = max(whole, apart.Seconds()/all.Seconds())
			}

			b.ReportMetric(ratio, "x-faster")
			b.ReportMetric(whole, "x-whole")
		})
	}
}

// An edit by ROME against its own search: as many forward and backward passes from the edited layer up as the
// search had iterations, over all tokens of its prompts.
func BenchmarkROME(b *testing.B) {
	m, reqs, st := labBench(b, 10)
	ratio := 0.0
	for range b.N {
		took, e := written(b, m, st, "rome", reqs, 1)
		block := e.HParams().Layers[0]
		bound := time.Duration(0)
		for i, s := range e.Steps() {
			bound += time.Duration(len(s.History[0])) * passes(b, m, &reqs[i], block, true)
		}
		if err := e.Undo(0); err != nil {
			b.Fatal(err)
		}
		if r := took.Seconds() / bound.Seconds(); ratio == 0 || r < ratio {
			ratio = r
		}
	}

	b.ReportMetric(ratio, "x-bound")
}

// Facts that UltraEdit writes in a second of the processor, a hundred at once, into a real model.
func BenchmarkUltraEdit(b *testing.B) {
	m, reqs, _ := realBench(b, 200)
	best := 0.0
	for range b.N {
		took, e := written(b, m, nil, "ultraedit", reqs, 100)
		best = max(best, float64(len(reqs))/took.Seconds())
		if err := e.Undo(0); err != nil {
			b.Fatal(err)
		}
	}

	b.ReportMetric(best, "facts/s")
}

// Facts that accumulated MEMIT writes ten at a time, against the forward and backward passes that its searches need:
// from the layer whose value they look for up, over all tokens of their prompts.
func BenchmarkMEMIT(b *testing.B) {
	for _, c := range []struct {
		name string
		of   func(*testing.B, int) (*lm.Model, []Encoded, *Statistics)
		n    int
	}{{"lab", labBench, 150}, {"real", realBench, 20}} {
		b.Run(c.name, func(b *testing.B) {
			m, reqs, st := c.of(b, c.n)
			ratio, n := 0.0, 0
			for range b.N {
				took, e := written(b, m, st, "memit", reqs, 10)
				top := e.HParams().Layers[len(e.HParams().Layers)-1]
				bound := time.Duration(0)
				n = 0
				for _, s := range e.Steps() {
					for _, history := range s.History {
						bound += time.Duration(len(history)) * passes(b, m, &reqs[n], top, true)
						n++
					}
				}
				if err := e.Undo(0); err != nil {
					b.Fatal(err)
				}
				if r := took.Seconds() / bound.Seconds(); ratio == 0 || r < ratio {
					ratio = r
				}
			}

			b.ReportMetric(ratio, "x-bound")
			b.ReportMetric(float64(n), "facts")
		})
	}
}

// passes is how long a forward and a backward pass take down to a block, the fastest of a few; from is whether
// the forward pass begins there too.
func passes(b *testing.B, m *lm.Model, r *Encoded, block int, from bool) time.Duration {
	b.Helper()
	ctx, best := context.Background(), time.Duration(0)

	var ids, labels [][]int32
	for _, p := range append(append([][]int32(nil), r.Prompts...), r.KL) {
		text := append(append([]int32(nil), p...), r.Target...)
		l := optimize.Ignored(len(text))
		copy(l[len(p):], r.Target)
		ids, labels = append(ids, text), append(labels, l)
	}

	o := lm.BackwardOptions{
		Labels: labels, Hooks: &lm.Hooks{HiddenGrad: func(int, kernels.Mat) error { return nil }},
		WantHidden: func(s int) bool { return s == block+1 }, Keep: 1 << 30,
		Want: func(string) bool { return false },
	}

	for range 3 {
		start := clock()
		if _, err := m.Backward(ctx, ids, o); err != nil {
			b.Fatal(err)
		}

		full := clock() - start
		start = clock()
		h, err := m.Embed(ids)
		for l := 0; from && l <= block && err == nil; l++ {
			err = m.RunBlock(ctx, l, h, nil)
		}
		if err != nil {
			b.Fatal(err)
		}

		h.Free()
		if d := full - (clock() - start); best == 0 || d < best {
			best = d
		}
	}

	return best
}

// The covariance of keys of every block against a forward pass of the same documents.
func BenchmarkStatistics(b *testing.B) {
	m, _, _ := labBench(b, 0)
	ctx := context.Background()

	var docs [][]int32
	for i := range 64 {
		doc := make([]int32, 256)
		for j := range doc {
			doc[j] = int32((i*7919 + j*104729) % m.Config().Vocab)
		}
		docs = append(docs, doc)
	}

	var blocks []int
	for l := range m.Blocks() {
		blocks = append(blocks, l)
	}

	ratio := 0.0
	for range b.N {
		start := clock()
		if _, err := Collect(ctx, m, docs, blocks, nil); err != nil {
			b.Fatal(err)
		}

		took := clock() - start
		start = clock()

		for _, c := range site.Chunks(docs, func(d []int32) int { return len(d) }) {
			if _, err := m.Forward(ctx, docs[c[0]:c[1]], lm.ForwardOptions{NoLoss: true}); err != nil {
				b.Fatal(err)
			}
		}

		ratio = max(ratio, (clock()-start).Seconds()/took.Seconds())
	}

	b.ReportMetric(100*ratio, "%-of-forward")
}
