package prunecmd

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/stage"
)

// allow is the rule for an existing output; nil: none is replaced.
func (p *pruning) allow() func(dir string) error {
	if !p.flags.Overwrite {
		return nil
	}
	return stage.Replaceable(p.model.Path())
}

// remarks notes in the report what was not as one may think.
func (p *pruning) remarks(r *Report) error {
	if p.flags.Calib != "" && !p.opts.NeedsCalibration() {
		who := cmp.Or(p.opts.Metric.Name, "--masks-from")
		if p.opts.Norms != nil {
			who = "--imatrix stands for it, and " + who
		}
		r.Notes = append(r.Notes, fmt.Sprintf("--calib %s was not used: %s measures nothing", p.flags.Calib, who))
	}

	if text := cli.Beyond(p.model, p.calib.SeqLen); text != "" {
		r.Notes = append(r.Notes, text)
	}

	if bad := p.opts.Out.Damaged(); len(bad) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d matrices of the interrupted run no longer had the bytes that it "+
			"wrote and were pruned again; the first is %q", len(bad), bad[0]))
	}

	if left := stage.NotCopied(p.model.Path(), p.dense); len(left) > 0 {
		r.Notes = append(r.Notes,
			fmt.Sprintf("%d files beside the weights were not copied: %s", len(left), strings.Join(left, ", ")))
	}

	pruned := map[string]bool{}
	for i := range r.Tensors {
		pruned[r.Tensors[i].Name] = true
	}

	bad, err := checkpoint.NonFinite(p.job.Ctx, p.model.Source(), pruned, p.model.Device())
	if err != nil {
		return err
	}

	r.NonFinite = bad

	if len(bad) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d tensors that are not pruned hold NaN or infinities and were "+
			"copied as they are; the first is tensor %q, element %s",
			len(bad), bad[0].Tensor, bad[0].Element))
	}

	return nil
}

// pack turns the hidden dense folder into the packed output.
func (p *pruning) pack() (*checkpoint.Conversion, error) {
	bar := p.job.Bars()
	defer bar.End()

	r, err := checkpoint.Convert(p.job.Ctx, p.dense, p.flags.Out, checkpoint.ConvertOptions{
		Pack: true, MaxShard: checkpoint.KeepShards, Overwrite: p.flags.Overwrite,
		Device: p.model.Device(), Progress: bar.Show,
	})
	if err != nil {
		return nil, err
	}

	r.Source = p.model.Path()
	return r, os.RemoveAll(p.dense)
}
