package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/safetensors"
)

type convertFlags struct {
	out, dtype, save, shard string
	overwrite               bool
}

func convertCmd(a *cli.App) *cobra.Command {
	var o convertFlags
	cmd := a.Verb(cli.Verb{
		Use:   "convert SRC --out DIR",
		Short: "Change the element type, the files or the packing of a checkpoint",
		Long: "Writes a copy of a checkpoint with another element type, in files of another size, or with its " +
			"pruned matrices packed: a bitmask and the values that are not zero, in the layout that " +
			"compressed-tensors 0.9 to 0.14 reads. --save dense unpacks again. Of a quantised folder or a .gguf " +
			"file it makes a folder of floating-point numbers.\n\n" +
			"Values are rounded to nearest even; a value too large for the new type is an error. Memory stays " +
			"below 1 GiB, whatever the size of the model.",
		Example: "compress convert pruned --save bitmask --out packed\n" +
			"compress convert packed --dtype bf16 --max-shard-size 2GB --out dense\n" +
			"compress convert model.gguf --dtype bf16 --out model",
		Habit: []string{"out"},
		Args:  cobra.ExactArgs(1),
		Check: func(*cli.Job, []string) error {
			_, err := cli.ShardLimit(o.shard)
			return err
		},
		Run: func(j *cli.Job, args []string) (any, error) { return convert(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.out, "out", "", "`DIR` folder for the result; it appears when it is complete")
	f.StringVar(&o.dtype, "dtype", "keep",
		"`TYPE` element type of the result: keep, f32, bf16 or f16 (default: keep, as in the source)")
	f.StringVar(&o.save, "save", "dense", "`FORM` how pruned matrices are stored: dense or bitmask (packed)")
	f.StringVar(&o.shard, "max-shard-size", "keep",
		"`SIZE` largest file, such as 2GB or 500MiB, or none for a single file (default: keep, the files of "+
			"the source)")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace what is in --out")
	cli.Require(cmd, "out")
	cli.Complete(cmd, "max-shard-size", "keep", "none", "500MB", "2GB", "5GB")
	cli.OneDType(cmd, "dtype", "keep")
	cli.OneOf(cmd, "save", "dense", "bitmask")

	return cmd
}

func convert(j *cli.Job, path string, o convertFlags) (any, error) {
	limit, err := cli.ShardLimit(o.shard)
	if err != nil {
		return nil, err
	}

	to := safetensors.DType(0)
	if o.dtype != "keep" {
		if to, err = cli.DType("dtype", o.dtype); err != nil {
			return nil, cli.Usagef("%w, keep", err)
		}
	}

	if o.save != "dense" && o.save != "bitmask" {
		return nil, cli.Usagef("--save %q; known: dense, bitmask", o.save)
	}

	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	bar := j.Bars()
	r, err := checkpoint.Convert(j.Ctx, path, o.out, checkpoint.ConvertOptions{
		DType: to, Pack: o.save == "bitmask", MaxShard: limit, Overwrite: o.overwrite,
		Device: dev, Progress: bar.Show,
	})
	bar.End()
	if err != nil {
		return nil, err
	}

	if err := j.WriteCard(r.Out, path, convertCard(path, r)); err != nil {
		return nil, err
	}
	if r.NonFinite > 0 {
		j.Remark("%d NaN or infinite values in %d of the tensors that were cast, the first: %s; they are in the "+
			"source, and in the output too", r.NonFinite, len(r.NonFiniteIn), r.NonFiniteIn[0])
	}

	t := &report.Table{Columns: report.Columns("", "bytes", "tensors", "shards")}
	t.Add("source", cli.Size(r.BytesIn), nil, nil)
	t.Add("output", cli.Size(r.BytesOut), r.Tensors, r.Shards)
	t.Note = fmt.Sprintf("%d cast, %d packed, %d unpacked; in %s", r.Cast, r.Packed, r.Unpacked, r.Out)
	j.Table(t)

	return r, nil
}

// convertCard is what the README.md of a converted checkpoint says.
func convertCard(base string, r *checkpoint.Conversion) card.Card {
	return card.Card{
		Base: []string{base}, Library: card.Transformers, Tags: []string{"compress"}, Title: "Converted model",
		Text: fmt.Sprintf("A checkpoint in another form, made with compress: of %d tensors %d were cast, %d "+
			"packed and %d "+
			"unpacked.", r.Tensors, r.Cast, r.Packed, r.Unpacked),
		Figures: []card.Row{{Name: "weights", Values: []string{cli.Size(r.BytesIn), cli.Size(r.BytesOut)}}},
		Before:  true,
	}
}
