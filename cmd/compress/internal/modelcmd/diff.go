package modelcmd

import (
	"fmt"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
)

// Diff compares two checkpoints and prints how they differ; all lists equal tensors too, and tensors prints a line for
// each.
func Diff(j *cli.Job, a, b string, all, tensors bool) (any, error) {
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

	printDiff(j, r, tensors || all)
	return r, nil
}

func printDiff(j *cli.Job, r *checkpoint.Difference, all bool) {
	if len(r.Tensors) > 0 {
		j.Table(diffTable(r.Tensors, all))
	}

	for _, side := range []struct {
		name string
		list []string
	}{{r.A, r.OnlyA}, {r.B, r.OnlyB}} {
		for _, name := range side.list {
			j.Printf("only in %s: %s\n", side.name, cli.Printable(name))
		}
	}

	if text := summary(r.Tensors); text != "" {
		j.Printf("%s\n", text)
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

// changed is how many values of how many in tensors of one shape differ, and the largest difference and where it is.
func changed(list []checkpoint.TensorDiff) (values, of int64, largest float64, at string, relative float64) {
	for i := range list {
		d := &list[i]
		if !d.Compared {
			continue
		}
		values += d.Changed
		of += d.Elements
		if d.MaxAbs != nil && *d.MaxAbs > largest {
			largest, at = *d.MaxAbs, d.Name
		}
		if d.Relative != nil {
			relative = max(relative, *d.Relative)
		}
	}
	return values, of, largest, at, relative
}

// summary says in a line how much differs.
func summary(list []checkpoint.TensorDiff) string {
	n := differing(list)
	values, of, largest, at, _ := changed(list)
	if n == 0 || values == 0 {
		return ""
	}
	text := fmt.Sprintf("%d tensors differ, in %.2f %% of the %s values compared", n, 100*float64(values)/float64(of),
		cli.Thousands(of))
	if at != "" {
		text += fmt.Sprintf("; the largest difference is %.4g, in %s", largest, cli.Printable(at))
	}
	return text
}

// diffTable shows how tensors differ, those of a kind on one line unless all are asked for.
func diffTable(list []checkpoint.TensorDiff, all bool) *report.Table {
	groups, ok := cli.Grouped(list, all, func(d checkpoint.TensorDiff) string { return d.Name },
		func(d checkpoint.TensorDiff) string { return fmt.Sprint(d.Compared, d.Form) })
	if !ok {
		t := &report.Table{Columns: report.Columns("tensor", "changed %|%.2f", "largest", "relative", "form")}
		for i := range list {
			t.Add(diffRow(list[i:i+1], list[i].Name)...)
		}
		return t
	}

	t := &report.Table{
		Columns: report.Columns("tensors", "layers", "number", "changed %|%.2f", "largest", "relative up to", "form"),
		Note:    cli.OnePerKind,
	}
	for _, g := range groups {
		t.Add(diffRow(g.Items, g.Kind, g.Where, len(g.Items))...)
	}
	return t
}

// diffRow is a line for tensors that differ in one way.
func diffRow(list []checkpoint.TensorDiff, begin ...any) []any {
	values, of, largest, _, relative := changed(list)
	row := append(begin, 100*float64(values)/float64(max(of, 1)), nil, nil, list[0].Form)
	last := len(begin)
	if !list[0].Compared {
		row[last] = "other shape"
	}
	for _, d := range list {
		if d.MaxAbs != nil {
			row[last+1], row[last+2] = largest, relative
		}
	}
	return row
}
