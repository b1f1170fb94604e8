package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/quantizecmd"
	"github.com/modelcompress/compress/quantize"
)

const quantizeExample = `compress quantize ./my-model --to w8a16 --out small
compress quantize MODEL --to w4a16 --method gptq --calib FILE --ppl FILE --out DIR
compress quantize MODEL --to fp8_dynamic --ignore down_proj --out DIR
compress quantize MODEL --to q4_k_m --imatrix model.imatrix.gguf --out model.Q4_K_M.gguf
compress quantize MODEL --to q3_k,q4_k,q5_k,q6_k --size 4.5bpw --calib FILE --out model.gguf`

func quantizeCmd(a *cli.App) *cobra.Command {
	var o quantizecmd.Options
	q := &o.Quantize
	var cmd *cobra.Command
	check := func() error {
		if q.Smooth == 0 && cmd.Flags().Changed("smooth") {
			return cli.Usagef("--smooth 0: want more than 0 and less than 1 (HINT: leave --smooth out for no factors)")
		}
		return quantizecmd.Check(o)
	}
	cmd = a.Verb(cli.Verb{
		Use:   "quantize MODEL --to SCHEME --out PATH",
		Short: "Store the weights of a model in 4 or 8 bits, for the runtimes people use",
		Long: "Writes a copy of a model in few bits: a folder in the formats of compressed-tensors or GPTQ, which " +
			"vLLM, SGLang and transformers run, or one GGUF file for llama.cpp and ollama. In a folder, " +
			"embeddings, the output head, norms and routers stay as they are, and quantization.json is a record " +
			"of what was done.\n\n" + schemeHelp() + "\n\n" +
			"rtn rounds every weight to the nearest number and needs no data. gptq runs calibration text through " +
			"the model, one decoder layer in memory at a time, and lets the inputs that are still to come make " +
			"up for the errors of those before them: 128 to 512 sequences of 2048 tokens are usual, --samples 32 " +
			"--seqlen 512 is good for a first look. awq measures too, and gives inputs factors by which the outputs " +
			"err less, which norms and other matrices before them take out again: the model stays an ordinary one. " +
			"awq+gptq does both. hqq moves zero points and scales without data. --range imatrix_mse needs such " +
			"text too, and improves rtn. Long runs continue with --resume to the same bytes.\n\n" +
			"With several levels, such as --to q4_k,q5_k,q6_k or --to w4a16,w8a16,keep, each matrix gets the one by " +
			"which the model's predictions on the calibration text suffer least within --size.",
		Example: quantizeExample,
		Habit:   []string{"to", "out"},
		Args:    cobra.ExactArgs(1),
		Resumes: true,
		Check:   func(*cli.Job, []string) error { return check() },
		Run: func(j *cli.Job, args []string) (any, error) {
			if err := check(); err != nil {
				return nil, err
			}
			return quantizecmd.Model(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.StringVar(&o.To, "to", "",
		"`NAME` what the weights become, or several with commas to choose from for each matrix (types such as "+
			"q4_k, q5_k and q6_k for a file, schemes and keep for a folder): "+
			strings.Join(quantize.SchemeNames(), ", "))
	f.StringVar(&q.Out, "out", "", "`PATH` folder for the result, or .gguf file; it appears when it is complete")
	f.StringVar(&q.Method, "method", quantize.RTN,
		"`NAME` how weights are rounded: "+strings.Join(quantize.Methods, ", ")+" (default: rtn)")
	f.IntVar(&q.Group, "group-size", 0,
		"`N` inputs of an output that share a scale, a multiple of 16; -1 for all (default: the scheme's own)")
	f.StringVar(&q.Range, "range", "",
		"`NAME` what scales are fitted to: minmax (the range of the weights), mse (the range of least error), "+
			"imatrix_mse (errors weighted by the inputs' mean squares, with --calib), clip (the range of least "+
			"error of the outputs, with --calib) (default: minmax, for awq clip)")
	f.Float64Var(&q.Smooth, "smooth", 0,
		"`X` w8a8: SmoothQuant's exponent, such as 0.5: extremes of activations go over to the weights behind norms")
	f.Float64Var(&q.Sparsity, "sparsity", 0,
		"`X` also set this fraction of the weights to 0: with gptq in one sweep, with rtn by wanda's scores; needs "+
			"--calib")
	f.StringVar(&q.Pattern, "pattern", "", "`NAME` the same as a pattern N:M such as 2:4, N of every M inputs")
	f.BoolVar(&q.KeepZeros, "keep-zeros", false,
		"gptq: leave zeros zero, so a pruned model keeps its sparsity; other methods do anyway")
	f.StringSliceVar(&q.Ignore, "ignore", nil,
		"`PATTERN` matrices that stay as they are: whole parts of their names such as down_proj, mlp.*_proj or "+
			"layers.0.*; several with commas")
	o.AddCalibration(f)
	f.StringVar(&o.PPL, "ppl", "", "`FILE` measure the perplexity on this text, before and after")
	f.Float64Var(&q.Damping, "damp", 0,
		"`X` gptq: added to the Hessian's diagonal, as a fraction of its mean (default: 0.01)")
	f.StringVar(&q.Order, "act-order", "",
		"`NAME` gptq: weight (inputs that weigh most come first) or none (default: weight)")
	f.BoolVar(&q.FitLate, "late-scales", false,
		"gptq: fit the scales of a group when its turn comes, with --act-order none")
	f.BoolVar(&q.TrueSequential, "true-sequential", false,
		"gptq: measure each matrix with those before it in the layer already rounded, four passes instead of one")
	f.StringVar(&o.Memory, "hessian-memory", "2GiB",
		"`SIZE` memory for Hessians; a decoder layer that needs more is run several times, with the same result")
	f.StringVar(&o.Shard, "max-shard-size", "keep",
		"`SIZE` largest file, such as 2GB or 500MiB, or none for a single file (default: keep, the files of "+
			"the source)")
	f.StringVar(&o.Imatrix, "imatrix", "",
		"`FILE` importance matrix for a GGUF file, as compress imatrix and llama-imatrix write it")
	f.StringSliceVar(&o.Types, "type", nil,
		"`PATTERN=TYPE` what some matrices become instead: blk.*.ffn_down.weight=q6_k in a GGUF file, "+
			"*.down_proj=w8a16 in a folder; several with commas, of which the last that fits counts")
	f.StringVar(&o.Assign.Size, "size", "",
		"`SIZE` with several levels in --to: what all weights may take, as bits a weight (4.5bpw) or bytes (90MB)")
	f.StringVar(&o.Assign.By, "assign", "",
		"`NAME` how levels are chosen: sensitivity (what predictions lose by each matrix, from gradients) or search "+
			"(measures whole assignments, from there on) (default: sensitivity)")
	f.IntVar(&o.Assign.Generations, "generations", 0, "`N` search: generations (default: 30)")
	f.IntVar(&o.Assign.Offspring, "offspring", 0, "`N` search: assignments tried in a generation (default: 8)")
	f.BoolVar(&q.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	f.BoolVar(&q.Overwrite, "overwrite", false, "replace what is in --out")
	cli.Require(cmd, "to", "out")
	cli.NotZero(cmd, "group-size")
	cli.Complete(cmd, "to", quantize.SchemeNames()...)
	cli.Complete(cmd, "method", quantize.Methods...)
	cli.Complete(cmd, "pattern", "2:4", "4:8")
	cli.Complete(cmd, "range", quantize.Ranges...)
	cli.Complete(cmd, "act-order", quantize.Orders...)
	cli.Complete(cmd, "max-shard-size", "keep", "none", "500MB", "2GB", "5GB")
	cli.Inputs(cmd, "calib", "ppl", "imatrix")
	cli.Texts(cmd, cli.ToLearn, "calib")
	cli.Texts(cmd, cli.ToMeasure, "ppl")

	return cmd
}

// schemeHelp says what the schemes are.
func schemeHelp() string {
	var folders, files []string
	for _, s := range quantize.Schemes() {
		if s.File() {
			files = append(files, s.Name)
		} else {
			folders = append(folders, s.Name+": "+s.Meaning())
		}
	}
	return "Folders are " + strings.Join(folders, "; ") + ". Files are " + strings.Join(files, ", ") +
		", with the types of llama.cpp's mixtures of these names."
}
