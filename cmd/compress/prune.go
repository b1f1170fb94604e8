package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/prunecmd"
	"github.com/modelcompress/compress/prune"
)

const pruneExample = `compress prune testdata/nano/base --calib testdata/nano/text/calib.txt --samples 32 \
    --seqlen 256 --sparsity 0.5 --ppl testdata/nano/text/test.txt --out pruned
compress prune MODEL --method pruner-zero --pattern 2:4 --update sparsegpt --calib FILE --out DIR
compress prune MODEL --method 'expr:pdiv(W, Wr2) * sqrt(X)' --sparsity 0.6 --allocation owl --calib FILE --out DIR
compress prune MODEL --method ria --pattern 4:8 --permutation assignment --calib FILE --out DIR
compress prune compare MODEL --methods magnitude,wanda,sparsegpt --patterns 0.5,0.6,2:4 --calib FILE --ppl FILE --out DIR`

func pruneCmd(a *cli.App) *cobra.Command {
	var o prunecmd.Options
	var cmd *cobra.Command
	cmd = a.Verb(cli.Verb{
		Use: "prune MODEL --out DIR", Short: "Remove weights of a model and write it again",
		Long: "Zeroes weights of every matrix of every block, in the checkpoint's own layout, names and types. " +
			"magnitude needs no data and no more than 1 GiB of memory; the other methods run calibration text " +
			"through the model, one block in memory at a time, gblm and pruner-zero backwards too. expr:FORMULA " +
			"ranks by a formula of your own: W is |weight|, X the mean square of an input, G the gradient, Xm, Xv, " +
			"H, Hi, Wr1, Wr2, Wc1 and Wc2 statistics; + - *, sqrt, log, mms and other functions; a / b is the " +
			"published code's, a by the Frobenius norm of b, while pdiv(a, b) divides element by element, and rnorm " +
			"and cnorm by sums of rows and columns. A matrix without gradients is ranked by |weight|, one of zeros " +
			"loses nothing more; both are counted. tree:FILE.json reads a tree of Pruner-Zero's form. Any method " +
			"goes with any pattern, group, allocation and update. N:M prunes N of every M inputs. An interrupted " +
			"run is continued by the same command with --resume, to the same bytes.",
		Example: pruneExample,
		Args:    cobra.ExactArgs(1),
		Resumes: true,
		Check: func(*cli.Job, []string) error {
			if err := masksAlone(cmd, o.MasksFrom); err != nil {
				return err
			}
			return prunecmd.Check(o)
		},
		Run: func(j *cli.Job, args []string) (any, error) {
			if err := masksAlone(cmd, o.MasksFrom); err != nil {
				return nil, err
			}
			if !cmd.Flags().Changed("sparsity") && o.Pattern != prune.Unstructured {
				o.Sparsity = 0 // the pattern says it
			}
			return prunecmd.Model(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "", "folder to write; it appears when it is complete")
	f.StringVar(&o.Method, "method", "wanda",
		"method; what ranks the weights, "+strings.Join(prunecmd.Methods(), ", "))
	f.Float64Var(&o.Sparsity, "sparsity", 0.5, "share of the weights to remove; from 0 to less than 1")
	f.StringVar(&o.Pattern, "pattern", prune.Unstructured, "pattern; unstructured, or N:M such as 2:4")
	f.StringVar(&o.Group, "group", "",
		"weights that are compared with each other; "+strings.Join(prunecmd.Groups,
			", ")+", empty is the method's own")
	o.Add(f)
	o.AddKeep(f)
	f.StringVar(&o.Calib, "calib", "", "calibration data; text, JSONL or token ids")
	f.IntVar(&o.Samples, "samples", 128, "calibration windows to draw")
	f.IntVar(&o.SeqLen, "seqlen", 0, "tokens of a window; also for --ppl, 0 is 2048, or the model's positions if "+
		"they are fewer")
	f.BoolVar(&o.Join, "join", false, "take the records of a JSONL file as one text")
	f.StringVar(&o.Save, "save", "dense", "form of pruned matrices; dense (zeros stay where they are) or bitmask")
	f.StringVar(&o.PPL, "ppl", "", "file to measure the perplexity on; before and after")
	f.StringVar(&o.MasksFrom, "masks-from", "", "prune with the masks of this .safetensors file or folder, as "+
		"--masks writes them, instead of a method's; --update sparsegpt and admm then make up for what goes, and "+
		"alone need --calib")
	f.StringVar(&o.Masks, "masks", "", "also write the masks to this .safetensors file (U8, 1 = kept)")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	cli.Require(cmd, "out")
	cmd.AddCommand(pruneCompareCmd(a))
	completeTuning(cmd)
	cli.Complete(cmd, "method", prunecmd.Methods()...)
	cli.Complete(cmd, "pattern", prune.Unstructured, "2:4", "4:8")
	cli.OneOf(cmd, "save", "dense", "bitmask")
	cli.Inputs(cmd, "calib", "ppl", "grads", "overrides", "masks-from")
	cli.MayBeEmpty(cmd, "group")

	return cmd
}

// masksAlone refuses flags that choose what goes beside a file that says it.
func masksAlone(cmd *cobra.Command, file string) error {
	if file == "" {
		return nil
	}

	for _, flag := range []string{
		"method", "sparsity", "pattern", "group", "allocation", "permutation", "overrides", "grads", "grads-exact",
		"save-grads",
	} {
		if cmd.Flags().Changed(flag) {
			return cli.Usagef("--masks-from %s with --%s: the masks say which weights go (HINT: leave --%s out)", file,
				flag, flag)
		}
	}

	return nil
}

// completeTuning completes the flags of prune and prune compare.
func completeTuning(cmd *cobra.Command) {
	for flag, words := range map[string][]string{
		"group": prunecmd.Groups, "allocation": prunecmd.Allocations, "update": prunecmd.Updates,
		"permutation":     prunecmd.Permutations,
		"alpha-estimator": prunecmd.Estimators, "sequential": prunecmd.Sequences,
	} {
		cli.Complete(cmd, flag, words...)
	}
}
