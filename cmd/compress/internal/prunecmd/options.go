package prunecmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/safetensors"
)

// Options are the settings of a run, as the command line has them.
type Options struct {
	Out      string // folder to write
	Method   string // what ranks the weights: one of [Methods], or a formula or tree
	Pattern  string // prune.Unstructured, or N:M
	Group    string // weights that are compared with each other; empty: the method's own
	Save     string // form of the output: "dense" or "bitmask"
	Sparsity float64
	PPL      string // data for a perplexity before and after; empty: none
	Masks    string // .safetensors file for the masks; empty: none
	Adapter  string // folder for the low-rank parts of method oats
	// .safetensors file with masks to prune by, instead of Method, Pattern, Group and Sparsity; empty: none
	MasksFrom  string
	Imatrix    string     // importance matrix that stands for calibration; empty: none
	ImatrixOut string     // importance matrix to write; empty: none
	Vocabulary Vocabulary // instead of all that
	Resume     bool       // continue an interrupted run
	Overwrite  bool       // replace an existing Out
	cli.Calibration
	Flags
}

// options turns flags into the library's options. Names that are not known are errors that list the known ones.
func (o *Options) options() (prune.Options, error) {
	metric, err := metricOf(o.Method)
	if err != nil {
		return prune.Options{}, err
	}

	pattern, err := prune.ParsePattern(o.Pattern)
	if err != nil {
		return prune.Options{}, err
	}

	p := prune.Options{Metric: metric, Pattern: pattern, Sparsity: o.Sparsity, Group: prune.Group(o.Group)}
	if o.MasksFrom != "" {
		p = prune.Options{MasksFrom: o.MasksFrom}
	}
	if err := o.Apply(&p); err != nil {
		return p, misread(err)
	}

	if o.Imatrix != "" {
		p.Norms = &prune.Norms{From: o.Imatrix}
	}
	if o.ImatrixOut != "" {
		p.Squares = func(string, prune.Squares) {}
	}

	switch {
	case o.ImatrixOut != "" && !strings.HasSuffix(o.ImatrixOut, ".gguf") && !strings.HasSuffix(o.ImatrixOut, ".dat"):
		return p, cli.Usagef("--imatrix-out %s: want a name that ends in .gguf, or in .dat for the form of before "+
			"2025", o.ImatrixOut)
	case p.SwapDiagonal > 0 && p.Swaps == 0:
		return p, cli.Usagef("--swap-diagonal %g: no swaps to make (HINT: add --swaps N, such as 4)", p.SwapDiagonal)
	case o.Save != "dense" && o.Save != "bitmask":
		return p, cli.Usagef("--save %q; known: dense, bitmask", o.Save)
	case !(o.Sparsity >= 0 && o.Sparsity < 1):
		return p, cli.Usagef("--sparsity %g: want 0 or more and less than 1 (HINT: 0.5 is half of the weights)",
			o.Sparsity)
	}

	if err := o.adapterFaults(p); err != nil {
		return p, err
	}
	if err := o.CheckCalibration(); err != nil {
		return p, err
	}
	if err := p.Validate(); err != nil {
		return p, err
	}
	if o.Imatrix != "" && p.Needs()&prune.SumSquares == 0 {
		return p, cli.Usagef("--imatrix %s has no effect: method %s does not look at the inputs", o.Imatrix,
			p.Metric.Name)
	}
	if o.Calib == "" && p.NeedsCalibration() {
		return p, noData(p)
	}

	return p, nil
}

// metricOf finds or makes a metric.
func metricOf(name string) (prune.Metric, error) {
	const longest = 80
	m, err := prune.MetricByName(name)
	if err != nil && len(name) > longest {
		return m,
			cli.Usagef("%s", strings.ReplaceAll(err.Error(), strconv.Quote(name), strconv.Quote(name[:longest])+"…"))
	}
	return m, misread(err)
}

// misread makes what is wrong with a formula or a file of settings a wrong use, unless a file cannot be read.
func misread(err error) error {
	var unread *fs.PathError
	if err == nil || errors.As(err, &unread) || errors.Is(err, safefile.ErrNotRegular) {
		return err
	}
	return cli.Usage(err)
}

// noData says which of the options asks for calibration data.
func noData(p prune.Options) error {
	bare := p
	bare.Update, bare.Allocation = prune.Update{Name: prune.NoUpdate}, prune.Allocation{}
	bare.Swaps, bare.SwapDiagonal = 0, 0

	if bare.NeedsCalibration() {
		return cli.Usagef("method %s: no calibration data (HINT: give --calib FILE, or use --method magnitude)",
			p.Metric.Name)
	}

	bare.Update = p.Update
	if bare.NeedsCalibration() {
		return cli.Usagef("--update %s: no calibration data (HINT: give --calib FILE)", p.Update.Name)
	}

	bare.Swaps = p.Swaps
	if bare.NeedsCalibration() {
		return cli.Usagef("--swaps %d: no calibration data (HINT: give --calib FILE)", p.Swaps)
	}

	return cli.Usagef("--allocation %s: no calibration data (HINT: give --calib FILE, or use --allocation %s)",
		p.Allocation.Name, prune.Uniform)
}

// checkPlaces looks at everything that the run will write, before the work, and sets the names to what links lead to.
func (o *Options) checkPlaces(j *cli.Job, model string) error {
	masks := cli.Place{
		Flag: "masks", Path: o.Masks, What: "a file of masks of an earlier run", Own: isMasks,
		Inputs: j.Inputs, Seeks: true,
	}
	keep := cli.Place{
		Flag: "save-grads", Path: o.SaveTo, What: "a file of gradients of an earlier run",
		Own: isGradients, Inputs: j.Inputs, Seeks: true,
	}
	importance := cli.Place{
		Flag: "imatrix-out", Path: o.ImatrixOut, What: "an importance matrix", Own: cli.IsImatrix, Inputs: j.Inputs,
		Seeks: true,
	}
	var allow func(dir string) error
	if o.Overwrite {
		allow = stage.Replaceable(model)
	}

	err := errors.Join(
		cli.Apart([2]string{"out", o.Out}, [2]string{"masks", o.Masks}, [2]string{"report", j.ReportTo()},
			[2]string{"save-grads", o.SaveTo}, [2]string{"imatrix-out", o.ImatrixOut}, [2]string{"adapter", o.Adapter}),
		stage.Apart(model, o.Out), o.adapterApart(model))

	var failed [3]error
	o.Masks, failed[0] = masks.Target()
	o.SaveTo, failed[1] = keep.Target()
	o.ImatrixOut, failed[2] = importance.Target()
	if err = errors.Join(err, failed[0], failed[1], failed[2]); err != nil {
		return err
	}

	// with resume alone, what is there may be the finished output of this job, which the library knows
	if !o.Resume || o.Overwrite {
		if err := stage.Vacant(o.Out, allow); err != nil {
			return err
		}
	}

	if _, err := os.Stat(o.Masks); err == nil && !o.Overwrite && !o.Resume {
		return cli.Usagef("--masks %s: output already exists (HINT: choose another name, or pass --overwrite)", o.Masks)
	}

	if _, err := os.Stat(o.ImatrixOut); err == nil && !o.Overwrite && !o.Resume {
		return cli.Usagef("--imatrix-out %s: output already exists (HINT: choose another name, or pass --overwrite)",
			o.ImatrixOut)
	}

	for _, in := range []struct{ flag, path string }{
		{"calib", o.Calib},
		{"grads", o.Gradients},
		{"masks-from", o.MasksFrom},
		{"imatrix", o.Imatrix},
	} {
		if _, err := os.Stat(in.path); in.path != "" && err != nil {
			return fmt.Errorf("--%s: %w", in.flag, err)
		}
	}

	return nil
}

// isMasks tells a file of masks that prune wrote.
func isMasks(path string) bool {
	f, err := safetensors.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return strings.Contains(f.Metadata()["meaning"], "1 = kept")
}

// isGradients tells a file of gradients that prune wrote.
func isGradients(path string) bool {
	f, err := safetensors.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return f.Metadata()["made_from"] != ""
}
