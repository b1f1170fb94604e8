package benchcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// Show measures a suite and prints its figures.
func Show(j *cli.Job, suite string, o Options) (any, error) {
	switch {
	case o.Budget <= 0:
		return nil, cli.Usagef("--time %s: want more than 0", o.Budget)
	case o.Model != "" && suite != "forward":
		return nil, cli.Usagef("--model: only bench forward runs a model")
	}

	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	if threads := dev.Info().Threads; suite == All && threads > 1 {
		o.Threads = []int{1, threads}
	}

	bar := j.Bars()
	o.Seed, o.Progress = j.Seed, bar.Show
	r, err := Run(j.Ctx, dev, suite, o)
	bar.End()
	if err != nil {
		return nil, err
	}

	j.Table(r.table())
	return r, nil
}

func (r *Report) table() *report.Table {
	t := &report.Table{
		Columns: report.Columns("case", "threads", "ms|%.3f", "± %|%.0f", "CPU ms|%.3f", "GFLOP/s|%.1f", "GB/s|%.1f",
			"of roof %|%.0f", "roof"),
		Note: r.note(),
	}

	sparse := slices.ContainsFunc(r.Cases, func(f Figure) bool { return f.Dense != nil })
	if sparse {
		t.Columns = append(t.Columns, report.Columns("dense ms|%.3f", "times as fast|%.2f", "times as small|%.2f")...)
	}

	for _, f := range r.Cases {
		row := []any{
			f.Name, f.Threads, 1e3 * f.Seconds, 100 * f.noise(), 1e3 * f.CPU, some(f.Rate), some(f.GBs), nil,
			f.Limit,
		}
		if f.Share != nil {
			row[7] = 100 * *f.Share
		}
		if f.Dense != nil {
			row = append(row, 1e3*f.Dense.Seconds, f.Dense.Faster, f.Dense.Smaller)
		}

		t.Add(row...)
	}

	return t
}

// note says what the table's figures stand under.
func (r *Report) note() string {
	lines := []string{r.Machine.Model + ", " + r.Machine.System + ", " + r.Machine.Go}
	for _, roof := range r.Roofs {
		parts := []string{fmt.Sprintf("roof with %d thread(s): %.1f GB/s read", roof.Threads, roof.Read/1e9)}
		for _, p := range roof.Peaks {
			parts = append(parts, fmt.Sprintf("%.0f GFLOP/s %s", p.Flops/1e9, p.Set))
		}
		lines = append(lines, strings.Join(parts, ", "))
	}

	return strings.Join(
		append(lines, "medians, ± half of the middle half; what fits the caches may pass the bandwidth"), "; ")
}

// some is a table's cell for a figure that may not be there.
func some(v float64) any {
	if v == 0 {
		return nil
	}
	return v
}
