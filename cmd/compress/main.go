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

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns its exit code. The first interrupt, or end of the terminal, cancels
// the work, a second one ends the process at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), ends()...)
	defer stop()
	context.AfterFunc(ctx, stop)
	signal.Ignore(syscall.SIGXFSZ) // a limit on file sizes is then an error of the write, not the end of the process
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
		Short: "Make language models smaller and measure what it costs",
		Long: "compress prunes checkpoints in the Hugging Face layout, measures them before and after, and checks, " +
			"converts and runs them.\n" +
			"It needs no Python, no network and no GPU. Start with: compress demo",
		Version: compress.Version(),
	}

	c.AddCommand(
		inspectCmd(a),
		tokenizeCmd(a),
		forwardCmd(a),
		generateCmd(a),
		pplCmd(a),
		evalCmd(a),
		editCmd(a),
		editevalCmd(a),
		pruneCmd(a),
		searchCmd(a),
		runCmd(a),
		workerCmd(a),
		convertCmd(a),
		mergeCmd(a),
		conflictCmd(a),
		expertsCmd(a),
		loraCmd(a),
		demoCmd(a),
		benchCmd(a),
		reportCmd(a),
		schemaCmd(a),
		manCmd(a),
		versionCmd(a),
	)

	return c
}
