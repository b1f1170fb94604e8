package mergecmd

import (
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/merge"
)

// MixtureResult is the report of a mixture with what only this run knows.
type MixtureResult struct {
	*merge.MixtureReport
	Out     string  `json:"out"`
	Seconds float64 `json:"merge_seconds"`
}

// mix makes a mixture of experts.
func mix(j *cli.Job, m merge.Recipe, o Options, common merge.Options) (any, error) {
	if o.Truncate || o.NonFinite || o.Missing != "error" {
		return nil, cli.Usagef("--truncate-embeddings, --allow-nonfinite and --missing are not for mixtures of experts")
	}

	opts := merge.MixtureOptions{
		Threads: common.Threads, Memory: common.Memory, Seed: common.Seed, DType: common.DType,
		MaxShard: common.MaxShard, Layout: o.Layout, AllowSame: o.AllowSame,
		Overwrite: o.Overwrite, Resume: o.Resume,
	}

	if o.DryRun {
		result, err := merge.CheckMixture(j.Ctx, m, opts)
		if err != nil {
			return nil, j.Excerpted(err)
		}
		showMixture(j, result, "nothing was written")
		return result, nil
	}

	if m.NeedsDevice() {
		dev, err := j.Device()
		if err != nil {
			return nil, err
		}
		opts.Device = dev
	}

	bar := j.ByteBars()
	opts.Progress = func(p merge.Progress) { bar.Show("writing", p.Done, p.Total) }
	result, err := merge.Mix(j.Ctx, m, o.Out, opts)
	bar.End()
	if err != nil {
		return nil, j.Excerpted(err)
	}

	showMixture(j, result, "in "+o.Out)
	return MixtureResult{result, o.Out, result.Seconds}, nil
}

// showMixture prints what a mixture is.
func showMixture(j *cli.Job, r *merge.MixtureReport, note string) {
	warn(j, r.Warnings)
	t := &report.Table{Columns: report.Columns("", ""), Note: note}
	t.Add("kind", r.Kind)
	t.Add("models", strings.Join(r.Models, ", "))
	t.Add("gates", r.Gate)
	t.Add("tensors", cli.Thousands(int64(r.Tensors)))
	t.Add("parameters", cli.Thousands(r.Parameters))
	t.Add("written", cli.Size(r.BytesOut))
	j.Table(t)
}
