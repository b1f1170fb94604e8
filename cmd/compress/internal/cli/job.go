package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/safefile"
	models "github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge"
)

// Job is one run of a verb: the flags that all verbs have, and what the run says about itself. It is used by
// one goroutine.
type Job struct {
	Ctx    context.Context // cancelled by an interrupt
	Seed   uint64          // of everything that is drawn
	Quiet  bool            // no progress, no remarks; results are printed all the same
	JSON   bool            // stdout is for the machine-readable result
	Inputs []string        // files and folders that the command line names to be read

	app     *App
	start   time.Time
	pace    pace // of the stages of work that are shown
	dev     kernels.Device
	verb    *cobra.Command
	device  string
	threads int
	report  string
	remarks []string
	opened  models.Record     // the quantised models that the run reads
	exact   bool              // it was said that --fast does nothing on the device
	given   []string          // arguments of the verb as the user typed them
	typed   map[string]string // names on the hub, by the folders that they stand for
	printed []byte            // what work that may be done again has written to stdout
	repeat  []byte            // what of it comes again
}

// Elapsed is how long the run has taken so far.
func (j *Job) Elapsed() time.Duration { return time.Since(j.start) }

// run does the work of a verb and what comes before and after it.
func (j *Job) run(c *cobra.Command, v Verb, args []string) error {
	j.verb = c
	j.Ctx, j.start = models.Recorded(c.Context(), &j.opened), time.Now()
	if err := errors.Join(checkEmpty(c, args), checkWords(c), CheckZeros(c.Flags()), checkDisabled()); err != nil {
		return err
	}

	j.given = args
	args, err := j.findModels(c, v, args)
	if err != nil {
		return err
	}

	if err := j.findData(c); err != nil {
		return err
	}

	j.Inputs = inputs(c, args)
	if err := j.checkReport(c); err != nil {
		return err
	}
	defer j.close()

	note := j.begin()
	var result any
	work := func() (err error) { result, err = v.Run(j, args); return err }
	err = mmapsafe.Do(work)
	if j.fallBack(err) {
		err = mmapsafe.Do(work)
	}
	note.end(err)
	if err != nil {
		return j.explained(err, note)
	}

	for _, text := range j.SourceRemarks() {
		j.Remark("%s", text)
	}

	return j.Finish(result)
}

// rehearse does what can be done of a run before there are inputs.
func (j *Job) rehearse(c *cobra.Command, args []string, check func(j *Job, args []string) error) error {
	j.verb = c
	j.Ctx = c.Context()
	j.start = time.Now()
	_, err := j.Threads()
	if err = errors.Join(checkEmpty(c, args), checkWords(c), CheckZeros(c.Flags()), err); err != nil || check == nil {
		return err
	}
	return check(j, args)
}

// Threads is what --threads says, for work that needs no device; 0 is one for each processor.
func (j *Job) Threads() (int, error) {
	if most := max(1024, 8*runtime.NumCPU()); j.threads < 0 || j.threads > most {
		return 0, Usagef("--threads %d: want 0 to %d", j.threads, most)
	}
	return j.threads, nil
}

func (j *Job) close() {
	if j.dev != nil {
		j.dev.Close()
	}
}

// Reports reports whether the result will be printed or written, so that it has to be complete.
func (j *Job) Reports() bool { return j.JSON || j.report != "" }

// Finish writes the machine-readable forms of a result. It is called with what the work returned; work that
// only ends by an interrupt calls it itself.
func (j *Job) Finish(result any) error {
	j.app.results = append(j.app.results, result)
	if !j.Reports() {
		return nil
	}

	full, err := j.Record(result)
	if err != nil {
		return err
	}

	if j.report != "" {
		if err := j.Write(j.report, full); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}

	if j.JSON {
		if _, isRaw := result.(Raw); isRaw {
			full, err = json.Marshal(result)
			full = append(full, '\n')
		}

		if isTerminal(j.app.stdout) {
			full = ShownJSON(full)
		}
		if err == nil {
			_, err = j.app.stdout.Write(full)
		}
	}

	return err
}

// Raw marks a result that --json prints as it is, without the facts about the run.
type Raw interface {
	Raw() // does nothing
}

// Record is a result as one flat JSON object behind the [Head] of the run: what --report writes, and what
// belongs into a report.json beside an output. A result that is no object stands under "result". What the head
// says, a result does not say again.
func (j *Job) Record(result any) ([]byte, error) {
	data, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}

	var own map[string]json.RawMessage
	if err := json.Unmarshal(data, &own); err != nil {
		own = map[string]json.RawMessage{"result": data}
	}

	head, err := json.Marshal(j.head())
	if err != nil {
		return nil, err
	}

	var said map[string]json.RawMessage
	if err := json.Unmarshal(head, &said); err != nil {
		return nil, err
	}

	maps.DeleteFunc(own, func(key string, _ json.RawMessage) bool { return said[key] != nil })
	rest, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}

	if len(own) > 0 {
		head = append(append(head[:len(head)-1], ','), rest[1:]...)
	}

	var out bytes.Buffer
	err = json.Indent(&out, head, "", "  ")
	out.WriteByte('\n')

	return out.Bytes(), err
}

// WriteFile writes a file of a folder that the program fills so that it is there completely or not at all.
func WriteFile(path string, data []byte) error { return safefile.WriteFile(path, data, 0o644) }

// Write writes a file that a flag names: through links to the file that they lead to, which is there completely
// or not at all, and into pipes, devices and what a process has open.
func (j *Job) Write(path string, data []byte) error {
	to, direct, err := safefile.Target(path)
	switch {
	case err != nil:
		return err
	case !direct:
		return safefile.WriteFile(to, data, 0o644)
	}

	if st, err := os.Stat(to); err == nil && st.Mode()&fs.ModeNamedPipe != 0 {
		j.Note("%s is a pipe: this waits until it is read", path)
	}

	return safefile.WriteInto(j.Ctx, to, data)
}

// Note writes a remark to stderr, as one line, unless --quiet.
func (j *Job) Note(format string, args ...any) {
	if !j.Quiet {
		fmt.Fprintln(j.app.stderr, ShownLine(fmt.Sprintf(format, args...)))
	}
}

// Aside writes to stderr what only helps a person who looks on, such as the lines of a file that an error is
// about: nothing where stderr is no terminal, so that an error stays one line there.
func (j *Job) Aside(text string) {
	if isTerminal(j.app.stderr) && !j.Quiet {
		for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
			fmt.Fprintln(j.app.stderr, ShownLine(line))
		}
	}
}

// Invite asks a person at a terminal for the next line.
func (j *Job) Invite(text string) {
	if isTerminal(j.app.stderr) && !j.Quiet {
		fmt.Fprint(j.app.stderr, text)
	}
}

// Excerpted shows a person the lines of a recipe that an error is about, and returns the error.
func (j *Job) Excerpted(err error) error {
	j.Aside(merge.Excerpts(err))
	return err
}

// Remark is a Note that also stands in the report, under "remarks": what a reader of the result must know.
func (j *Job) Remark(format string, args ...any) {
	j.Note(format, args...)
	j.remarks = append(j.remarks, fmt.Sprintf(format, args...))
}

// SourceRemarks is what a reader of the result has to know of the models that were read so far: which have the values
// of a quantised form. The report has it without being told; pages are told.
func (j *Job) SourceRemarks() []string { return models.Remarks(j.Ctx) }

// Out is where results for people go: nowhere with --json.
func (j *Job) Out() io.Writer {
	if j.JSON {
		return io.Discard
	}
	if j.device != "auto" || j.dev == nil || j.dev.Info().Host {
		if j.repeat == nil {
			return j.app.stdout
		}
	}
	return (*printing)(j)
}

// isTerminal reports whether a person reads what is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(f.Fd())
}

// Stream is Out for text that a model wrote, or that tokens spell: every byte of it for pipes and files, and
// what shows as it is on a terminal, which the escape codes of a model must not steer either.
func (j *Job) Stream() io.Writer {
	if isTerminal(j.app.stdout) {
		return SafeWriter(j.Out())
	}
	return j.Out()
}

// Printf writes lines to Out. What the arguments quote of files steers no terminal.
func (j *Job) Printf(format string, args ...any) {
	fmt.Fprint(j.Out(), Shown(fmt.Sprintf(format, args...)))
}

// Table writes a table to Out.
func (j *Job) Table(t *report.Table) { PrintTable(j.Out(), t) }
