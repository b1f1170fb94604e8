package main

import (
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/modelcmd"
)

func tokenizeCmd(a *cli.App) *cobra.Command {
	var o modelcmd.TokenizeOptions
	cmd := a.Verb(cli.Verb{
		Use: "tokenize MODEL (--text S | --file F)", Short: "Turn text into token ids, or back",
		Long: "Prints the token ids of a text, one output line for each input line. MODEL is a folder or a " +
			"tokenizer.json. A line ends at a line feed alone: a carriage return before it is part of the text. A " +
			".jsonl file holds one JSON string, or an object with \"text\", a line. With --json: one array of " +
			"arrays. --decode reads ids, separated by blanks or commas, and prints text.",
		Example: "compress tokenize testdata/nano/base --text 'Question: 14 + 6 ='",
		Args:    cobra.ExactArgs(1),
		Run:     func(j *cli.Job, args []string) (any, error) { return modelcmd.Tokenize(j, args[0], o) },
	})

	f := cmd.Flags()
	f.StringVar(&o.Text, "text", "", "the text itself")
	f.StringVar(&o.File, "file", "", "file of texts; one a line, - is stdin")
	f.BoolVar(&o.Decode, "decode", false, "turn ids into text")
	f.BoolVar(&o.NoSpecial, "no-special", false, "add no special tokens; with --decode they are left out of the text")
	cmd.MarkFlagsOneRequired("text", "file")
	cmd.MarkFlagsMutuallyExclusive("text", "file")
	cli.Inputs(cmd, "file")
	cli.MayBeEmpty(cmd, "text")

	return cmd
}
