package benchcmd

import (
	"context"
	"path/filepath"

	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/prune/fitness"
)

// trees are formulas from plain to dear.
var trees = []string{"W*sqrt(X)", "abs(W*W)*mms(G)", "log(W*G) + zsn(W)*sqrt(X)", "exp(mms(W)) - tanh(-mms(G))"}

// searchCases score a matrix by formulas, and judge a formula on the program's small model as a search does.
func searchCases(ctx context.Context, dev kernels.Device, b *bed, _ Options) ([]timed, error) {
	cases, err := treeCases(dev)
	if err != nil {
		return nil, err
	}
	judged, err := judgeCases(ctx, dev, b)
	return append(cases, judged...), err
}

// treeCases write the scores of a matrix. Every pass reads W, and G where the formula has it; the last one writes.
func treeCases(dev kernels.Device) (cases []timed, err error) {
	const n = 4096
	if !dev.Info().Host {
		return nil, nil
	}

	b := newMats(dev)
	in := gp.Inputs{W: b.mat(kernels.F32, n, n), G: b.mat(kernels.F32, n, n), X: make([]float32, n)}
	dst := b.zero(kernels.F32, n, n)
	if b.err != nil {
		return nil, b.err
	}

	for i := range in.X {
		in.X[i] = float32(1 + i%7)
	}

	for _, text := range trees {
		e, err := gp.Parse(text)
		if err != nil {
			return nil, err
		}

		p, err := gp.Compile(e)
		if err != nil {
			return nil, err
		}

		matrices := 1.0
		if text != trees[0] {
			matrices = 2
		}

		cases = append(cases, timed{
			name: "scores " + text, bytes: 4 * n * n * (matrices*float64(p.Passes) + 1),
			run: func() error { return p.Eval(dst, in, gp.Exec{Threads: dev.Info().Threads}) },
		})
	}

	return cases, nil
}

// judgeCases measure a formula on the rungs of a search.
func judgeCases(ctx context.Context, dev kernels.Device, b *bed) (cases []timed, err error) {
	m, tok, err := b.small(ctx, dev)
	if err != nil {
		return nil, err
	}

	dir := m.Path()
	cut := func(name string, limit int) corpus.Windows {
		w, e := corpus.Cut(ctx, filepath.Join(filepath.Dir(dir), "text", name), tok,
			corpus.CutOptions{SeqLen: 128, Limit: limit})
		if err == nil {
			err = e
		}
		return w
	}

	subject := fitness.Subject{
		Name: "nano", Calib: cut("calib.txt", 16), Search: cut("valid.txt", 16), Select: cut("test.txt", 8),
		Test: cut("test.txt", 8),
		Open: func(ctx context.Context) (*lm.Model, error) { return lm.Load(ctx, dir, dev, lm.Options{}) },
	}

	if err != nil {
		return nil, err
	}

	j, err := fitness.NewJudge(ctx, []fitness.Subject{subject}, fitness.Options{Windows: 4})
	if err != nil {
		return nil, err
	}

	b.later(func() { j.Close() })

	for _, rung := range []fitness.Rung{fitness.Layers, fitness.Few, fitness.Full} {
		cases = append(cases, timed{name: "candidate, rung " + string(rung), run: func() error {
			_, err := j.Measure(ctx, fitness.Task{Judge: j.ID(), Rung: rung, Metric: "expr:" + trees[1]})
			return err
		}})
	}

	return cases, nil
}
