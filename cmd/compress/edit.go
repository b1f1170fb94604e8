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
	cmd := a.Verb(cli.Verb{
		Use: "edit MODEL --edits FILE --method M --out DIR", Short: "Write facts into a model",
		Long: "Writes the edits of a file (CounterFact, zsRE or EasyEdit JSON) into a model, and measures what was " +
			"achieved and what moved: efficacy, paraphrases, neighbourhood, drift, norms. DIR gets the edited " +
			"checkpoint and edits.journal, from which edit undo restores every earlier state byte for byte. " +
			"Hyper-parameters are the published ones for models they are known for, and follow from the depth for " +
			"others; a YAML file overrides them. Methods that need the covariance of keys collect it from --stats, " +
			"or from the prompts of FILE.",
		Example: "compress edit testdata/nano/base --edits testdata/nano/edits.json --count 10 --method grace " +
			"--out edited",
		Args: cobra.ExactArgs(1), Resumes: true,
		Check: func(*cli.Job, []string) error { return editcmd.Check(o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return editcmd.Run(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Edits, "edits", "", "file of edits: CounterFact, zsRE or EasyEdit JSON")
	f.StringVar(&o.Method, "method", "rome", "method; "+strings.Join(editors.Methods(), ", "))
	f.StringVar(&o.Out, "out", "", "folder to write")
	f.IntVar(&o.Count, "count", 0, "first edits of the file; 0 is all")
	f.BoolVar(&o.SkipInvalid, "skip-invalid", false, "leave out records with faults, and count the next in their place")
	f.IntVar(&o.Batch, "batch", 0, "how many at once; edits, 0 is all for methods that can, 1 for the others")
	f.StringVar(&o.HParams, "hparams", "", "YAML file of hyper-parameters that replace the defaults")
	f.StringVar(&o.Stats, "stats", "", "text or JSONL to collect the covariance of keys from")
	f.IntVar(&o.StatsTokens, "stats-tokens", 1_000_000, "tokens of it at most")
	f.StringVar(&o.Cache, "cache", "", "folder of what runs share; covariances, by weights and text")
	f.IntVar(&o.Texts, "texts", 4, "records whose generation prompts are continued, for fluency and consistency")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out; an unfinished one is begun anew")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	f.BoolVar(&o.KeepZeros, "keep-zeros", false, "leave zeros of the matrices alone: a pruned model keeps its pattern")
	f.StringVar(&o.Adapter, "adapter", "",
		"folder of an adapter; the model is edited as it makes it, DIR gets the model, to be used with the adapter")
	cli.Require(cmd, "edits", "out")
	cli.Inputs(cmd, "edits", "hparams", "stats", "adapter")
	cli.Complete(cmd, "method", editors.Methods()...)
	cmd.AddCommand(editUndoCmd(a), editVerifyCmd(a), editTraceCmd(a))

	return cmd
}

func editUndoCmd(a *cli.App) *cobra.Command {
	to := 0
	cmd := a.Verb(cli.Verb{
		Use: "undo DIR --to N", Short: "Take edits out of a model again",
		Long: "Restores the state after the first N steps of edits.journal (a step is an edit, or a batch of them), " +
			"byte for byte; 0 is the model before all edits. Files are replaced one by one when they are complete: " +
			"after an interruption the same command finishes the work.",
		Example: "compress edit undo edited --to 0", Args: cobra.ExactArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) { return editcmd.Undo(j, args[0], to) },
	})

	cmd.Flags().IntVar(&to, "to", 0, "steps to keep")
	cli.Require(cmd, "to")
	return cmd
}

func editVerifyCmd(a *cli.App) *cobra.Command {
	base := ""
	cmd := a.Verb(cli.Verb{
		Use: "verify DIR [--base MODEL]", Short: "Check that an edited model is its base plus its edits",
		Long: "Reads edits.journal and checks that the matrices in the files are what it says, and that they differ " +
			"from what they were before all edits by the sum of the deltas of all steps, but for rounding to the " +
			"stored type. With --base, that what they were is what MODEL has, and that no other tensor differs.",
		Example: "compress edit verify edited --base testdata/nano/base", Args: cobra.ExactArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) { return editcmd.Verify(j, args[0], base) },
	})

	cmd.Flags().StringVar(&base, "base", "", "model before all edits")
	cli.Inputs(cmd, "base")
	return cmd
}

func editTraceCmd(a *cli.App) *cobra.Command {
	var o editcmd.TraceOptions
	cmd := a.Verb(cli.Verb{
		Use: "trace MODEL --prompt TEXT --subject TEXT", Short: "Show where a model keeps a fact",
		Long: "Causal tracing: noise on the subject's embeddings spoils the answer, and one state after another is " +
			"put back to what it was. The grids tell how much of the answer's probability each token and layer " +
			"brings back; --html draws them.",
		Example: "compress edit trace testdata/nano/base --prompt \"The birthplace of Wanda Brandt is\" --subject " +
			"\"Wanda Brandt\"",
		Args: cobra.ExactArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return editcmd.Trace(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Prompt, "prompt", "", "text of the prompt; its next token is the answer")
	f.StringVar(&o.Subject, "subject", "", "part of the prompt that the fact is about")
	f.StringVar(&o.Answer, "answer", "", "answer to follow; by default the likeliest token")
	f.IntVar(&o.Trace.Samples, "samples", 10, "noisy runs")
	f.Float64Var(&o.Trace.Noise, "noise", 3, "noise in standard deviations of the subject's embeddings")
	f.IntVar(&o.Trace.Window, "window", 0,
		"layers restored together in the MLP and attention grids; 0 is 10, at most half")
	f.StringVar(&o.HTML, "html", "", "page to write; with pictures of the grids")
	cli.Require(cmd, "prompt", "subject")

	return cmd
}
