package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/evalcmd"
	"github.com/modelcompress/compress/cmd/compress/internal/mergecmd"
)

func mergeSearchCmd(a *cli.App) *cobra.Command {
	var o mergecmd.SearchOptions
	cmd := a.Verb(cli.Verb{
		Use:   "search RECIPE.yaml --out DIR",
		Short: "Find the best values for open numbers of a recipe",
		Long: "Searches the numbers that a recipe leaves open, written {search: [low, high]}, by an evolution " +
			"strategy (CMA-ES). The loss to minimise is the weighted mean of the loss per token on each --data " +
			"and of one minus the metric of each --tasks (of the metric itself where less is better). The " +
			"folder gets best.yaml, the recipe with the best numbers, for compress merge.\n\n" +
			"Candidates are merged in memory. Where one does not fit into --in-memory, or the recipe has " +
			"several documents or uses mediate, each is written below --out, measured and removed.\n\n" +
			"Other machines can help (compress worker, with --listen or a NATS --cluster) without changing the " +
			"result. An interrupted search continues with --resume.",
		Example: "compress merge search recipe.yaml --data held-out.txt --tasks lab_base.yaml=2 --out found",
		Habit:   []string{"out"},
		Args:    cobra.ExactArgs(1), Resumes: true,
		Check: func(*cli.Job, []string) error { return mergecmd.CheckSearch(o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return mergecmd.Search(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringArrayVar(&o.Data, "data", nil,
		"`FILE` held-out data to minimise the loss on: plain text, JSONL, or token ids (.safetensors or "+
			".json); give it several times for several files, with =WEIGHT for other weights than 1")
	f.StringSliceVar(&o.Tasks, "tasks", nil,
		"`LIST` tasks, groups, tags, task files or folders, separated by commas, with =WEIGHT for other "+
			"weights than 1")
	f.StringSliceVar(&o.TaskData, "task-data", nil,
		"`DIRS` folders in which the tasks' data files are looked for, separated by commas")
	f.StringVar(&o.Metric, "metric", "",
		"`NAME` metric of --tasks (default: acc, exact_match or bits_per_byte, whichever a task has, else its "+
			"first)")
	f.IntVar(&o.Shots, "num-fewshot", -1, "`N` examples in each prompt (default: -1, as the task says)")
	f.IntVar(&o.TaskLimit, "task-limit", 0, "`N` evaluate only the first N documents of each task (default: all)")
	f.StringVar(&o.Out, "out", "", "`DIR` folder for the results")
	f.IntVar(&o.Generations, "generations", 20, "`N` generations after the first")
	f.IntVar(&o.Population, "population", 0,
		"`N` candidates per generation (default: 4 + 3·ln(number of open numbers))")
	f.Float64Var(&o.Sigma, "sigma", 0.25, "`X` initial spread, as a fraction of each range")
	f.IntVar(&o.SeqLen, "seqlen", 0,
		"`N` tokens per sequence (default: 2048 or the model's context, whichever is smaller)")
	f.IntVar(&o.Limit, "limit", 0, "`N` use only the first N sequences of each text (default: all)")
	f.StringVar(&o.Memory, "memory", "1GiB",
		"`SIZE` memory for buffers of all merges together, besides the candidates")
	f.StringVar(&o.InMemory, "in-memory", "",
		"`SIZE` memory for candidates, one per worker as far as they fit, or none to merge them on disk "+
			"(default: half of what is free)")
	o.Where.Add(f, 0, "")
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace what is in --out")
	f.BoolVar(&o.Resume, "resume", false,
		"continue an interrupted run with the same result as without the interruption")
	cli.CompleteFiles(cmd, "tasks", evalcmd.TaskNames)
	cli.Require(cmd, "out")
	cli.NotZero(cmd, "population", "generations", "sigma")
	cli.Inputs(cmd, "data", "tasks", "task-data")
	cli.Texts(cmd, cli.ToLearn, "data")
	cli.MayBeEmpty(cmd, "metric", "in-memory")

	return cmd
}
