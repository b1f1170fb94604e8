package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/merging"
	"github.com/modelcompress/compress/cmd/compress/internal/shell"
)

func mergeSearchCmd(a *shell.App) *cobra.Command {
	var o merging.SearchOptions
	cmd := a.Verb(shell.Verb{
		Use: "search RECIPE.yaml --data FILE --out DIR", Short: "Find the open numbers of a recipe",
		Long: "Finds the numbers that a recipe leaves open, written {search: [low, high]}, by an evolution strategy (CMA-ES) that merges " +
			"every candidate and measures its loss on held-out texts; several --data are weighted as FILE=WEIGHT. The folder gets " +
			"best.yaml, the recipe with the best numbers, and a journal from which an interrupted search continues with --resume.",
		Example: "compress merge search recipe.yaml --data held-out.txt --out found",
		Args:    cobra.ExactArgs(1), Resumes: true,
		Run: func(j *shell.Job, args []string) (any, error) { return merging.Search(j, args[0], o) },
	})
	f := cmd.Flags()
	f.StringArrayVar(&o.Data, "data", nil, "held-out text, JSONL or token ids, with =WEIGHT if it should count more or less than 1; several times for several")
	f.StringVar(&o.Out, "out", "", "folder to write")
	f.IntVar(&o.Generations, "generations", 20, "generations after the starting point")
	f.IntVar(&o.Population, "population", 0, "candidates of a generation; 0 is 4 + 3·ln(number of open numbers)")
	f.Float64Var(&o.Sigma, "sigma", 0.25, "spread at the start, as a share of each range")
	f.IntVar(&o.SeqLen, "seqlen", 0, "tokens of a window; 0 is 2048, or the model's positions if they are fewer")
	f.IntVar(&o.Limit, "limit", 0, "use the first windows of each text only; 0 is all")
	f.StringVar(&o.Memory, "memory", "1GiB", "memory of a merge for buffers and statistics; the merged model comes on top")
	f.BoolVar(&o.Resume, "resume", false, "continue an interrupted search")
	shell.Require(cmd, "data", "out")
	return cmd
}
