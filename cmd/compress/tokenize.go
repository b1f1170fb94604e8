package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/modelcmd"
)

func tokenizeCmd(a *cli.App) *cobra.Command {
	var o modelcmd.TokenizeOptions
	cmd := a.Verb(cli.Verb{
		Use:   "tokenize MODEL (--text S | --file F)",
		Short: "Turn text into token ids, or back",
		Long: "Prints the token ids of a text, one line of output for each line of input. MODEL is a folder, a " +
			".gguf file or a tokenizer.json. With --decode it reads ids, separated by blanks or commas, and " +
			"prints the text; with --json it prints one array of arrays.\n\n" +
			"Only a line feed ends a line: a carriage return before it is part of the text. In a .jsonl file " +
			"each line is a string, or an object with text.",
		Example: "compress tokenize ./my-model --text 'The capital of France is'",
		Habit:   []string{"text"}, Unused: []string{"device", "threads", "seed"},
		Args: cobra.ExactArgs(1),
		Run:  func(j *cli.Job, args []string) (any, error) { return modelcmd.Tokenize(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Text, "text", "", "`TEXT` text to tokenize")
	f.StringVar(&o.File, "file", "", "`FILE` file with a text a line, - for stdin")
	f.BoolVar(&o.Decode, "decode", false, "turn ids into text")
	f.BoolVar(&o.NoSpecial, "no-special", false, "add no special tokens; with --decode leave them out")
	cmd.MarkFlagsOneRequired("text", "file")
	cmd.MarkFlagsMutuallyExclusive("text", "file")
	cli.Inputs(cmd, "file")
	cli.MayBeEmpty(cmd, "text")

	return cmd
}
