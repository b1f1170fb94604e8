package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/editcmd"
	editors "github.com/modelcompress/compress/editeval/edit"
)

func editCmd(a *cli.App) *cobra.Command {
	var o editcmd.Options
	var cmd *cobra.Command
	cmd = a.Verb(cli.Verb{
		Use:   "edit MODEL --edits FILE --method M --out DIR",
		Short: "Write facts into a model",
		Long: "Changes single facts that a model has learnt, such as where somebody was born, without training " +
			"it: reads the facts from a file, writes them into the weights by ROME, MEMIT, AlphaEdit, GRACE or " +
			"another method (memit-seq, nas, lyaplock and ultraedit are made for many edits), and saves the " +
			"edited checkpoint. It then reports whether the facts are answered (efficacy), also when asked in " +
			"other words (paraphrase), and how much else has moved (neighbourhood, drift, norms).\n\n" +
			"The folder also gets edits.journal, from which compress edit undo restores every earlier state " +
			"byte for byte.\n\n" +
			"Hyper-parameters are the published ones for models that have some, and otherwise follow from the " +
			"number of layers; --hparams replaces them. Methods that need the covariance of keys (ROME, MEMIT, " +
			"AlphaEdit and their kin) collect it from --stats, or from the prompts of the edits if that is not " +
			"given.\n\n" +
			"GRACE, WISE and MEMOIR leave the weights alone: what they learn lies in edits.journal, and generate, " +
			"eval, ppl, forward and serve let it answer. WISE and MEMOIR hold facts against ordinary text, which " +
			"--stats has to give.",
		Example: "compress edit ./my-model --edits facts.json --count 10 --method grace " +
			"--out edited",
		Habit: []string{"edits", "out"},
		Args:  cobra.ExactArgs(1), Resumes: true,
		Check: func(*cli.Job, []string) error {
			o.Counted = cmd.Flags().Changed("count")
			return editcmd.Check(o)
		},
		Run: func(j *cli.Job, args []string) (any, error) {
			o.Counted = cmd.Flags().Changed("count")
			return editcmd.Run(j, args[0], o)
		},
	})

	f := cmd.Flags()
	f.StringVar(&o.Edits, "edits", "", "`FILE` CounterFact, zsRE or EasyEdit JSON with the facts to write")
	f.StringVar(&o.Method, "method", "rome", "`NAME` editing method: "+strings.Join(editors.Methods(), ", "))
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the edited model")
	f.IntVar(&o.Count, "count", 0, "`N` write only the first N edits of the file (default: all)")
	f.BoolVar(&o.SkipInvalid, "skip-invalid", false,
		"leave out faulty records instead of stopping; the next ones count in their place")
	f.BoolVar(&o.NoContradictions, "no-contradictions", false,
		"refuse edits that answer a prompt differently; otherwise the last one of a batch counts")
	f.IntVar(&o.Batch, "batch", 0,
		"`N` edits that are written at once (default: all for methods that can, otherwise 1)")
	f.StringVar(&o.HParams, "hparams", "", "`FILE` YAML with hyper-parameters that replace the defaults")
	f.StringVar(&o.Stats, "stats", "",
		"`FILE` plain text or JSONL to collect the covariance of keys from, or to hold facts of a side memory against")
	f.IntVar(&o.StatsTokens, "stats-tokens", 1_000_000, "`N` tokens of --stats to read at most")
	f.StringVar(&o.Cache, "cache", "",
		"`DIR` folder that keeps covariances for later runs with the same model and text")
	f.IntVar(&o.Texts, "texts", 4,
		"`N` records whose generation prompts are continued, to measure fluency and consistency")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out, even an unfinished run")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	cli.DecodeFlag(cmd, &o.Decode)
	f.BoolVar(&o.KeepZeros, "keep-zeros", false, "leave zeros zero, so a pruned model keeps its sparsity")
	f.StringVar(&o.Adapter, "adapter", "",
		"`ADAPTER` apply this adapter while editing; the result is the model without it, to be used with it")
	cli.Require(cmd, "edits", "out")
	cli.Inputs(cmd, "edits", "hparams", "stats", "adapter")
	cli.Texts(cmd, cli.ToLearn, "stats")
	cli.Complete(cmd, "method", editors.Methods()...)
	cmd.AddCommand(editUndoCmd(a), editVerifyCmd(a), editTraceCmd(a))

	return cmd
}

func editUndoCmd(a *cli.App) *cobra.Command {
	to := 0
	cmd := a.Verb(cli.Verb{
		Use:   "undo DIR --to N",
		Short: "Take edits out of a model again",
		Long: "Restores an edited model to what it was after the first N steps of its edits.journal, byte for " +
			"byte. A step is one edit, or one batch of edits; with --to 0 all edits are taken out.\n\n" +
			"Files are replaced one at a time when they are complete. After an interruption, the same command " +
			"finishes the work.",
		Example: "compress edit undo edited --to 0", Unused: []string{"device", "threads", "seed"},
		Args: cobra.ExactArgs(1), Local: true,
		Run: func(j *cli.Job, args []string) (any, error) { return editcmd.Undo(j, args[0], to) },
	})

	cmd.Flags().IntVar(&to, "to", 0, "`N` number of steps to keep")
	cli.Require(cmd, "to")
	return cmd
}

func editVerifyCmd(a *cli.App) *cobra.Command {
	base := ""
	cmd := a.Verb(cli.Verb{
		Use:   "verify DIR [--base MODEL]",
		Short: "Check that an edited model is its base plus its edits",
		Long: "Checks that the edited matrices are what edits.journal says, and that they differ from the " +
			"originals by exactly the sum of all edits, except for rounding.\n\n" +
			"With --base the originals are compared with those of the base model, and every other tensor must " +
			"be the same.",
		Example: "compress edit verify edited --base ./my-model", Unused: []string{"device", "threads", "seed"},
		Args: cobra.ExactArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return editcmd.Verify(j, args[0], base) },
	})

	cmd.Flags().StringVar(&base, "base", "", "`MODEL` the model before all edits")
	cli.Inputs(cmd, "base")
	return cmd
}

func editTraceCmd(a *cli.App) *cobra.Command {
	var o editcmd.TraceOptions
	cmd := a.Verb(cli.Verb{
		Use:   "trace MODEL --prompt TEXT --subject TEXT",
		Short: "Show in which layers a model keeps a fact (causal tracing)",
		Long: "Adds noise to the embeddings of the subject until the answer is lost, then restores one hidden " +
			"state at a time and measures how much of the answer's probability comes back, as in the ROME " +
			"paper. The table shows the tokens and layers that bring most of it back: of the residual stream, " +
			"the MLPs " +
			"and the attention. --grids prints every token and layer, --html draws them.",
		Example: "compress edit trace ./my-model --prompt \"The Eiffel Tower stands in the city of\" --subject " +
			"\"The Eiffel Tower\"",
		Args: cobra.ExactArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return editcmd.Trace(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Prompt, "prompt", "", "`TEXT` prompt whose next token is the answer")
	f.StringVar(&o.Subject, "subject", "", "`TEXT` part of the prompt that the fact is about")
	f.StringVar(&o.Answer, "answer", "", "`TEXT` answer to follow (default: the most probable next token)")
	f.IntVar(&o.Trace.Samples, "samples", 10, "`N` runs with noise to average")
	f.Float64Var(&o.Trace.Noise, "noise", 3,
		"`X` size of the noise, in standard deviations of the subject's embeddings")
	f.IntVar(&o.Trace.Window, "window", 0,
		"`N` neighbouring layers restored together in the MLP and attention grids (default: 10, at most half "+
			"of the layers)")
	cli.DecodeFlag(cmd, &o.Decode)
	f.BoolVar(&o.Grids, "grids", false, "print all values of the grids instead of the strongest")
	f.StringVar(&o.HTML, "html", "", "`FILE` page to write, with pictures of the grids")
	cli.Require(cmd, "prompt", "subject")

	return cmd
}
