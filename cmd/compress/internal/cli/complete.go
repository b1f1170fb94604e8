package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/internal/strictyaml"
)

// completionCmd adds the verb that prints what a shell needs to complete command lines: cobra's, which would answer a
// shell that it does not know with its help as if nothing were wrong.
func completionCmd(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args = missingVerb
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

// Complete offers fixed words as a flag's values in the shell.
func Complete(cmd *cobra.Command, flag string, words ...string) {
	complete(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err := cmd.Flags().SetAnnotation(flag, wordsMark, words); err != nil {
		panic("compress: words for a flag that is not there")
	}
}

// wordsMark is the annotation of a flag with the words that it knows, which may not be all that it takes.
const wordsMark = "compress-words"

// OneOf says all values that a flag can have, and offers them in the shell. Others are refused before the work,
// and by run before any job.
func OneOf(cmd *cobra.Command, flag string, words ...string) {
	Complete(cmd, flag, words...)
	closed(cmd, flag, words)
}

// OneDType is OneOf for a flag that [DType] reads, with further words.
func OneDType(cmd *cobra.Command, flag string, more ...string) {
	words := more
	for _, t := range dtypes {
		words = append(words, t.short)
	}
	Complete(cmd, flag, words...)
	for _, t := range dtypes {
		words = append(words, t.long)
	}
	closed(cmd, flag, words)
}

func closed(cmd *cobra.Command, flag string, words []string) {
	if err := cmd.Flags().SetAnnotation(flag, closedMark, words); err != nil {
		panic("compress: values of a flag that is not there")
	}
}

// CheckWord tells what is wrong with a value of a flag that can have certain values only.
func CheckWord(f *pflag.Flag, text string) error {
	words := f.Annotations[closedMark]
	if words == nil || text == f.DefValue || text == "" && TakesEmpty(f) || slices.Contains(words, text) {
		return nil
	}
	near := strictyaml.Suggest(text, words)
	if !strings.Contains(near, "did you mean") { // it lists them, sorted
		near = ""
	}
	return Usagef("--%s %.60q; known: %s%s", f.Name, text, strings.Join(words, ", "), near)
}

// checkWords checks the flags that are given.
func checkWords(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) { err = errors.Join(err, CheckWord(f, f.Value.String())) })
	return err
}

// CompleteList offers fixed words for each part of a flag's value between commas.
func CompleteList(cmd *cobra.Command, flag string, words ...string) {
	complete(cmd, flag, func(_ *cobra.Command, _ []string, begun string) (list []string, _ cobra.ShellCompDirective) {
		before := begun[:strings.LastIndexByte(begun, ',')+1]
		for _, w := range words {
			list = append(list, before+w)
		}
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}

// CompleteFiles is CompleteList for a flag that takes names of files too, and whose words take time to list.
func CompleteFiles(cmd *cobra.Command, flag string, words func() []string) {
	complete(cmd, flag, func(_ *cobra.Command, _ []string, begun string) (list []string, _ cobra.ShellCompDirective) {
		before := begun[:strings.LastIndexByte(begun, ',')+1]
		for _, w := range words() {
			list = append(list, before+w)
		}
		return list, cobra.ShellCompDirectiveDefault
	})
}

// unasked marks a verb of a command line that is not the shell's question about how it could go on.
const unasked = "compress_unasked"

// asks reports whether a command line is that question, or none yet.
func asks(args []string) bool {
	return len(args) == 0 || args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd
}

// complete registers what completes a flag, where the shell asks. Cobra keeps that for the life of the process, and
// with it the verb and all that it holds, so that a process of many command lines would grow with each.
func complete(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if cmd.Annotations[unasked] != "" && cmd.Flags().Lookup(flag) != nil {
		return
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic("compress: completion for a flag that is not there")
	}
}

// completePaths says for the flags without words of their own, and for arguments, whether they name folders,
// files or neither: the placeholder of a flag says what it names. What the shell shows beside a flag is its
// description without the placeholder.
func completePaths(cmd *cobra.Command) {
	if len(cmd.ValidArgs) == 0 && cmd.ValidArgsFunction == nil && cmd.RunE != nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
		if arguments := argumentsOf(cmd); strings.ToLower(arguments) != arguments {
			cmd.ValidArgsFunction = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
		}
	}

	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		placeholder, text := Placeholder(f)
		f.Usage = text
		if _, has := cmd.GetFlagCompletionFunc(f.Name); has || f.Value.Type() == "bool" || f.Name == "help" {
			return
		}

		directive := cobra.ShellCompDirectiveNoFileComp
		switch {
		case strings.HasPrefix(placeholder, "DIR"), placeholder == "MODEL", placeholder == "ADAPTER":
			directive = cobra.ShellCompDirectiveFilterDirs
		case strings.HasPrefix(placeholder, "FILE"), placeholder == "PATH":
			directive = cobra.ShellCompDirectiveDefault
		}

		complete(cmd, f.Name, cobra.FixedCompletions(nil, directive))
	})

	for _, sub := range cmd.Commands() {
		completePaths(sub)
	}
}

// argumentsOf is what a verb's usage line says about its arguments: all before the first flag.
func argumentsOf(cmd *cobra.Command) string {
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	arguments, _, _ = strings.Cut(arguments, "--")
	return arguments
}
