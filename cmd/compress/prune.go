package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/prunecmd"
	"github.com/modelcompress/compress/cmd/compress/internal/structurecmd"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/structure"
)

const pruneExample = `compress prune ./my-model --calib calib.txt --samples 32 \
    --seqlen 256 --sparsity 0.5 --ppl test.txt --out pruned
compress prune MODEL --method pruner-zero --pattern 2:4 --update sparsegpt --calib FILE --out DIR
compress prune MODEL --method 'expr:pdiv(W, Wr2) * sqrt(X)' --sparsity 0.6 --allocation owl --calib FILE --out DIR
compress prune MODEL --sparsity 0.6 --allocation search --generations 50 --offspring 16 --calib FILE --out DIR
compress prune MODEL --method wanda --swaps 4 --swap-diagonal 1 --update exact --sparsity 0.6 --calib FILE --out DIR
compress prune MODEL --method oats --sparsity 0.6 --calib FILE --out DIR --adapter DIR
compress prune MODEL --method ria --pattern 4:8 --permutation assignment --calib FILE --out DIR
compress prune MODEL --imatrix model.imatrix.gguf --sparsity 0.5 --out DIR
compress prune MODEL --layers 25% --calib FILE --ppl FILE --out DIR
compress prune MODEL --drop-layers 3,5,20-22 --out DIR
compress prune MODEL --vocab-from mytext.txt --vocab-held-out other.txt --out DIR
compress prune MODEL --ffn 25% --kv-heads 4 --calib FILE --out DIR
compress prune MIXTURE --experts 25% --calib FILE --out DIR
compress prune compare MODEL --methods magnitude,wanda,sparsegpt --patterns 0.5,0.6,2:4 --calib FILE --ppl FILE --out DIR`

func pruneCmd(a *cli.App) *cobra.Command {
	var o prunecmd.Options
	var whole structurecmd.Options
	var cmd *cobra.Command
	var common []string // flags that every verb has
	cmd = a.Verb(cli.Verb{
		Use:   "prune MODEL --out DIR",
		Short: "Set weights of a model to zero with little loss, or take out words that a text does not need",
		Long: "Writes a copy of a model in which a part of the weights is zero: half of them by default, in " +
			"every matrix of every decoder layer. The copy has the same layout, names and element types, and " +
			"every tool loads it. It does not get smaller or faster by itself; compress convert --save bitmask " +
			"packs it. The folder also gets pruning.json, a record of what was done with the figures of --ppl, " +
			"and a model " +
			"card (README.md).\n\n" +
			"Methods other than magnitude run calibration text through the model, one decoder layer in memory " +
			"at a time; gblm and pruner-zero also need gradients. 128 sequences of 2048 tokens, as in the " +
			"papers, can take hours on a laptop: --samples 32 --seqlen 512 is good for a first look. Any " +
			"method goes with any pattern, group, allocation and update. N:M prunes N of every M inputs. Long " +
			"runs continue with --resume to the same bytes.\n\n" +
			"expr:FORMULA ranks weights by a formula of your own: W is |weight|, X the mean square of the " +
			"input, G the gradient; further Xm, Xv, H, Hi, Wr1, Wr2, Wc1, Wc2, the operators + - *, and " +
			"functions such as sqrt, log and mms. As in the published code, a / b divides by the Frobenius " +
			"norm of b, and pdiv(a, b) element by element; rnorm and cnorm divide by sums of rows and columns. " +
			"tree:FILE reads a formula that compress search found. A matrix without gradients is ranked by " +
			"|weight|, and both such matrices and those of zeros are reported.\n\n" +
			"--method oats makes every matrix the sum of a sparse one and one of low rank, which together store " +
			"what --sparsity leaves (with N:M, the low-rank part comes on top). The low-rank parts become a LoRA in " +
			"--adapter, as PEFT reads it: without it the pruned model is not complete.\n\n" +
			"--layers leaves out whole decoder layers instead, --ffn, --heads, --kv-heads and --hidden neurons of " +
			"MLPs, attention heads and channels, as many in every layer, --experts experts of mixtures. That gives " +
			"an ordinary smaller model, which is faster in every runtime by what went. What goes is decided on 16 " +
			"sequences of 512 tokens, unless --samples and --seqlen say otherwise. --drop-layers and " +
			"--keep-layers name the layers, and need no text.\n\n" +
			"--vocab-from FILE makes the model smaller instead: its tokenizer keeps the tokens of that text, the " +
			"special tokens and the alphabet, and the token table and the head keep their rows. Text that needs " +
			"no other tokens is encoded as before, with the same logits; other text is written in smaller parts, " +
			"--vocab-held-out FILE counts how often, and --ppl FILE also measures bits a byte before and after.",
		Example: pruneExample,
		Habit:   []string{"out"},
		Args:    cobra.ExactArgs(1),
		Resumes: true,
		Check: func(*cli.Job, []string) error {
			if err := alone(cmd, o, common); err != nil {
				return err
			}
			if whole.Any() {
				return structureCheck(cmd, &whole, &o)
			}
			if err := structureOnly(cmd, o.Allocation); err != nil {
				return err
			}
			o.SetSearch(whole.Generations, whole.Offspring)
			if len(o.Vocabulary.From) > 0 {
				return prunecmd.CheckVocabulary(o)
			}
			return prunecmd.Check(o)
		},
		Run: func(j *cli.Job, args []string) (any, error) {
			if err := alone(cmd, o, common); err != nil {
				return nil, err
			}
			if whole.Any() {
				if err := structureCheck(cmd, &whole, &o); err != nil {
					return nil, err
				}
				return structurecmd.Model(j, args[0], whole)
			}
			if err := structureOnly(cmd, o.Allocation); err != nil {
				return nil, err
			}
			o.SetSearch(whole.Generations, whole.Offspring)
			if len(o.Vocabulary.From) > 0 {
				return prunecmd.TrimVocabulary(j, args[0], o)
			}
			if !cmd.Flags().Changed("sparsity") && o.Pattern != prune.Unstructured {
				o.Sparsity = 0 // the pattern says it
			}
			return prunecmd.Model(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.VisitAll(func(f *pflag.Flag) { common = append(common, f.Name) })
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the result; it appears when it is complete")
	f.StringVar(&o.Method, "method", "wanda",
		"`NAME` pruning metric: "+strings.Join(prunecmd.Methods(), ", ")+" (default: wanda)")
	f.Float64Var(&o.Sparsity, "sparsity", 0.5, "`X` fraction of the weights to remove, 0.5 for half")
	f.StringVar(&o.Pattern, "pattern", prune.Unstructured, "`NAME` unstructured, or N:M such as 2:4")
	f.StringVar(&o.Group, "group", "",
		"`NAME` weights that compete with each other: "+strings.Join(prunecmd.Groups, ", ")+
			" (default: the method's own)")
	whole.Add(f)
	o.Add(f)
	o.AddKeep(f)
	o.AddCalibration(f)
	f.StringVar(&o.Save, "save", "dense", "`FORM` how pruned matrices are stored: dense or bitmask (packed)")
	f.StringVar(&o.PPL, "ppl", "", "`FILE` measure the perplexity on this text, before and after")
	f.StringVar(&o.MasksFrom, "masks-from", "",
		"`PATH` prune with the masks of this file or folder, as --masks writes them, instead of a method; "+
			"--update sparsegpt, admm and exact then correct what remains, and need --calib")
	f.StringVar(&o.Imatrix, "imatrix", "",
		"`FILE` importance matrix that stands for --calib, as compress imatrix and llama-imatrix write it: wanda, "+
			"wanda-variant, ria and formulas of W and X, without a pass through the model")
	f.StringVar(&o.ImatrixOut, "imatrix-out", "",
		"`FILE` also write what the calibration text measured as an importance matrix (.gguf or .dat), for compress "+
			"quantize and llama-quantize")
	f.StringArrayVar(&o.Vocabulary.From, "vocab-from", nil,
		"`FILE` trim the vocabulary to the tokens of this text or JSONL, instead of zeroing weights; may be repeated")
	f.StringVar(&o.Vocabulary.HeldOut, "vocab-held-out", "",
		"`FILE` --vocab-from: count on this text how much is encoded differently, as on that of --ppl")
	f.Int64Var(&o.Vocabulary.MinCount, "vocab-min-count", 1,
		"`N` --vocab-from: keep tokens that the text has at least this many times")
	f.IntVar(&o.Vocabulary.Size, "vocab-size", 0,
		"`N` --vocab-from: keep this many tokens, the most frequent (default: as many as the text needs, rounded up "+
			"to 64)")
	f.StringVar(&o.Masks, "masks", "", "`FILE` also write the masks to this .safetensors file (U8, 1 = kept)")
	f.StringVar(&o.Adapter, "adapter", "",
		"`DIR` oats: folder for the low-rank parts, a LoRA that the pruned model is used with")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	cli.Require(cmd, "out")
	cmd.AddCommand(pruneCompareCmd(a))
	completeTuning(cmd)
	cli.Complete(cmd, "method", prunecmd.Methods()...)
	cli.Complete(cmd, "pattern", prune.Unstructured, "2:4", "4:8")
	cli.NotZero(cmd, "vocab-size")
	cli.OneOf(cmd, "save", "dense", "bitmask")
	cli.Complete(cmd, "layer-score", structure.Ways()...)
	cli.Complete(cmd, "expert-score", structure.ExpertScores()...)
	for _, share := range structurecmd.Shares {
		cli.Complete(cmd, share, "10%", "25%", "50%")
	}
	cli.Inputs(cmd, "calib", "ppl", "grads", "overrides", "masks-from", "imatrix", "vocab-from", "vocab-held-out")
	cli.Texts(cmd, cli.ToLearn, "calib", "vocab-from")
	cli.Texts(cmd, cli.ToMeasure, "ppl", "vocab-held-out")
	cli.MayBeEmpty(cmd, "group")

	return cmd
}

// structureCheck looks at the flags of a run that takes out whole parts, and gives it those that it shares with pruning
// of single weights.
func structureCheck(cmd *cobra.Command, whole *structurecmd.Options, o *prunecmd.Options) error {
	for _, flag := range maskFlags() {
		if cmd.Flags().Changed(flag) {
			return cli.Usagef("--%s with --layers, --ffn, --heads, --kv-heads, --hidden or --experts: whole parts and "+
				"single weights go one after the other (HINT: prune the result once more)", flag)
		}
	}

	whole.Out, whole.PPL = o.Out, o.PPL
	whole.Resume, whole.Overwrite = o.Resume, o.Overwrite
	whole.Calibration = o.Calibration
	if !cmd.Flags().Changed("samples") {
		whole.Samples = 16
	}
	if !cmd.Flags().Changed("seqlen") {
		whole.SeqLen = 512
	}

	return structurecmd.Check(*whole)
}

// maskFlags are those that choose single weights.
func maskFlags() []string {
	names := []string{
		"method", "sparsity", "pattern", "group", "save", "masks", "masks-from", "imatrix", "imatrix-out", "adapter",
	}
	var o prunecmd.Options
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.Add(set)
	o.AddKeep(set)
	set.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// structureOnly refuses flags that belong to --layers, unless a search for an allocation has them too.
func structureOnly(cmd *cobra.Command, allocation string) error {
	for _, flag := range structurecmd.Names {
		shared := allocation == prune.Search && (flag == "generations" || flag == "offspring")
		if cmd.Flags().Changed(flag) && !shared && (flag == "generations" || flag == "offspring") {
			return cli.Usagef("--%s goes with --layer-score search and --allocation search", flag)
		}
		if cmd.Flags().Changed(flag) && !shared {
			return cli.Usagef("--%s goes with --layers, --ffn, --heads, --kv-heads, --hidden or --experts", flag)
		}
	}
	return nil
}

// alone refuses flags that do not go together.
func alone(cmd *cobra.Command, o prunecmd.Options, common []string) error {
	if err := vocabularyAlone(cmd, o.Vocabulary.From, common); err != nil {
		return err
	}
	return masksAlone(cmd, o.MasksFrom)
}

// masksAlone refuses flags that choose what goes beside a file that says it.
func masksAlone(cmd *cobra.Command, file string) error {
	if file == "" {
		return nil
	}

	for _, flag := range []string{
		"method", "sparsity", "pattern", "group", "allocation", "permutation", "overrides", "grads", "grads-exact",
		"save-grads", "imatrix", "swaps", "swap-diagonal", "rank-share", "rank-turns", "adapter",
	} {
		if cmd.Flags().Changed(flag) {
			return cli.Usagef("--masks-from %s with --%s: the masks say which weights go (HINT: leave --%s out)", file,
				flag, flag)
		}
	}

	return nil
}

// vocabularyAlone refuses flags that choose weights beside a text that chooses tokens, and the other way round.
func vocabularyAlone(cmd *cobra.Command, files, common []string) error {
	words := []string{"vocab-held-out", "vocab-min-count", "vocab-size"}
	if len(files) == 0 {
		for _, flag := range words {
			if cmd.Flags().Changed(flag) {
				return cli.Usagef("--%s: no text to take the vocabulary from (HINT: give --vocab-from FILE)", flag)
			}
		}
		return nil
	}

	also := slices.Concat(common, words, []string{"vocab-from", "out", "ppl", "seqlen", "resume", "overwrite"})
	var other string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains(also, f.Name) && other == "" {
			other = f.Name
		}
	})
	if other == "" {
		return nil
	}
	return cli.Usagef("--vocab-from with --%s: the vocabulary is trimmed by itself (HINT: prune the folder that it "+
		"gives in a second run)", other)
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
