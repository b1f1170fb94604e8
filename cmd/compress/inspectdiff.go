package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/terminal"
	"github.com/modelcompress/compress/internal/report"
)

func (a *app) inspectDiffCmd() *cobra.Command {
	all := false
	cmd := a.newVerb("diff A B", "Compare two checkpoints tensor by tensor",
		"Compares names, types, shapes and values of two folders or .safetensors files. Values are compared as numbers, so that "+
			"a BF16 and an F32 copy of a model can be told apart by how far they differ. Tensors that are equal are only counted, "+
			"unless --all is given.",
		"compress inspect diff testdata/nano/base testdata/nano/sums", cobra.ExactArgs(2),
		func(j *job, args []string) (any, error) {
			dev, err := j.open()
			if err != nil {
				return nil, err
			}
			bar := j.bars()
			r, err := checkpoint.Compare(j.ctx, args[0], args[1], all, checkpoint.Env{Device: dev, Progress: bar.show})
			bar.end()
			if err != nil {
				return nil, err
			}
			printDiff(j, r)
			return r, nil
		})
	cmd.Flags().BoolVar(&all, "all", false, "list equal tensors too")
	return cmd
}

func printDiff(j *job, r *checkpoint.Diff) {
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
		printTable(j.out(), t)
	}
	for _, side := range []struct {
		name string
		list []string
	}{{r.A, r.OnlyA}, {r.B, r.OnlyB}} {
		for _, name := range side.list {
			fmt.Fprintf(j.out(), "only in %s: %s\n", side.name, terminal.Printable(name))
		}
	}
	fmt.Fprintf(j.out(), "%d of %d tensors are equal\n", r.Same, r.Same+len(r.OnlyA)+differing(r.Tensors))
}

func differing(list []checkpoint.TensorDiff) (n int) {
	for i := range list {
		if !list[i].Same() {
			n++
		}
	}
	return n
}
