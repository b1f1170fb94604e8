package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/reportcmd"
)

func schemaCmd(a *cli.App) *cobra.Command {
	var cmd *cobra.Command
	var input bool
	cmd = a.Verb(cli.Verb{
		Use:   "schema [VERB]",
		Short: "Print the JSON Schema of a verb's report, or the format of its input files",
		Long: "Prints the JSON Schema (draft 2020-12) of what a verb prints with --json and writes with " +
			"--report; without a verb, lists the verbs that have one.\n\n" +
			"Every report begins with the same keys: command, args, flags, version, seed, started, finished, " +
			"seconds, cpu_seconds, peak_memory_bytes, and where they apply device, fallbacks and remarks.\n\n" +
			"With --input it prints keys and an example of the files that a verb reads: overrides, edits, " +
			"hyper-parameters of editors, and plans.",
		Example: "compress schema ppl\ncompress schema lora train\ncompress schema --input\n" +
			"compress schema --input prune",
		Unused: []string{"device", "threads", "seed"},
		Args:   cobra.MaximumNArgs(3),
		Run: func(j *cli.Job, args []string) (any, error) {
			if input {
				return reportcmd.InputFormats(j, cmd.Root(), strings.Join(args, " "))
			}
			return reportcmd.Schema(j, cmd.Root(), strings.Join(args, " "))
		},
	})

	cmd.Flags().BoolVar(&input, "input", false,
		"print the format of the files that the verb reads, by its name or theirs, instead of the schema of its report")
	cmd.ValidArgsFunction = func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return reportcmd.SchemaVerbs(c.Root()), cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}
