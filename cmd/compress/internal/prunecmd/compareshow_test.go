package prunecmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/modelcompress/compress/prune"
)

// sampleRuns has runs of three targets, two of which have a line to draw.
func sampleRuns() *prune.Comparison {
	run := func(target, method string, ppl, sparsity float64, windows int) prune.Outcome {
		return prune.Outcome{
			Method: method, Target: target, Sparsity: sparsity,
			HeldOut: prune.HeldOut{Perplexity: ppl, Windows: make([]float64, windows)},
		}
	}

	return &prune.Comparison{
		Model: "m", Dense: prune.HeldOut{Perplexity: 2, Windows: make([]float64, 3)},
		Runs: []prune.Outcome{
			run("0.5", "a", 3, .5, 3), run("0.5", "b", 4, .5, 3), run("0.5", "c", 3, .5, 3),
			run("2:4", "a", 90, .5, 1), run("2:4", "b", 95, .5, 1),
			run("0.3", "a", 30, .3, 3),
		},
	}
}

// TestShow: a row for every run, a line for every method over its sparsities, bars for a pattern.
func TestShow(t *testing.T) {
	r := sampleRuns()
	r.Runs[1].Versus, r.Runs[1].Interval = &prune.Versus{Best: "a", Difference: .3, Adjusted: .04}, &[2]float64{.1, .5}
	rows := table(r).Rows
	if len(rows) != 7 || rows[1][6] != "best" || rows[2][6] != .3 || rows[2][7] != "0.1000 to 0.5000" ||
		rows[2][8] != "0.0400" || rows[5][6] != "n/a" {
		t.Errorf("%v", rows)
	}

	all := charts(r)
	if len(all) != 2 || !all[0].Y.Log || cmp.Diff(all[0].Series[0].X, []float64{0, 30, 50}) != "" ||
		len(all[1].Labels) != 2 {
		t.Errorf("%+v", all)
	}

	r.Impossible = []prune.Impossible{
		{Method: "d", Target: "8:9", Reason: "too much of block 3"}, {Method: "e", Target: "0.5", Reason: "no"},
	}
	with := table(r)
	if len(with.Rows) != 9 || with.Rows[4][1] != "e" || with.Rows[8][6] != "impossible" || !strings.HasSuffix(with.Note,
		"; 8:9, d: impossible: too much of block 3; 0.5, e: impossible: no") {
		t.Errorf("impossible: %v, %q", with.Rows, with.Note)
	}
	if drawn := charts(r); len(drawn) != 2 {
		t.Errorf("%d charts", len(drawn))
	}

	var b bytes.Buffer
	if err := page(r, nil).HTML(&b); err != nil || !strings.Contains(b.String(), "Perplexity against sparsity") {
		t.Error(err)
	}
}
