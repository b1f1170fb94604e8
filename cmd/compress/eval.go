package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/evalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
)

func evalCmd(a *cli.App) *cobra.Command {
	var o evalcmd.Options
	cmd := a.Verb(cli.Verb{
		Use: "eval MODEL --tasks LIST --out DIR", Short: "Evaluate a model on benchmark tasks",
		Long: "Evaluates a model by the conventions of lm-evaluation-harness: the same task files, prompts, tokens, " +
			"metrics and standard errors. LIST names tasks, groups, tags, task files, folders or patterns of these, " +
			"with commas between. DIR gets results.json, samples_TASK.jsonl and the answers, with which --resume " +
			"continues or widens a run. Data files are looked for in the working directory, beside the task file " +
			"and in --task-data.",
		Example: "compress eval testdata/nano/base --tasks testdata/nano/tasks/base.yaml --out run",
		Args:    cobra.ExactArgs(1), Resumes: true,
		Check: func(*cli.Job, []string) error { return evalcmd.CheckFlags(o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return evalcmd.Run(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringSliceVar(&o.Tasks, "tasks", nil, "tasks, groups, tags, files or folders, with commas between")
	f.StringVar(&o.Out, "out", "", "folder to write")
	f.StringSliceVar(&o.Data, "task-data", nil,
		"folders in which data files of --tasks are looked for, with commas between")
	openmodel.ExpertsFlag(cmd, &o.Experts)
	f.StringVar(&o.Adapter, "adapter", "", "folder of an adapter; it is applied first")
	f.IntVar(&o.Shots, "num-fewshot", -1, "examples in each prompt; -1 is as the task says")
	f.IntVar(&o.Task.Limit, "limit", 0, "take the first only; documents of each task, 0 is all")
	f.IntVar(&o.Task.BatchSize, "batch-size", 0,
		"texts generated at a time, at most 16; 0 is as many as fit. No figure depends on it")
	f.IntVar(&o.Task.MaxLength, "max-length", 0, "tokens of a sequence; 0 is what the model has")
	f.IntVar(&o.Task.Bootstrap, "bootstrap-iters", 100_000,
		"resamples of the bootstrap; for standard errors that have no formula, -1 leaves standard errors out")
	f.Uint64Var(&o.FewshotSeed, "fewshot-seed", 1234, "seed of the draws of examples")
	f.StringVar(&o.Chat, "apply-chat-template", evalcmd.NoChat,
		"write prompts as conversations by the tokenizer's chat template; =NAME is one of several")

	f.Lookup("apply-chat-template").NoOptDefVal = evalcmd.OwnChat
	f.StringVar(&o.Multiturn, "fewshot-as-multiturn", "",
		"examples as messages of their own: true (the default with a chat template) or false")
	f.Lookup("fewshot-as-multiturn").NoOptDefVal = "true"

	f.StringVar(&o.Task.System, "system-instruction", "", "text of the system, before the description of the task")
	f.BoolVar(&o.NoSpecial, "no-special", false,
		"add no special tokens; without it the start token is added where the tokenizer does so")
	f.BoolVar(&o.LogSamples, "log-samples", true,
		"write what each document was asked and answered; eval compare needs it")
	f.StringVar(&o.Task.Cache, "cache", "", "folder of what runs share; answers, by weights and request")
	f.BoolVar(&o.Fast, "fast", false, "round activations to BF16 where weights are BF16 and the processor has dot "+
		"products for it")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run; or widen a finished one")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace an existing --out")
	cli.Complete(cmd, "fewshot-as-multiturn", "true", "false")
	cli.CompleteFiles(cmd, "tasks", evalcmd.TaskNames)
	cli.Require(cmd, "tasks", "out")
	cli.Inputs(cmd, "adapter", "task-data")
	cli.Alias(cmd, "data", "task-data")
	cmd.AddCommand(evalCompareCmd(a), evalTasksCmd(a), evalBatchCmd(a))

	return cmd
}

func evalCompareCmd(a *cli.App) *cobra.Command {
	draws := 10_000
	cmd := a.Verb(cli.Verb{
		Use: "compare RUN_A RUN_B", Short: "Test the differences between two evaluations",
		Long: "Pairs the documents of two outputs of eval and tests every difference: McNemar's exact test where " +
			"documents are right or wrong, otherwise a paired bootstrap, which gives the intervals too.",
		Example: "compress eval compare dense-run pruned-run",
		Args:    cobra.ExactArgs(2),
		Run:     func(j *cli.Job, args []string) (any, error) { return evalcmd.Compare(j, args[0], args[1], draws) },
	})

	cmd.Flags().IntVar(&draws, "bootstrap-iters", draws, "resamples of the bootstrap")
	cli.Alias(cmd, "draws", "bootstrap-iters")
	return cmd
}

func evalBatchCmd(a *cli.App) *cobra.Command {
	o := evalcmd.Options{LogSamples: true, FewshotSeed: 1234}
	var who workers.Where
	cmd := a.Verb(cli.Verb{
		Use: "batch PLAN.yaml --out DIR", Short: "Evaluate several models on several tasks and compare them",
		Long: "Runs every model of a plan (models: paths, or name, path and adapter; tasks; data; num_fewshot; " +
			"limit; bootstrap_iters; max_length, apply_chat_template, fewshot_as_multiturn, system_instruction) on " +
			"every task, through a durable queue, and compares all models with the first. DIR gets the output of " +
			"every run under MODEL/TASK, comparison.json and comparison.md. Processes of the verb worker take runs " +
			"with --cluster or --listen; they have to reach the models, the data and the folder beside DIR under " +
			"the same paths.",
		Example: "compress eval batch plan.yaml --out runs", Args: cobra.ExactArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) { return evalcmd.Batch(j, args[0], o, who) },
	})

	cmd.Flags().StringVar(&o.Out, "out", "", "folder to write")
	cmd.Flags().StringVar(&o.Task.Cache, "cache", "", "folder of what runs share; answers, by weights and request")
	who.Add(cmd.Flags(), 1, ", each with a model in memory")
	cmd.Flags().BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	cli.Require(cmd, "out")

	return cmd
}

func evalTasksCmd(a *cli.App) *cobra.Command {
	list := a.Verb(cli.Verb{
		Use: "list", Short: "List the tasks that come with the program",
		Long:    "Lists the tasks, groups and tags whose definitions come with the program; their data do not.",
		Example: "compress eval tasks list", Args: cobra.NoArgs,
		Run: func(j *cli.Job, _ []string) (any, error) { return evalcmd.Definitions(j, nil) },
	})

	show := a.Verb(cli.Verb{
		Use: "show TASK…", Short: "Show the definition of tasks",
		Long: "Shows where tasks, groups or task files are defined, what they ask for, and which data " +
			"files they read.",
		Example: "compress eval tasks show arc_easy mmlu", Args: cobra.MinimumNArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) { return evalcmd.Definitions(j, args) },
	})

	var data []string
	var o evalcmd.Options
	check := a.Verb(cli.Verb{
		Use: "check TASK…", Short: "Try tasks without a model",
		Long: "Reads task files and their data, makes every prompt, and says what is wrong; for a single task it " +
			"shows the first prompt.",
		Example: "compress eval tasks check testdata/nano/tasks", Args: cobra.MinimumNArgs(1),
		Run: func(j *cli.Job, args []string) (any, error) { return evalcmd.Check(j, args, data, o) },
	})

	check.Flags().StringSliceVar(&data, "task-data", nil,
		"folders in which data files of --tasks are looked for, with commas between")
	check.Flags().IntVar(&o.Task.Limit, "limit", 0, "take the first only; documents of each task, 0 is all")
	cli.Inputs(check, "task-data")
	cli.Alias(check, "data", "task-data")
	cmd := a.Verb(cli.Verb{
		Use: "tasks", Short: "List, show and check tasks",
		Long:    "Lists the tasks that come with the program, shows definitions, and checks task files without a model.",
		Example: "compress eval tasks list\ncompress eval tasks check my-task.yaml", Args: cobra.NoArgs,
		Run: func(*cli.Job, []string) (any, error) {
			return nil, cli.Usagef("list, show or check? see compress eval tasks --help")
		},
	})

	cmd.AddCommand(list, show, check)
	return cmd
}
