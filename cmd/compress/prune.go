package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/tuning"
	"github.com/modelcompress/compress/prune"
)

type pruneFlags struct {
	out, method, pattern, group, save string
	sparsity                          float64
	calib, ppl, masks                 string
	samples, seqlen                   int
	join, resume, overwrite           bool
	tuning.Flags
}

const pruneExample = `compress prune testdata/nano/base --calib testdata/nano/text/calib.txt --samples 32 \
    --seqlen 256 --sparsity 0.5 --ppl testdata/nano/text/test.txt --out pruned
compress prune MODEL --method pruner-zero --pattern 2:4 --update sparsegpt --calib FILE --out DIR
compress prune MODEL --method 'expr:W * sqrt(X) / Wr2' --sparsity 0.6 --allocation owl --calib FILE --out DIR
compress prune MODEL --method ria --pattern 4:8 --permutation assignment --calib FILE --out DIR
compress prune compare MODEL --methods magnitude,wanda,sparsegpt --patterns 0.5,0.6,2:4 --calib FILE --ppl FILE --out DIR`

func (a *app) pruneCmd() *cobra.Command {
	var o pruneFlags
	var cmd *cobra.Command
	cmd = a.newVerb("prune MODEL --out DIR", "Remove weights of a model and write it again",
		"Zeroes weights of every matrix of every block, in the checkpoint's own layout, names and types. magnitude needs no data and "+
			"no more than 1 GiB of memory; the other methods run calibration text through the model, one block in memory at a time, gblm "+
			"and pruner-zero backwards too. expr:FORMULA ranks by a formula of your own: W is |weight|, X the mean square of an input, "+
			"G the gradient, Xm, Xv, H, Hi, Wr1, Wr2, Wc1 and Wc2 statistics; + - * /, sqrt, log, mms and other functions; tree:FILE.json "+
			"reads a tree of Pruner-Zero's form. Any method goes with any pattern, group, allocation and update. N:M prunes N "+
			"of every M inputs. An interrupted run is continued by the same command with --resume, to the same bytes.",
		pruneExample, cobra.ExactArgs(1),
		func(j *job, args []string) (any, error) {
			if !cmd.Flags().Changed("sparsity") && o.pattern != prune.Unstructured {
				o.sparsity = 0 // the pattern says it
			}
			return pruneModel(j, args[0], o)
		})
	f := cmd.Flags()
	f.StringVar(&o.out, "out", "", "folder to write; it appears when it is complete")
	f.StringVar(&o.method, "method", "wanda", "what ranks the weights: "+list(tuning.Methods()))
	f.Float64Var(&o.sparsity, "sparsity", 0.5, "share of the weights to remove, from 0 to less than 1")
	f.StringVar(&o.pattern, "pattern", prune.Unstructured, "unstructured, or N:M such as 2:4")
	f.StringVar(&o.group, "group", "", "weights that are compared with each other: "+list(tuning.Groups)+"; empty is the method's own")
	o.Add(f)
	f.StringVar(&o.calib, "calib", "", "calibration data: text, JSONL or token ids")
	f.IntVar(&o.samples, "samples", 128, "calibration windows to draw")
	f.IntVar(&o.seqlen, "seqlen", 0, "tokens of a window, also for --ppl; 0 is 2048, or the model's positions if they are fewer")
	f.BoolVar(&o.join, "join", false, "take the records of a JSONL file as one text")
	f.StringVar(&o.save, "save", "dense", "form of the output: dense (zeros stay where they are) or bitmask")
	f.StringVar(&o.ppl, "ppl", "", "measure the perplexity on this file before and after")
	f.StringVar(&o.masks, "masks", "", "also write the masks to this .safetensors file (U8, 1 = kept)")
	f.BoolVar(&o.resume, "resume", false, "continue an interrupted run")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace an existing --out")
	require(cmd, "out")
	cmd.AddCommand(a.pruneCompareCmd())
	for flag, words := range map[string][]string{
		"method": tuning.Methods(), "pattern": {prune.Unstructured, "2:4", "4:8"}, "group": tuning.Groups, "allocation": tuning.Allocations,
		"update": tuning.Updates, "permutation": tuning.Permutations, "alpha-estimator": tuning.Estimators, "save": {"dense", "bitmask"},
	} {
		complete(cmd, flag, words...)
	}
	return cmd
}

// options turns flags into the library's options. Names that are not known are errors that list the known ones.
func (o *pruneFlags) options() (prune.Options, error) {
	metric, err := metricOf(o.method)
	if err != nil {
		return prune.Options{}, err
	}
	pattern, err := prune.ParsePattern(o.pattern)
	if err != nil {
		return prune.Options{}, err
	}
	p := prune.Options{Metric: metric, Pattern: pattern, Sparsity: o.sparsity, Group: prune.Group(o.group)}
	if err := o.Apply(&p); err != nil {
		return p, misread(err)
	}
	switch {
	case o.save != "dense" && o.save != "bitmask":
		return p, usagef("--save %q; known: dense, bitmask", o.save)
	case !(o.sparsity >= 0 && o.sparsity < 1):
		return p, usagef("--sparsity %g: want 0 or more and less than 1", o.sparsity)
	case o.samples < 1:
		return p, usagef("--samples %d: want 1 or more", o.samples)
	case o.seqlen < 0 || o.seqlen == 1:
		return p, usagef("--seqlen %d: want 2 or more, or 0 for the default", o.seqlen)
	}
	if err := p.Validate(); err != nil {
		return p, err
	}
	if o.calib == "" && tuning.NeedsData(p) {
		return p, noData(p)
	}
	return p, nil
}

// metricOf finds or makes a metric.
func metricOf(name string) (prune.Metric, error) {
	const longest = 80
	m, err := prune.MetricByName(name)
	if err != nil && len(name) > longest {
		return m, usagef("%s", strings.ReplaceAll(err.Error(), strconv.Quote(name), strconv.Quote(name[:longest])+"…"))
	}
	return m, misread(err)
}

// misread makes what is wrong with a formula or a file of settings a wrong use, unless a file cannot be read.
func misread(err error) error {
	var unread *fs.PathError
	if err == nil || errors.As(err, &unread) {
		return err
	}
	return usageError{err}
}

// noData says which of the options asks for calibration data.
func noData(p prune.Options) error {
	bare := p
	bare.Update, bare.Allocation = prune.Update{Name: prune.NoUpdate}, prune.Allocation{}
	if tuning.NeedsData(bare) {
		return usagef("method %s: no calibration data (HINT: give --calib FILE, or use --method magnitude)", p.Metric.Name)
	}
	bare.Update = p.Update
	if tuning.NeedsData(bare) {
		return usagef("--update %s: no calibration data (HINT: give --calib FILE)", p.Update.Name)
	}
	return usagef("--allocation %s: no calibration data (HINT: give --calib FILE, or use --allocation %s)", p.Allocation.Name, prune.Uniform)
}

// checkPlaces looks at everything that the run will write, before the work.
func (o *pruneFlags) checkPlaces(j *job, model string) error {
	masks := place{flag: "masks", path: o.masks, what: "a file of masks of an earlier run", own: isMasks, inputs: j.inputs}
	var allow func(dir string) error
	if o.overwrite {
		allow = checkpoint.Replaceable(model)
	}
	err := errors.Join(
		apart([2]string{"out", o.out}, [2]string{"masks", o.masks}, [2]string{"report", j.report}), masks.check(), checkpoint.Apart(model, o.out))
	if err != nil {
		return err
	}
	if !o.resume || o.overwrite { // with resume alone, what is there may be the finished output of this job, which the library knows
		if err := checkpoint.Vacant(o.out, allow); err != nil {
			return err
		}
	}
	if _, err := os.Stat(o.masks); err == nil && !o.overwrite && !o.resume {
		return usagef("--masks %s: output already exists (HINT: choose another name, or pass --overwrite)", o.masks)
	}
	for flag, path := range map[string]string{"calib": o.calib, "grads": o.Gradients} {
		if _, err := os.Stat(path); path != "" && err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return nil
}
