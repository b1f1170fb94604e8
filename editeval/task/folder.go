package task

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Names of what the folder of an evaluation holds, besides samples_TASK.jsonl.
const (
	ResultsFile = "results.json"  // [Results]
	AnswersFile = "answers.jsonl" // what the model answered: a wider run asks only what is new
	TableFile   = "results.md"    // the figures as a table, if there is a [FolderOptions].Table
)

const hintOtherOut = "choose another --out, or pass --overwrite"

// Ways in which the folder of an evaluation can be refused.
var (
	// ErrForeign: the folder holds something else, which is not replaced.
	ErrForeign = failure.Misuse("it holds more than the results of an evaluation, and is not replaced", "")
	// ErrNarrower: the folder holds results that the new ones would not have: those of other options, of further
	// tasks, of more documents.
	ErrNarrower = failure.Misuse("it is finished, and this would replace it by something else", hintOtherOut)
	// ErrOtherRun: the kept answers are those of another model, or damaged, or the results of the folder are.
	ErrOtherRun = failure.Others(failure.Misuse("it cannot be continued", hintOtherOut))
)

// FolderOptions say how [OpenFolder] treats what is there, and what a folder holds.
type FolderOptions struct {
	Resume    bool // continue an interrupted evaluation, or widen a finished one
	Overwrite bool // replace an earlier evaluation, even where it says more than the new one
	Samples   bool // write what each document was asked and answered, which [Compare] needs
	// Table writes the figures for people, as Markdown; nil: there is none.
	Table func(*Results) ([]byte, error)
}

// Folder is the output of an evaluation in the making: a hidden folder beside its final name, and the answers beside
// that, which outlive an interruption. It is used by one goroutine.
type Folder struct {
	// Discarded: answers of an interrupted evaluation were there, and are not used.
	Discarded bool

	out     string
	o       FolderOptions
	place   *stage.Place // nil: the folder is published or abandoned
	answers string       // file
	kept    string       // answers of a finished run, which answers began as; "": none
	samples sampleFiles
}

// OpenFolder locks the place of an output, and refuses one that cannot be written. The errors are those of package
// stage, which say that the place is taken, or wrap [ErrForeign].
func OpenFolder(out string, o FolderOptions) (*Folder, error) {
	var rule stage.Rule
	if o.Resume || o.Overwrite {
		rule = replaceable
	}

	place, err := stage.Begin(out, rule, ResultsFile, TableFile, AnswersFile, "samples_*.jsonl", "report.*")
	if err != nil {
		return nil, err
	}

	final, err := filepath.Abs(out)
	if err != nil {
		return nil, errors.Join(err, place.Abandon())
	}

	f := &Folder{
		out: out, o: o, place: place,
		// Beside the output, which appears under its name only when it is complete; answers must survive an
		// interrupted run.
		answers: filepath.Join(filepath.Dir(final), "."+filepath.Base(final)+".answers"),
		samples: sampleFiles{dir: place.Dir},
	}
	if !o.Resume {
		f.Discarded = answered(f.answers)
		err = os.Remove(f.answers)
	} else if _, missing := os.Stat(f.answers); missing != nil {
		// A finished run has its answers in the output: what is added to it needs them again.
		f.kept = filepath.Join(final, AnswersFile)
		err = copyFile(f.answers, f.kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, place.Abandon())
	}

	return f, nil
}

// Run is [Run] with its results in the folder, which gets its name when everything is in it. Journal and Sample of the
// options are the folder's. After an error new answers stay, for a run with Resume.
func (f *Folder) Run(ctx context.Context, m *lm.Model, tok *tokenizer.Tokenizer, s *Suite, o Options) (*Results,
	error,
) {
	return f.run(s, o, func(o Options) (*Results, error) { return Run(ctx, m, tok, s, o) })
}

// RunServer is [RunServer] with its results in the folder, as Run is [Run].
func (f *Folder) RunServer(ctx context.Context, server Server, s *Suite, o Options) (*Results, error) {
	return f.run(s, o, func(o Options) (*Results, error) { return RunServer(ctx, server, s, o) })
}

// run lets an evaluation write into the folder.
func (f *Folder) run(s *Suite, o Options, evaluate func(o Options) (*Results, error)) (*Results, error) {
	if err := f.widens(s, &o); err != nil {
		return nil, err
	}

	o.Journal = f.answers
	o.Sample = nil
	if f.o.Samples {
		o.Sample = f.samples.add
	}

	r, err := evaluate(o)
	ours := !errors.Is(err, ErrCache)
	if ours && (errors.Is(err, ErrOtherModel) || errors.Is(err, ErrAnswers)) {
		return nil, fmt.Errorf("%s: %w: %w", f.out, ErrOtherRun, err)
	}
	if err = errors.Join(err, f.samples.end()); err != nil {
		return nil, err
	}

	return r, f.publish(r)
}

// publish writes the results and gives the folder its name.
func (f *Folder) publish(r *Results) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = safefile.WriteFile(filepath.Join(f.place.Dir, ResultsFile), append(text, '\n'), 0o644)
	}
	if err == nil && f.o.Table != nil {
		if text, err = f.o.Table(r); err == nil {
			err = safefile.WriteFile(filepath.Join(f.place.Dir, TableFile), text, 0o644)
		}
	}
	if err == nil {
		err = os.Rename(f.answers, filepath.Join(f.place.Dir, AnswersFile))
	}
	if err != nil {
		return err
	}

	err = f.place.Publish()
	f.place = nil
	return err
}

// Close removes what is unfinished. New answers stay for a run with Resume; after a successful Run nothing happens.
func (f *Folder) Close() error {
	if f.place == nil {
		return nil
	}

	err := f.samples.end()
	if f.kept != "" && sameSize(f.answers, f.kept) { // nothing was added to the copy
		err = errors.Join(err, os.Remove(f.answers))
	}

	err = errors.Join(err, f.place.Abandon())
	f.place = nil
	return err
}

// replaceable returns nil if a folder holds the results of an evaluation and nothing else.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}

	for _, e := range entries {
		name := e.Name()
		own := slices.Contains([]string{ResultsFile, AnswersFile, TableFile}, name) ||
			strings.HasPrefix(name, "samples_") && strings.HasSuffix(name, ".jsonl") ||
			strings.HasPrefix(name, "report.")
		if !own || !e.Type().IsRegular() {
			return fmt.Errorf("%w: %s", ErrForeign, name)
		}
	}

	return nil
}

// widens returns nil if a run gives all that the finished one that it continues has: with the same options, the same
// tasks or more, and as many documents or more. Anything else would replace figures by others, which is what Overwrite
// is for.
func (f *Folder) widens(s *Suite, o *Options) error {
	if !f.o.Resume || f.o.Overwrite {
		return nil
	}

	file := filepath.Join(f.out, ResultsFile)
	text, err := safefile.ReadFile(file, maxResults)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	var before Results
	if err := json.Unmarshal(text, &before); err != nil {
		return fmt.Errorf("%s: %w: %w", file, ErrOtherRun, err)
	}

	other := narrower(&before, s.tasks, o)
	// Samples of the old run would be replaced by none.
	if kept, _ := filepath.Glob(filepath.Join(f.out, "samples_*.jsonl")); len(kept) > 0 && !f.o.Samples {
		other = append(other, "it has samples, now there would be none")
	}
	if len(other) > 0 {
		return fmt.Errorf("%s: %w: %s", f.out, ErrNarrower, strings.Join(other, "; "))
	}

	return nil
}

// limited is a limit in words.
func limited(n int, share float64) string {
	switch {
	case share > 0:
		return fmt.Sprint(share)
	case n > 0:
		return fmt.Sprint(n)
	}
	return "0, which is all"
}

// narrower lists what a finished run has that one of some tasks and options would not have. Options are called what
// they are called in the results.
func narrower(before *Results, tasks []string, now *Options) []string {
	var out []string
	add := func(bad bool, format string, args ...any) {
		if bad {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}

	for name := range before.Configs {
		add(!slices.Contains(tasks, name), "task %s was evaluated and now is not", name)
	}

	slices.Sort(out)
	was := before.Config
	// How many documents a share is depends on the task: it goes with no number but all.
	all := now.Limit == 0 && now.Share == 0
	had := was.Limit == 0 && was.Share == 0
	mixed := (was.Share > 0) != (now.Share > 0)
	add(!all && (had || mixed || now.Limit < was.Limit || now.Share < was.Share), "limit was %s, now %s",
		limited(was.Limit, was.Share), limited(now.Limit, now.Share))
	add(shown(was.Shots) != shown(now.Shots), "num_fewshot was %s, now %s", shown(was.Shots), shown(now.Shots))
	add(was.FewshotSeed != now.seed(), "fewshot_seed was %d, now %d", was.FewshotSeed, now.seed())
	add(shown(was.Special) != shown(now.Special), "special was %s, now %s", shown(was.Special), shown(now.Special))
	add(was.MaxLength != now.MaxLength, "max_length was %d, now %d", was.MaxLength, now.MaxLength)

	system := ""
	if before.System != nil {
		system = *before.System
	}

	add(system != now.System, "system_instruction was %q, now %q", system, now.System)
	add((before.ChatTemplate != nil) != (now.Chat != nil), "a chat template was %s",
		map[bool]string{true: "given, now it is not", false: "not given, now it is"}[before.ChatTemplate != nil])

	if before.ChatTemplate != nil && now.Chat != nil {
		add(*before.ChatTemplate != now.Chat.Template, "the chat template is another one")
		add(before.Multiturn != now.Chat.Multiturn, "fewshot_as_multiturn was %t, now %t", before.Multiturn,
			now.Chat.Multiturn)
	}

	return out
}

// shown is an option that may not be set.
func shown[T any](v *T) string {
	if v == nil {
		return "not given"
	}
	return fmt.Sprint(*v)
}

// sameSize reports whether two files are there and of one size.
func sameSize(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && x.Size() == y.Size()
}

// answered reports whether a file of kept answers holds any, behind its first line.
func answered(file string) bool {
	f, err := safefile.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()

	r := bufio.NewReader(f)
	if _, err := r.ReadString('\n'); err != nil {
		return false
	}

	_, err = r.ReadByte()
	return err == nil
}

// copyFile copies a file; the error wraps fs.ErrNotExist, and nothing is made, where there is none.
func copyFile(dst, src string) error {
	in, err := safefile.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()

	to, err := os.Create(dst)
	if err != nil {
		return err
	}

	_, err = io.Copy(to, in)
	return errors.Join(err, to.Close())
}

// sampleFiles takes the samples of tasks, one task after another, into a file for each.
type sampleFiles struct {
	dir  string
	task string // whose file is open; "": none
	file *os.File
	w    *bufio.Writer
}

// add writes a line to the samples of a task.
func (s *sampleFiles) add(task string, line []byte) error {
	if task != s.task {
		if err := s.end(); err != nil {
			return err
		}

		f, err := os.Create(filepath.Join(s.dir, "samples_"+task+".jsonl"))
		if err != nil {
			return err
		}
		s.file = f
		s.w = bufio.NewWriterSize(f, 1<<20)
		s.task = task
	}

	_, err := s.w.Write(line)
	return err
}

// end closes the samples of a task.
func (s *sampleFiles) end() error {
	if s.file == nil {
		return nil
	}
	err := errors.Join(s.w.Flush(), s.file.Sync(), s.file.Close())
	s.file, s.task = nil, ""
	return err
}
