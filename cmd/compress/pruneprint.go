package main

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/prune"
)

// blockSteps is into how many steps of progress a block is divided.
const blockSteps = 1000

// position turns a step of the work into progress. Where activations are measured, running the block before and after
// takes most of the time.
func position(s prune.Step, blocks int64, measured bool) int64 {
	from, to := int64(0), int64(blockSteps)
	switch {
	case s.Stage == prune.Save:
		return blocks * blockSteps
	case s.Stage == prune.Allocate:
		return 0
	case !measured:
	case s.Stage == prune.Statistics:
		to = 450
	case s.Stage == prune.Select:
		from, to = 450, 550
	case s.Stage == prune.Propagate:
		from = 550
	}
	return int64(s.Block)*blockSteps + from + (to-from)*int64(s.Done)/int64(max(s.Of, 1))
}

// print shows the result by role, and what it cost.
func (r *pruneReport) print(j *job) {
	t := &report.Table{Columns: report.Columns("role", "matrices", "weights", "zeros", "zeros %|%.2f")}
	type sum struct{ n, weights, zeros int64 }
	roles := map[string]*sum{}
	var order []string
	for _, m := range r.Tensors {
		s := roles[m.Role]
		if s == nil {
			s = &sum{}
			roles[m.Role], order = s, append(order, m.Role)
		}
		s.n, s.weights, s.zeros = s.n+1, s.weights+m.Zeros+m.Kept, s.zeros+m.Zeros
	}
	for _, role := range order {
		s := roles[role]
		t.Add(role, s.n, s.weights, s.zeros, 100*float64(s.zeros)/float64(s.weights))
	}
	t.Add("all", r.Total.Matrices, r.Total.Weights, r.Total.Zeros, 100*r.Total.Sparsity)
	t.Note = fmt.Sprintf("%s, %s; %.1f %% of all parameters are zero", r.Options.Metric.Name, r.Meaning, 100*r.Total.Overall)
	printTable(j.out(), t)
	if p := r.Perplexity; p != nil {
		t := &report.Table{Columns: report.Columns("perplexity", "before|%.4f", "after|%.4f", "ratio|%.3f", "seqlen", "tokens")}
		t.Add(p.Before.Data.Source, p.Before.Perplexity, p.After.Perplexity, p.After.Perplexity/p.Before.Perplexity, p.After.SeqLen, p.After.Tokens)
		printTable(j.out(), t)
	}
	if r.Packed != nil {
		fmt.Fprintf(j.out(), "packed: %s instead of %s\n", size(r.Packed.BytesOut), size(r.Packed.BytesIn))
	}
	fmt.Fprintf(j.out(), "written to %s in %.1f s\n", r.Out, r.Times.Total)
	for _, n := range r.Notes {
		j.note("%s", n)
	}
}

func list(names []string) string { return strings.Join(names, ", ") }
