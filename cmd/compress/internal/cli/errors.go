package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"syscall"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/terminal"
	"github.com/modelcompress/compress/cmd/compress/internal/usage"
	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/prune"
	"github.com/modelcompress/compress/prune/fitness"
	"github.com/modelcompress/compress/safetensors"
)

// Exit codes of the program.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// usageError is a wrong command line: exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// Usagef is an error about a wrong command line, which ends the program with exit code 2.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Usage makes an error one about a wrong command line; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// misuse lists the library errors that mean a wrong command line rather than failed work.
var misuse = []error{
	safetensors.ErrExists, checkpoint.ErrExists, checkpoint.ErrTarget, checkpoint.ErrInPlace, lm.ErrExists,
	lm.ErrInPlace, lm.ErrOtherJob, lm.ErrSavePacked, device.ErrUnknown, corpus.ErrOptions,
	prune.ErrOptions, prune.ErrUnknown, prune.ErrNoCalibration, fitness.ErrOptions, fitness.ErrOverlap, gp.ErrOptions,
	gp.ErrGrammar,
	lora.ErrExists, lora.ErrMethod, lora.ErrOption, lora.ErrExtract, lora.ErrOtherBase,
	edit.ErrMethod, edit.ErrOptions, task.ErrUnknownTask,
	scratch.ErrForeign, merge.ErrExists, merge.ErrInPlace, merge.ErrOption, merge.ErrOtherJob, merge.ErrRecipe,
	merge.ErrJournal,
}

// hints says, for ways of failing that a user can do something about, what that is.
var hints = []struct {
	err  error
	hint string
}{
	{safetensors.ErrExists, "choose another --out, or pass --overwrite"},
	{checkpoint.ErrExists, "choose another --out, or pass --overwrite"},
	{merge.ErrMemory, "raise --memory"},
	{merge.ErrNonFinite, "find the damage with compress inspect --verify, or pass --allow-nonfinite"},
	{merge.ErrMissing, "--missing merge, copy or skip says what becomes of such tensors"},
	{safetensors.ErrTruncated, "the download or copy may be incomplete: fetch the file again"},
	{safetensors.ErrMissingShard, "fetch the missing file, or the whole folder again"},
	{safetensors.ErrNoModel, "give a folder that holds model.safetensors, or the shards and their index"},
	{safetensors.ErrNoSpace, "free space, or choose another disk with --out"},
	{safetensors.ErrFileSize, "raise the limit on file sizes (ulimit -f), or use another file system"},
	{syscall.ENOSPC, "free space, or choose another disk with --out"},
	{lora.ErrOtherRun, "--resume takes the flags, the data and the base that began the run; --overwrite starts over"},
	{gp.ErrJournal, "--resume takes the command that began the search; --overwrite starts over"},
	{corpus.ErrShort, "use a smaller --seqlen or a longer text"},
	{corpus.ErrNoTokenizer, "give token ids (.safetensors or .json), or put tokenizer.json into the model's folder"},
}

func (a *App) exitCode(err error) int {
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case !a.working || IsUsage(err):
		return exitUsage
	}
	return exitFailed
}

// IsUsage tells an error about a wrong command line from one about the work.
func IsUsage(err error) bool {
	var u usageError
	if errors.As(err, &u) {
		return true
	}

	for _, m := range misuse {
		if errors.Is(err, m) {
			return true
		}
	}

	return false
}

// printError writes the one line of a failed run.
func (a *App) printError(w io.Writer, root *cobra.Command, err error) {
	verb := root
	if c, _, findErr := root.Find(a.args); findErr == nil {
		verb = c
	}

	text := terminal.Line(plainer(verb, oneLine(err)))
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
		if a.resumes {
			text += " (HINT: the same command with --resume continues)"
		}
	}

	style := lipgloss.NewStyle().Bold(true).Foreground(usage.Colours().ErrorHeader[1])
	fmt.Fprintf(w, "%s %s\n", style.Render(verb.CommandPath()+":"), text)
}

// oneLine gives an error as one line, with a hint where there is one and the error has none yet.
func oneLine(err error) string {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if strings.Contains(text, "HINT:") {
		return text
	}
	if strings.Contains(text, "path escapes from parent") { // of package os, which has no name for it
		return text + " (HINT: a link leads out of the folder and is not followed; copy the folder with cp -rL)"
	}

	for _, h := range hints {
		if errors.Is(err, h.err) {
			return text + " (HINT: " + h.hint + ")"
		}
	}

	return text
}

// groups are what the flag library says about flags that belong together, and how that is said here.
var groups = []struct {
	form *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`^at least one of the flags in the group \[(\S+) (\S+)\] is required$`), "give --$1 or --$2"},
	{
		regexp.MustCompile(`^if any flags in the group \[(\S+) (\S+)\] are set none of the others can be.*$`),
		"--$1 and --$2 exclude each other",
	},
}

// missingFlags is what the flag library says about flags that must be given.
var missingFlags = regexp.MustCompile(`^required flag\(s\) "(.+)" not set$`)

// plainer words what the flag library says about the flags of a command.
func plainer(c *cobra.Command, text string) string {
	for _, g := range groups {
		text = g.form.ReplaceAllString(text, g.text)
	}

	found := missingFlags.FindStringSubmatch(text)
	if found == nil {
		return text
	}

	var names, terms []string
	for name := range strings.SplitSeq(found[1], `", "`) {
		names = append(names, "--"+name)
		if f := c.Flags().Lookup(name); f != nil {
			terms = append(terms, usage.Term(f))
		}
	}

	verb := "is"
	if len(names) > 1 {
		verb = "are"
	}

	return fmt.Sprintf("%s %s not given (HINT: add %s)", strings.Join(names, " and "), verb, strings.Join(terms, " "))
}
