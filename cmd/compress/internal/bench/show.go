package bench

import (
	"fmt"

	"github.com/modelcompress/compress/cmd/compress/internal/shell"
	"github.com/modelcompress/compress/internal/report"
)

// Show measures a suite and prints its figures.
func Show(j *shell.Job, suite string, o Options) (any, error) {
	switch {
	case o.Budget <= 0:
		return nil, shell.Usagef("--time %s: want more than 0", o.Budget)
	case o.Model != "" && suite != "forward":
		return nil, shell.Usagef("--model: only bench forward runs a model")
	}
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}
	bar := j.Bars()
	o.Seed, o.Progress = j.Seed, bar.Show
	r, err := Run(j.Ctx, dev, suite, o)
	bar.End()
	if err != nil {
		return nil, err
	}
	j.Table(benchTable(r))
	return r, nil
}

func benchTable(r *Report) *report.Table {
	t := &report.Table{
		Columns: report.Columns("case", "ms|%.3f", "GFLOP/s|%.1f", "of peak %|%.0f", "GB/s|%.1f", "of bandwidth %|%.0f"),
		Note: fmt.Sprintf("roof: %.1f GFLOP/s in F32, %.1f GB/s read, %d thread(s); BF16 dot instructions may pass the F32 peak, data that fits the caches the bandwidth",
			r.PeakFlops/1e9, r.Bandwidth/1e9, r.Threads),
	}
	sparse := len(r.Cases) > 0 && r.Cases[0].Dense != nil
	if sparse {
		t.Columns = append(t.Columns, report.Columns("dense ms|%.3f", "times as fast|%.2f", "times as small|%.2f")...)
		t.Note += "; packed and dense weights run in turn"
	}
	for _, f := range r.Cases {
		row := []any{f.Name, 1e3 * f.Seconds, nil, nil, f.GBs, 100 * f.OfRead}
		if f.Flops > 0 {
			row[2], row[3] = f.PerSec, 100*f.OfPeak
		}
		if sparse {
			row = append(row, 1e3*f.Dense.Seconds, f.Dense.Faster, f.Dense.Smaller)
		}
		t.Add(row...)
	}
	return t
}
