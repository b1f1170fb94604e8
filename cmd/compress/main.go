// Command compress prunes, merges, adapts, edits and evaluates language models, and says what it cost. Run "compress
// help VERB" for a verb's flags and a worked example.
//
// Exit codes: 0 done, 1 the work failed, 2 wrong use, 130 interrupted (what can be resumed is kept).
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/system"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns its exit code. The first interrupt, or end of the terminal, cancels
// the work, a second one ends the process at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), ends()...)
	defer stop()
	context.AfterFunc(ctx, stop)
	system.LimitsAreErrors()
	a := cli.New(args, stdout, stderr)
	return a.Execute(ctx, root(a))
}

// ends are the signals that end the work. One that was ignored when the process began, as nohup does, stays ignored.
func ends() []os.Signal {
	list := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

// root is the command with every verb: this list is the whole command table.
func root(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "compress",
		Short: "Prune, quantise, merge, adapt, edit, measure and serve language models",
		Long: "compress works on language models in the Hugging Face layout (folders with safetensors files, " +
			"quantised ones too) and in GGUF files: it makes them smaller (fewer bits, weights set to zero, whole " +
			"layers or neurons left out), merges them, trains adapters such as LoRA, changes single facts, and " +
			"measures what each of these costs in perplexity and on benchmark tasks. It also serves models and " +
			"adapters side by side as OpenAI's API does.\n\n" +
			"It reads mergekit's recipes, PEFT's adapters and lm-evaluation-harness' task files, and what it writes " +
			"loads in transformers, PEFT and llama.cpp. It is one program that needs no Python, and no network but " +
			"for pull, and runs on the CPU or on an NVIDIA GPU. Inputs are never changed, outputs appear when they " +
			"are complete, and the same command with the same seed gives the same bytes.\n\n" +
			"compress VERB --help explains a verb and its flags; compress demo tries everything in a minute.",
		Example: "compress prune MODEL --calib text.txt --sparsity 0.5 --ppl test.txt --out pruned\n" +
			"compress merge recipe.yaml --out merged\n" +
			"compress eval merged --tasks my-task.yaml --out results",
		Version: compress.Version(),
	}

	for _, g := range []struct {
		title string
		verbs []*cobra.Command
	}{
		{"Look at a model", []*cobra.Command{pullCmd(a), inspectCmd(a), tokenizeCmd(a), forwardCmd(a), generateCmd(a)}},
		{"Make it smaller", []*cobra.Command{pruneCmd(a), quantizeCmd(a), imatrixCmd(a), searchCmd(a), convertCmd(a)}},
		{"Combine models", []*cobra.Command{mergeCmd(a), conflictCmd(a), expertsCmd(a)}},
		{"Adapt", []*cobra.Command{loraCmd(a)}},
		{"Edit facts", []*cobra.Command{editCmd(a), editevalCmd(a)}},
		{"Measure", []*cobra.Command{pplCmd(a), evalCmd(a), benchCmd(a)}},
		{"Serve", []*cobra.Command{serveCmd(a)}},
		{"Automate and report", []*cobra.Command{runCmd(a), workerCmd(a), reportCmd(a), schemaCmd(a)}},
		{"The program", []*cobra.Command{docsCmd(a), demoCmd(a), manCmd(a), versionCmd(a)}},
	} {
		c.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, verb := range g.verbs {
			verb.GroupID = g.title
			c.AddCommand(verb)
		}

		c.SetHelpCommandGroupID(g.title) // the last group has them, beside the manual
		c.SetCompletionCommandGroupID(g.title)
	}

	return c
}
