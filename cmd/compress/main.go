// Command compress makes language-model checkpoints smaller and says what it cost. Every verb is a thin layer over one
// library call; run "compress help VERB" for a verb's flags and a worked example.
//
// Exit codes: 0 done, 1 the work failed, 2 wrong use, 130 interrupted (what can be resumed is kept).
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/usage"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns its exit code. The first interrupt cancels the work, a second one ends the
// process at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	signal.Ignore(syscall.SIGXFSZ) // a limit on file sizes is then an error of the write, not the end of the process
	a := &app{stdout: stdout, stderr: stderr, args: args}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		a.printError(colorprofile.NewWriter(stderr, os.Environ()), root, err)
	}
	return a.exitCode(err)
}

// app is one run of the program.
type app struct {
	stdout, stderr io.Writer
	args           []string
	working        bool // the command line was understood and the work has begun
	keeps          bool // the verb can continue an interrupted output
}

// root is the command with every verb: this list is the whole command table.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "compress",
		Short: "Make language models smaller and measure what it costs",
		Long: "compress prunes checkpoints in the Hugging Face layout, measures them before and after, and checks, converts and runs them.\n" +
			"It needs no Python, no network and no GPU. Start with: compress demo",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(c, args[0])
			}
			return nil
		},
		RunE:         func(c *cobra.Command, _ []string) error { return c.Help() },
		Version:      compress.Version(),
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(usage.Help)
	root.SetHelpCommand(a.helpCmd())
	root.AddCommand(
		a.inspectCmd(), a.tokenizeCmd(), a.forwardCmd(), a.generateCmd(), a.pplCmd(),
		a.pruneCmd(), a.convertCmd(), a.demoCmd(), a.benchCmd(), a.reportCmd(), a.versionCmd(),
	)
	return root
}
