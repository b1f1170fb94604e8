package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/bench"
	"github.com/modelcompress/compress/internal/report"
)

func (a *app) benchCmd() *cobra.Command {
	o := bench.Options{}
	cmd := a.newVerb("bench kernels|forward|prune", "Measure this machine: operations, a forward pass, pruning",
		"Times operations, the forward pass and generation of a 21.9M-parameter Llama with drawn weights, or scoring and masking of "+
			"a 4096x4096 matrix, and puts each figure beside the roofline: peak FLOP/s and memory bandwidth, measured in the same run. "+
			"Every figure is the best of its repetitions. On a busy machine trust the shares, not the times.",
		"compress bench kernels --threads 1", cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		func(j *job, args []string) (any, error) { return runBench(j, args[0], o) })
	cmd.ValidArgs = bench.Suites()
	cmd.Flags().DurationVar(&o.Budget, "time", 300*time.Millisecond, "time for each figure")
	cmd.Flags().StringVar(&o.Model, "model", "", "forward: a checkpoint to run instead of the drawn one")
	return cmd
}

func runBench(j *job, suite string, o bench.Options) (any, error) {
	switch {
	case o.Budget <= 0:
		return nil, usagef("--time %s: want more than 0", o.Budget)
	case o.Model != "" && suite != "forward":
		return nil, usagef("--model: only bench forward runs a model")
	}
	dev, err := j.open()
	if err != nil {
		return nil, err
	}
	bar := j.bars()
	o.Seed, o.Progress = j.seed, bar.show
	r, err := bench.Run(j.ctx, dev, suite, o)
	bar.end()
	if err != nil {
		return nil, err
	}
	printTable(j.out(), benchTable(r))
	return r, nil
}

func benchTable(r *bench.Report) *report.Table {
	t := &report.Table{
		Columns: report.Columns("case", "ms|%.3f", "GFLOP/s|%.1f", "of peak %|%.0f", "GB/s|%.1f", "of bandwidth %|%.0f"),
		Note: fmt.Sprintf("roof: %.1f GFLOP/s in F32, %.1f GB/s read, %d thread(s); BF16 dot instructions may pass the F32 peak, data that fits the caches the bandwidth",
			r.PeakFlops/1e9, r.Bandwidth/1e9, r.Threads),
	}
	for _, f := range r.Cases {
		row := []any{f.Name, 1e3 * f.Seconds, nil, nil, f.GBs, 100 * f.OfRead}
		if f.Flops > 0 {
			row[2], row[3] = f.PerSec, 100*f.OfPeak
		}
		t.Add(row...)
	}
	return t
}
