package modelcmd

import (
	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// Diff compares two checkpoints and prints how they differ; all lists equal tensors too.
func Diff(j *cli.Job, a, b string, all bool) (any, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	bar := j.Bars()
	r, err := checkpoint.Diff(j.Ctx, a, b, checkpoint.DiffOptions{All: all, Device: dev, Progress: bar.Show})
	bar.End()
	if err != nil {
		return nil, err
	}

	printDiff(j, r)
	return r, nil
}

func printDiff(j *cli.Job, r *checkpoint.Difference) {
	t := &report.Table{Columns: report.Columns("tensor", "changed %|%.2f", "largest", "relative", "form")}
	for _, d := range r.Tensors {
		row := []any{d.Name, 100 * float64(d.Changed) / float64(max(d.Elements, 1)), nil, nil, d.Form}
		if !d.Compared {
			row[1] = "other shape"
		}
		if d.MaxAbs != nil {
			row[2], row[3] = *d.MaxAbs, *d.Relative
		}

		t.Add(row...)
	}

	if len(t.Rows) > 0 {
		j.Table(t)
	}

	for _, side := range []struct {
		name string
		list []string
	}{{r.A, r.OnlyA}, {r.B, r.OnlyB}} {
		for _, name := range side.list {
			j.Printf("only in %s: %s\n", side.name, cli.Printable(name))
		}
	}

	j.Printf("%d of %d tensors are equal\n", r.Same, r.Same+len(r.OnlyA)+len(r.OnlyB)+differing(r.Tensors))
}

func differing(list []checkpoint.TensorDiff) (n int) {
	for i := range list {
		if !list[i].Same() {
			n++
		}
	}
	return n
}
