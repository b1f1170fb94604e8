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
		Use: "search RECIPE.yaml --out DIR", Short: "Find the open numbers of a recipe",
		Long: "Finds the numbers that a recipe leaves open, written {search: [low, high]}, by an evolution strategy " +
			"(CMA-ES; draws outside of the bounds are mirrored back). The loss of a candidate is the mean, by " +
			"weight, of the nats per token on each --data and of each --tasks: 1 less the metric where more is " +
			"better, the metric where less is. Candidates are merged in memory, one over the other; where not even " +
			"one fits into --in-memory, or a recipe of several documents or mediate needs it, each is written below " +
			"--out, measured and removed. Measurements go through a queue: workers of other machines join with " +
			"compress worker at --listen or at a NATS --cluster, and change nothing of the result. The folder gets " +
			"best.yaml, the recipe with the best numbers, and a journal from which an interrupted search continues " +
			"with --resume.",
		Example: "compress merge search recipe.yaml --data held-out.txt --tasks lab_base.yaml=2 --out found",
		Args:    cobra.ExactArgs(1), Resumes: true,
		Check: func(*cli.Job, []string) error { return mergecmd.CheckSearch(o) },
		Run:   func(j *cli.Job, args []string) (any, error) { return mergecmd.Search(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringArrayVar(&o.Data, "data", nil, "text, JSONL or token ids; held out, several times for several, with "+
		"=WEIGHT if one should count more or less than 1")
	f.StringSliceVar(&o.Tasks, "tasks", nil,
		"tasks, groups, tags, files or folders, with commas between; =WEIGHT if one should count more or less than 1")
	f.StringSliceVar(&o.TaskData, "task-data", nil,
		"folders in which data files of --tasks are looked for, with commas between")
	f.StringVar(&o.Metric, "metric", "",
		"metric of --tasks; empty is acc, exact_match or bits_per_byte, whichever a task has, else its first")
	f.IntVar(&o.Shots, "num-fewshot", -1, "examples in each prompt; -1 is as the task says")
	f.IntVar(&o.TaskLimit, "task-limit", 0, "documents of each task; 0 is all")
	f.StringVar(&o.Out, "out", "", "folder to write")
	f.IntVar(&o.Generations, "generations", 20, "generations after the first")
	f.IntVar(&o.Population, "population", 0, "candidates of a generation; 0 is 4 + 3·ln(number of open numbers)")
	f.Float64Var(&o.Sigma, "sigma", 0.25, "spread at the start, as a share of each range; 0 is 0.25")
	f.IntVar(&o.SeqLen, "seqlen", 0, "tokens of a window; 0 is 2048, or the model's positions if they are fewer")
	f.IntVar(&o.Limit, "limit", 0, "take the first only; windows of each text, 0 is all")
	f.StringVar(&o.Memory, "memory", "1GiB",
		"memory for buffers and statistics; of all merges under way, candidates come on top")
	f.StringVar(&o.InMemory, "in-memory", "", "memory for candidates, one for each worker that fits; none merges "+
		"them on the disk, empty is half of what is free")
	o.Where.Add(f, 0, "")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted run")
	cli.CompleteFiles(cmd, "tasks", evalcmd.TaskNames)
	cli.Require(cmd, "out")
	cli.Inputs(cmd, "data", "tasks", "task-data")
	cli.MayBeEmpty(cmd, "metric", "in-memory")

	return cmd
}
