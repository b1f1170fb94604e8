package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/evalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/editeval/task"
)

func evalCmd(a *cli.App) *cobra.Command {
	var o evalcmd.Options
	var cmd *cobra.Command
	cmd = a.Verb(cli.Verb{
		Use:   "eval [MODEL] --tasks LIST",
		Short: "Evaluate a model on benchmark tasks, as lm-evaluation-harness does",
		Long: "Evaluates a model with the conventions of lm-evaluation-harness: the same task files, prompts, " +
			"tokens, metrics and standard errors. Prints a table of metrics.\n\n" +
			"--tasks names tasks, groups, tags, task files, folders or patterns of these. Task definitions " +
			"come with the program, their data do not: data files are looked for in the working directory, " +
			"beside the task file and in --task-data.\n\n" +
			"With --out a folder gets results.json, the table as results.md, samples_TASK.jsonl and the answers, " +
			"with which --resume continues or extends a run; compress report makes a page of such folders. Python " +
			"in task files is not run.\n\n" +
			"--model-url evaluates a model behind a server that speaks OpenAI's API, in the same way: tasks with " +
			"likelihoods need the log-probabilities of a prompt (/v1/completions with echo and logprobs), as " +
			"compress serve and vLLM give them; tasks with generated texts need /v1/completions alone.",
		Example: "compress eval ./my-model --tasks my-task.yaml\n" +
			"compress eval MODEL --tasks arc_easy,commonsense_qa --task-data data --out run\n" +
			"compress eval --model-url http://127.0.0.1:8080 --tokenizer MODEL --tasks my-task.yaml --out run",
		Habit: []string{"tasks", "out"},
		Args:  cobra.MaximumNArgs(1), Resumes: true,
		Check: func(_ *cli.Job, args []string) error { return evalcmd.CheckFlags(args, o) },
		Run: func(j *cli.Job, args []string) (any, error) {
			if cmd.Flags().Changed("log-samples") && o.Samples && o.Out == "" {
				return nil, cli.Usagef("--log-samples: there is nowhere to write them without --out (HINT: add " +
					"--out DIR)")
			}
			return evalcmd.Run(j, args, o)
		},
	})

	f := cmd.Flags()
	f.StringSliceVar(&o.Tasks, "tasks", nil, "`LIST` tasks, groups, tags, task files or folders, separated by commas")
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the results (default: they are only printed)")
	f.StringSliceVar(&o.Data, "task-data", nil,
		"`DIRS` folders in which the tasks' data files are looked for, separated by commas")
	f.StringVar(&o.Server.URL, "model-url", "",
		"`URL` evaluate the model behind this server, such as http://127.0.0.1:8080, instead of MODEL")
	f.StringVar(&o.Server.Model, "model-name", "",
		"`NAME` model of --model-url (default: the only one that the server lists)")
	f.StringVar(&o.KeyFile, "key-file", "", "`FILE` file with the key of --model-url (default: no key)")
	f.StringVar(&o.Tokenizer, "tokenizer", "",
		"`MODEL` folder with the tokenizer and the chat template of the model at --model-url (default: the server's "+
			"/tokenize, asked for every text)")
	f.IntVar(&o.Server.Requests, "requests", 0,
		"`N` requests to --model-url at a time (default: 8); results do not depend on it")
	f.DurationVar(&o.Server.Timeout, "request-timeout", 0,
		"`TIME` longest time for an answer of --model-url (default: 10m)")
	openmodel.ExpertsFlag(cmd, &o.Experts)
	f.StringVar(&o.Adapter, "adapter", "", "`ADAPTER` apply this adapter first")
	f.IntVar(&o.Shots, "num-fewshot", -1, "`N` examples in each prompt (default: -1, as the task says)")
	f.Var(evalcmd.Limit{Options: &o.Task}, "limit",
		"`N` evaluate only the first N documents of each task, or a fraction such as 0.5 (default: all)")
	f.IntVar(&o.Task.BatchSize, "batch-size", 0,
		"`N` prompts to generate for at a time, at most 16 (default: as many as fit); results do not depend on "+
			"it")
	f.IntVar(&o.Task.MaxLength, "max-length", 0,
		"`N` tokens per sequence, prompt and answer (default: the model's context)")
	f.IntVar(&o.Task.Bootstrap, "bootstrap-iters", 100_000,
		"`N` bootstrap resamples for standard errors that have no formula; -1 leaves standard errors out")
	f.Uint64Var(&o.FewshotSeed, "fewshot-seed", 1234, "`N` random seed for choosing examples")
	f.StringVar(&o.Chat, "apply-chat-template", evalcmd.NoChat,
		"`NAME` write prompts as chats with the tokenizer's chat template, or with the one of this name")

	f.Lookup("apply-chat-template").NoOptDefVal = task.OwnChat
	f.StringVar(&o.Multiturn, "fewshot-as-multiturn", "",
		"`BOOL` give examples as messages of their own: true or false (default: true with a chat template)")
	f.Lookup("fewshot-as-multiturn").NoOptDefVal = "true"

	f.StringVar(&o.Task.System, "system-instruction", "", "`TEXT` system message, before the task's description")
	f.BoolVar(&o.NoSpecial, "no-special", false, "add no special tokens, not even the start token")
	f.BoolVar(&o.Samples, "log-samples", true,
		"write what each document was asked and answered, which eval compare needs")
	f.StringVar(&o.Task.Cache, "cache", "", "`DIR` folder that keeps answers for later runs with the same model")
	cli.ComputeFlags(cmd, &o.Compute)
	cli.KVFlag(cmd, &o.Compute)
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run, or extend a finished one")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	cli.Complete(cmd, "fewshot-as-multiturn", "true", "false")
	cli.CompleteFiles(cmd, "tasks", evalcmd.TaskNames)
	cli.Require(cmd, "tasks")
	cli.Inputs(cmd, "adapter", "task-data", "key-file", "tokenizer")
	cli.Alias(cmd, "data", "task-data")
	cmd.AddCommand(evalCompareCmd(a), evalTasksCmd(a), evalBatchCmd(a))

	return cmd
}

func evalCompareCmd(a *cli.App) *cobra.Command {
	draws := 10_000
	cmd := a.Verb(cli.Verb{
		Use:   "compare RUN_A RUN_B",
		Short: "Test whether two evaluations differ significantly",
		Long: "Pairs the documents of two outputs of eval and tests every difference: McNemar's exact test where " +
			"documents are right or wrong, otherwise a paired bootstrap. Prints the differences with 95 % " +
			"confidence intervals and which are statistically significant.",
		Example: "compress eval compare dense-run pruned-run",
		Unused:  []string{"device", "threads"},
		Args:    cobra.ExactArgs(2),
		Run:     func(j *cli.Job, args []string) (any, error) { return evalcmd.Compare(j, args[0], args[1], draws) },
	})

	cmd.Flags().IntVar(&draws, "bootstrap-iters", draws, "`N` bootstrap resamples")
	cli.Alias(cmd, "draws", "bootstrap-iters")
	return cmd
}

func evalBatchCmd(a *cli.App) *cobra.Command {
	var o evalcmd.BatchOptions
	var who workers.Where
	cmd := a.Verb(cli.Verb{
		Use:   "batch PLAN.yaml --out DIR",
		Short: "Evaluate several models on several tasks and compare them",
		Long: "Runs every model of a plan on every task, through a queue that survives interruptions, and " +
			"compares all models with the first. The plan (YAML) has the keys models (paths; or name, path and " +
			"adapter), tasks, data, num_fewshot, limit, bootstrap_iters, max_length, apply_chat_template, " +
			"fewshot_as_multiturn and system_instruction.\n\n" +
			"The folder gets the output of every run under MODEL/TASK, comparison.json and comparison.md. " +
			"Other machines can take runs (compress worker with --cluster or --listen) if they see the models, " +
			"the data and the folder under the same paths.",
		Example: "compress eval batch plan.yaml --out runs", Habit: []string{"out"},
		Args: cobra.ExactArgs(1), Resumes: true,
		Run: func(j *cli.Job, args []string) (any, error) { return evalcmd.Batch(j, args[0], o, who) },
	})

	cmd.Flags().StringVar(&o.Out, "out", "", "`DIR` folder for the results")
	cmd.Flags().StringVar(&o.Cache, "cache", "",
		"`DIR` folder that keeps answers for later runs with the same model")
	who.Add(cmd.Flags(), 1, ", each with a model in memory")
	cmd.Flags().BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	cli.Require(cmd, "out")

	return cmd
}

func evalTasksCmd(a *cli.App) *cobra.Command {
	list := a.Verb(cli.Verb{
		Use:   "list",
		Short: "List the tasks that come with the program",
		Long: "Lists the tasks, groups and tags whose definitions come with the program. Their data do not come " +
			"with it; compress eval tasks fetch TASK downloads them, and compress eval tasks show TASK says which " +
			"files a task reads and how to get them.",
		Example: "compress eval tasks list", Unused: []string{"device", "threads", "seed"},
		Args: cobra.NoArgs,
		Run:  func(j *cli.Job, _ []string) (any, error) { return evalcmd.Definitions(j, nil) },
	})

	show := a.Verb(cli.Verb{
		Use:   "show TASK…",
		Short: "Show how tasks are defined",
		Long: "Shows where tasks, groups or task files are defined, what they ask for, and which data files they " +
			"read.",
		Example: "compress eval tasks show arc_easy mmlu", Unused: []string{"device", "threads", "seed"},
		Args: cobra.MinimumNArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return evalcmd.Definitions(j, args) },
	})

	var data []string
	var o evalcmd.Options
	check := a.Verb(cli.Verb{
		Use:   "check TASK…",
		Short: "Try tasks without a model",
		Long: "Reads task files and their data, makes every prompt, and reports what is wrong. For a single task " +
			"it also shows the first prompt and its answers.",
		Example: "compress eval tasks check my-task.yaml", Unused: []string{"device", "threads", "seed"},
		Args: cobra.MinimumNArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return evalcmd.Check(j, args, data, o) },
	})

	check.Flags().StringSliceVar(&data, "task-data", nil,
		"`DIRS` folders in which the tasks' data files are looked for, separated by commas")
	check.Flags().Var(evalcmd.Limit{Options: &o.Task}, "limit",
		"`N` check only the first N documents of each task, or a fraction such as 0.5 (default: all)")
	cli.Inputs(check, "task-data")
	cli.Alias(check, "data", "task-data")
	var out, token string
	fetch := a.Verb(cli.Verb{
		Use:   "fetch TASK… --out DIR",
		Short: "Download the data of tasks",
		Long: "Downloads the data files of tasks that come with the program from the Hugging Face hub, under the " +
			"names by which the tasks look for them: eval takes the folder as --task-data. Files that are there " +
			"stay. What is not on the hub (PIQA, Social IQa, BIG-bench Hard, WikiText) is left to curl: its commands " +
			"are printed, and the exit code is 1. compress eval tasks show says the same for a single task. " +
			"HF_ENDPOINT names another hub; HF_TOKEN is for those that ask for it.",
		Example: "compress eval tasks fetch arc_easy hellaswag --out data\n" +
			"compress eval MODEL --tasks arc_easy,hellaswag --task-data data",
		Unused: []string{"device", "threads", "seed"},
		Args:   cobra.MinimumNArgs(1),
		Run:    func(j *cli.Job, args []string) (any, error) { return evalcmd.Fetch(j, args, out, token) },
	})
	fetch.Flags().StringVar(&out, "out", "", "`DIR` folder for the files")
	fetch.Flags().StringVar(&token, "token-file", "", "`FILE` file with a token for the hub")
	cli.Inputs(fetch, "token-file")
	cli.Require(fetch, "out")

	cmd := a.Verb(cli.Verb{
		Use: "tasks", Short: "List, show, fetch and check tasks",
		Unused: []string{"device", "threads", "seed", "json", "report", "quiet"},
		Long: "Lists the tasks that come with the program, shows how a task is defined, downloads their data, and " +
			"checks task files and their data without a model.",
		Example: "compress eval tasks list\ncompress eval tasks check my-task.yaml", Args: cobra.NoArgs,
		Run: func(*cli.Job, []string) (any, error) {
			return nil, cli.Usagef("list, show, fetch or check? see compress eval tasks --help")
		},
	})

	cmd.AddCommand(list, show, fetch, check)
	return cmd
}
