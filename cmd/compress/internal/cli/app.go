// Package cli is what the verbs of the command line share: the common flags and what comes of them ([Verb],
// [Job]), errors with exit codes and hints, progress, places that may be written, journals of long work,
// tables, units, and the opening of models and their texts.
//
// A verb is a [Verb] whose Run does the work and returns what goes into --json and --report, a struct with JSON
// tags. Its flags are added to the command that [App.Verb] returns:
//
//	func countCmd(a *cli.App) *cobra.Command {
//		out := ""
//		cmd := a.Verb(cli.Verb{
//			Use: "count MODEL --out FILE", Short: "…", Long: "…",
//			Example: "compress count testdata/nano/base --out n.json",
//			Args: cobra.ExactArgs(1),
//			Run:  func(j *cli.Job, args []string) (any, error) { return counting.Run(j, args[0], out) },
//		})
//		cmd.Flags().StringVar(&out, "out", "", "`FILE` file to write")
//		cli.Require(cmd, "out")
//		return cmd
//	}
//
// The description of a flag begins with the placeholder for its value in back quotes: DIR and FILE are completed as
// such by the shell. A default that is not the value itself is said in words at the end: (default: …).
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// App is one run of the program.
type App struct {
	stdout, stderr io.Writer
	lost           *printed // knows whether stdout took everything
	args           []string
	working        bool // the command line was understood and the work has begun
	resumes        bool // the verb can continue an interrupted output
	results        []any
	rehearses      bool // command lines are checked, no work is done
}

// New makes the run of a command line, without the program's name.
func New(args []string, stdout, stderr io.Writer) *App {
	a := &App{args: args, stderr: stderr}
	a.stdout, a.lost = keeping(stdout)
	return a
}

// Rehearse makes Execute check a command line without doing the work: see [Verb].
func (a *App) Rehearse() { a.rehearses = true }

// Results are what the verbs of the run returned: one, or none after a failure.
func (a *App) Results() []any { return a.results }

// Execute runs the command line on a command with its verbs, says in one line what is wrong, and returns the exit code:
// 0 done, 1 the work failed or not all of its results could be printed, 2 wrong use, 130 ctx was cancelled.
func (a *App) Execute(ctx context.Context, root *cobra.Command) int {
	return a.exitCode(a.Run(ctx, root))
}

// Run is [App.Execute] with the error in place of an exit code.
func (a *App) Run(ctx context.Context, root *cobra.Command) error {
	root.Args = missingVerb
	root.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if missing := missingVerb(c, c.Flags().Args()); missing != nil { // the arguments before the faulty flag
			return missing
		}
		return flagError(c, err)
	})
	root.SetHelpFunc(Help)
	root.SetHelpCommand(helpCmd(root))
	root.SetArgs(a.args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	completionCmd(root)
	if len(a.args) > 0 && strings.HasPrefix(a.args[0], cobra.ShellCompRequestCmd) {
		completePaths(root)
	}

	err := root.ExecuteContext(ctx)
	if a.lost != nil && a.lost.err != nil && !errors.Is(err, context.Canceled) {
		a.working = true // the command line was right
		if err == nil || errors.Is(err, a.lost.err) {
			err = fmt.Errorf("%w: %w (HINT: look where stdout leads to)", errPrint, a.lost.err)
		}
	}
	if err != nil {
		a.printError(Styled(a.stderr), root, err)
	}

	return err
}

// Verb describes a command with the common flags.
type Verb struct {
	Use     string // name, arguments and the flags that must be given
	Short   string // one sentence
	Long    string // paragraphs, each without line breaks, with an empty line between them
	Example string // lines that can be copied
	Args    cobra.PositionalArgs
	// Habit lists the flags whose values people write as further arguments, since other tools take them so: the
	// message about too many arguments then shows the command line with these flags.
	Habit []string
	// Unused lists the common flags that mean nothing to the verb. Help leaves them out; they are accepted all the
	// same, so that a script can give every verb the same ones.
	Unused  []string
	Local   bool // its arguments are folders of this machine alone, which it changes: no names of the hub's models
	Resumes bool // an interrupted run is continued by --resume, which the message about an interrupt then says
	// Check finds what is wrong with flags and arguments by themselves: no model, no data and no output is
	// looked at, which need not be there yet. Run checks the same. nil: what cobra checks, and OneOf, is all.
	Check func(j *Job, args []string) error
	// Run does the work. It returns what goes into --json and --report: a struct or map with JSON tags.
	Run func(j *Job, args []string) (any, error)
}

// Verb makes the command of a verb. The common flags are there; the verb's own are added by the caller.
func (a *App) Verb(v Verb) *cobra.Command {
	j := &Job{app: a}
	cmd := &cobra.Command{Use: v.Use, Short: v.Short, Long: v.Long, Example: v.Example, Args: a.checkArgs(v)}
	if !asks(a.args) {
		cmd.Annotations = map[string]string{unasked: "true"}
	}
	cmd.RunE = func(c *cobra.Command, args []string) error {
		a.working, a.resumes = true, v.Resumes
		if a.rehearses {
			return j.rehearse(c, args, v.Check)
		}
		return j.run(c, v, args)
	}

	f := cmd.Flags()
	f.SetNormalizeFunc(dashes)
	f.StringVar(&j.device, "device", "auto",
		"`NAME` where to compute: auto (a GPU if there is one, otherwise the CPU), cpu, cuda:N for a GPU, or ref "+
			"(slow reference code)")
	f.IntVar(&j.threads, "threads", 0, "`N` number of CPU threads (default: one for each processor)")
	f.Uint64Var(&j.Seed, "seed", 0, "`N` random seed (default: 0)")
	f.BoolVarP(&j.Quiet, "quiet", "q", false, "print results only: no progress and no remarks on stderr")
	f.BoolVar(&j.JSON, "json", false, "print the result as JSON")
	f.StringVar(&j.report, "report", "", "`FILE` also write the result and the settings to this JSON file")
	Complete(cmd, "device", "auto", "cpu", "ref", "cuda:0")

	for _, name := range v.Unused {
		f.Lookup(name).Hidden = true
	}

	return cmd
}

// dashes takes flags with underscores, which other tools' have, for those with dashes.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// Require marks flags that must be given.
func Require(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic("compress: a required flag that is not there")
		}
	}
}

// Alias keeps a flag's earlier name working.
func Alias(cmd *cobra.Command, old, name string) {
	earlier := cmd.Flags().GetNormalizeFunc()
	cmd.Flags().SetNormalizeFunc(func(f *pflag.FlagSet, given string) pflag.NormalizedName {
		if given == old {
			return pflag.NormalizedName(name)
		}
		return earlier(f, given)
	})
}

// What flags are marked with.
const (
	inputMark  = "compress-input"
	emptyMark  = "compress-empty"
	closedMark = "compress-closed"
	zeroMark   = "compress-not-zero"
)

// Inputs marks flags that name files or folders to read, so that no output of the run replaces one of them.
// Arguments of the command line always count as inputs. A flag that takes one of them refuses a second.
func Inputs(cmd *cobra.Command, flags ...string) {
	mark(cmd, inputMark, flags)
	for _, flag := range flags {
		if f := cmd.Flags().Lookup(flag); f.Value.Type() == "string" {
			f.Value = &single{Value: f.Value, flag: f}
		}
	}
}

// single is the value of a flag that takes one input. The flag library would take the last of several without a word.
type single struct {
	pflag.Value
	flag *pflag.Flag
}

// Set implements pflag.Value.
func (s *single) Set(text string) error {
	if s.flag.Changed { // on a command line: run only tries values
		return fmt.Errorf("it is given twice, first as %q, and takes one", s.Value)
	}
	return s.Value.Set(text)
}

// Try gives a flag a value to see whether it takes it. Unlike a command line, it may do so any number of times.
func Try(f *pflag.Flag, text string) error {
	if s, ok := f.Value.(*single); ok {
		return s.Value.Set(text)
	}
	return f.Value.Set(text)
}

// MayBeEmpty marks flags for which an empty text is a value; for the others it is a slip, such as a variable
// that is not set.
func MayBeEmpty(cmd *cobra.Command, flags ...string) { mark(cmd, emptyMark, flags) }

func mark(cmd *cobra.Command, as string, flags []string) {
	for _, flag := range flags {
		if err := cmd.Flags().SetAnnotation(flag, as, []string{"true"}); err != nil {
			panic("compress: a mark for a flag that is not there")
		}
	}
}
