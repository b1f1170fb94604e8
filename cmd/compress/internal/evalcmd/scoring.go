// Package evalcmd runs the verb eval: it loads a model, evaluates it on tasks, and writes and prints what comes out.
package evalcmd

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
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Options are the flags of the verb.
type Options struct {
	Tasks       []string
	Out         string
	Data        []string // folders of data files
	Adapter     string
	Experts     string // which experts of a mediated folder answer
	Shots       int    // -1: as the task says
	FewshotSeed uint64
	NoSpecial   bool
	LogSamples  bool
	Fast        bool
	Resume      bool
	Overwrite   bool
	Chat        string // chat template: NoChat, OwnChat, or the name of one of several
	Multiturn   string // examples as messages of their own: "", true or false
	Task        task.Options
}

// Values of Options.Chat that name no template.
const (
	NoChat  = ""
	OwnChat = "default"
)

// Names of what an output holds.
const (
	resultsFile = "results.json"
	answersFile = "answers.jsonl"
)

// ErrForeign refuses to replace a folder that holds something else.
var ErrForeign = cli.Usagef("it holds more than the results of an evaluation, and is not replaced")

// Run evaluates a model and writes the output folder.
func Run(j *cli.Job, path string, o Options) (any, error) {
	suite, err := o.suite()
	if err != nil {
		return nil, err
	}

	out, err := open(&o)
	if err != nil {
		return nil, err
	}

	if out.dropped {
		j.Note("%s: the answers of an interrupted run are discarded; --resume would have used them", o.Out)
	}

	r, err := runIn(j, out, path, suite, o)
	if err != nil {
		return nil, errors.Join(err, out.abandon())
	}

	if err := out.commit(r); err != nil {
		return nil, err
	}

	show(j, r)
	return &Summary{*r, r.Damaged}, nil
}

// Summary is what --json and --report give: the results, and what was noticed on the way to them.
type Summary struct {
	task.Results
	Damaged int `json:"damaged_answers,omitempty"` // lines of kept answers that were dropped, and asked again
}

// CheckFlags finds what is wrong with tasks and flags by themselves.
func CheckFlags(o Options) error {
	_, err := o.suite()
	return err
}

// suite loads the tasks and completes the options.
func (o *Options) suite() (*task.Suite, error) {
	suite, err := task.Load(o.Tasks, o.Data...)
	if err != nil {
		return nil, err
	}

	if o.Shots < -1 {
		return nil, cli.Usagef("--num-fewshot %d: want 0 or more, or -1 for as many as the task says", o.Shots)
	}
	if o.Shots >= 0 {
		o.Task.Shots = &o.Shots
	}

	if o.Task.Seed = &o.FewshotSeed; o.NoSpecial {
		special := false
		o.Task.Special = &special
	}

	return suite, cli.Usage(o.Task.Validate())
}

// conversation reads the chat template of a checkpoint.
func (o *Options) conversation(dir string) error {
	if !slices.Contains([]string{"", "true", "false"}, o.Multiturn) {
		return cli.Usagef("--fewshot-as-multiturn %s: want true or false", o.Multiturn)
	}

	if o.Chat == NoChat {
		if o.Multiturn == "true" {
			return cli.Usagef("--fewshot-as-multiturn needs --apply-chat-template")
		}
		return nil
	}

	name := o.Chat
	if name == OwnChat {
		name = ""
	}

	c, err := task.ReadChat(dir, name)
	if err != nil {
		return fmt.Errorf("--apply-chat-template: %w", err)
	}

	c.Multiturn, c.Now = o.Multiturn != "false", time.Now
	o.Task.Chat = c
	return nil
}

func runIn(j *cli.Job, out *output, path string, suite *task.Suite, o Options) (*task.Results, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	if _, err := j.Precision(o.Fast); err != nil {
		return nil, err
	}

	s, err := load(j, path, o, dev)
	if err != nil {
		return nil, err
	}
	defer s.m.Close()

	experts, err := openmodel.OpenExperts(j, s.m, o.Experts)
	if err != nil {
		return nil, err
	}
	defer experts.Close()

	if err := o.conversation(path); err != nil {
		return nil, err
	}
	if err := o.widens(suite); err != nil {
		return nil, err
	}
	if p := s.m.Config().MaxPositions; p > 0 && o.Task.MaxLength > p {
		j.Note("--max-length %d: the model was made for sequences of %d tokens", o.Task.MaxLength, p)
	}

	o.Task.Router = experts.Router()
	bars := j.Bars()
	defer bars.End()

	o.Task.Progress = bars.Show
	return out.evaluate(j.Ctx, s, suite, o)
}

// output is the folder under construction and the answers beside it, which outlive an interruption.
type output struct {
	place   *stage.Place
	answers string // file
	dropped bool   // answers of an interrupted run were there
	kept    string // answers of a finished run, which answers began as; "" for none
	file    *os.File
	w       *bufio.Writer
	task    string // of the open samples
}

func open(o *Options) (*output, error) {
	var allow stage.Rule
	if o.Resume || o.Overwrite {
		allow = replaceable
	}

	s, err := stage.Begin(o.Out, allow, resultsFile, answersFile, "samples_*.jsonl", "report.*")
	if err != nil {
		return nil, err
	}

	final, err := filepath.Abs(o.Out)
	if err != nil {
		return nil, err
	}

	out := &output{place: s, answers: filepath.Join(filepath.Dir(final), "."+filepath.Base(final)+".answers")}
	if !o.Resume {
		out.dropped = answered(out.answers)
		err = os.Remove(out.answers)
	} else if _, missing := os.Stat(out.answers); missing != nil {
		out.kept = filepath.Join(final, answersFile)
		err = copyFile(out.answers, out.kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, s.Abandon())
	}

	return out, nil
}

// copyFile copies a file; one that is not there is not copied.
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

// replaceable tells whether a folder holds the results of an evaluation and nothing else.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}

	for _, e := range entries {
		name := e.Name()
		own := name == resultsFile || name == answersFile || strings.HasPrefix(name, "samples_") &&
			strings.HasSuffix(name, ".jsonl") || strings.HasPrefix(name, "report.")
		if !own || !e.Type().IsRegular() {
			return fmt.Errorf("%w: %s", ErrForeign, name)
		}
	}

	return nil
}

// subject is a model that is ready to be evaluated.
type subject struct {
	m        *lm.Model
	tok      *tokenizer.Tokenizer
	identity string
}

// load opens a model with its adapter, if there is one, on a device.
func load(j *cli.Job, path string, o Options, dev kernels.Device) (*subject, error) {
	if err := cli.ModelFolder(path); err != nil {
		return nil, err
	}

	m, err := lm.Load(j.Ctx, path, dev, lm.Options{Precision: cli.PrecisionOn(dev, o.Fast)})
	if err != nil {
		return nil, err
	}

	s := &subject{m: m}
	if s.tok, err = cli.Tokenizer(m); err == nil && s.tok == nil {
		err = fmt.Errorf("%s: there is no tokenizer.json (HINT: copy it from the model that this one was made of)",
			path)
	}
	if err == nil {
		s.identity, err = identity(j, m, o)
	}
	if err == nil {
		_, _, err = openmodel.Attach(j, m, o.Adapter)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}

	return s, nil
}

func (out *output) evaluate(ctx context.Context, s *subject, suite *task.Suite, o Options) (*task.Results, error) {
	o.Task.Identity, o.Task.Journal = s.identity, out.answers
	if o.LogSamples {
		o.Task.Sample = out.sample
	}
	r, err := task.Run(ctx, s.m, s.tok, suite, o.Task)
	if errors.Is(err, task.ErrOtherModel) || errors.Is(err, task.ErrAnswers) {
		return nil, cli.Usagef("--resume: %w (HINT: choose another --out, or pass --overwrite)", err)
	}
	return r, errors.Join(err, out.end())
}

// identity is a hash of all that an answer depends on beside the request.
func identity(j *cli.Job, m *lm.Model, o Options) (string, error) {
	weights, err := m.Fingerprint(j.Ctx)
	if err != nil {
		return "", err
	}

	beside, err := openmodel.Identity(j.Ctx, m.Path(), openmodel.Options{Adapter: o.Adapter, Experts: o.Experts})
	if err != nil {
		return "", err
	}

	return cli.Fingerprint(append([]any{weights, o.Fast}, beside...)...), nil
}

// sample writes a line to the samples of a task.
func (out *output) sample(name string, line []byte) error {
	if name != out.task {
		if err := out.end(); err != nil {
			return err
		}

		f, err := os.Create(filepath.Join(out.place.Dir, "samples_"+name+".jsonl"))
		if err != nil {
			return err
		}
		out.file = f
		out.w = bufio.NewWriterSize(f, 1<<20)
		out.task = name
	}

	_, err := out.w.Write(line)
	return err
}

// end closes the samples of a task.
func (out *output) end() error {
	if out.file == nil {
		return nil
	}
	err := errors.Join(out.w.Flush(), out.file.Sync(), out.file.Close())
	out.file, out.task = nil, ""
	return err
}

// abandon removes what is unfinished. New answers stay for --resume.
func (out *output) abandon() error {
	err := out.end()
	if out.kept != "" && unchanged(out.answers, out.kept) {
		err = errors.Join(err, os.Remove(out.answers))
	}
	return errors.Join(err, out.place.Abandon())
}

func (out *output) commit(r *task.Results) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = cli.WriteFile(filepath.Join(out.place.Dir, resultsFile), append(text, '\n'))
	}
	if err == nil {
		err = os.Rename(out.answers, filepath.Join(out.place.Dir, answersFile))
	}
	if err != nil {
		return errors.Join(err, out.place.Abandon())
	}

	return out.place.Publish()
}

// Definitions lists or shows tasks.
func Definitions(j *cli.Job, entries []string) (any, error) {
	list, err := task.Definitions(entries)
	if err != nil {
		return nil, err
	}

	if len(entries) == 0 {
		showList(j, list)
	} else {
		showEach(j, list)
	}

	return list, nil
}

// TaskNames lists the tasks, groups and tags that come with the program; nothing if they cannot be read.
func TaskNames() (names []string) {
	list, err := task.Definitions(nil)
	if err != nil {
		return nil
	}
	for _, d := range list {
		names = append(names, d.Name)
	}
	return names
}

// ErrCheck: a task that was checked has faults.
var ErrCheck = errors.New("tasks with faults")

// Check tries tasks without a model.
func Check(j *cli.Job, entries, data []string, o Options) (any, error) {
	suite, err := task.Load(entries, data...)
	if err != nil {
		return nil, eachFault(entries, data, err)
	}

	list, err := suite.Check(o.Task)
	if err != nil {
		return nil, cli.Usage(err)
	}

	var bad []string
	for _, c := range list {
		if c.Err != "" {
			bad = append(bad, c.Err)
		}
	}

	showChecked(j, list)
	if len(bad) > 0 {
		return nil, fmt.Errorf("%w: %d of %d: %s", ErrCheck, len(bad), len(list), strings.Join(bad, "; "))
	}

	return list, nil
}

// eachFault looks for what else is wrong where tasks cannot be loaded: the files of the entries are loaded one
// by one, and the error tells of all that cannot. first is what a file has, or all of them together.
func eachFault(entries, data []string, first error) error {
	var bad []string
	for _, entry := range entries {
		files := []string{entry}
		if st, err := os.Stat(entry); err == nil && st.IsDir() {
			if files, err = filepath.Glob(filepath.Join(entry, "*.yaml")); err != nil {
				return errors.Join(first, err)
			}
		}

		for _, file := range files {
			if _, err := task.Load([]string{file}, data...); err != nil {
				bad = append(bad, err.Error())
			}
		}
	}

	if len(bad) < 2 {
		return first
	}

	return fmt.Errorf("%w: %d: %s", ErrCheck, len(bad), strings.Join(bad, "; "))
}

// Compare tests the differences between two runs.
func Compare(j *cli.Job, a, b string, draws int) (any, error) {
	if draws < 1 {
		return nil, cli.Usagef("--bootstrap-iters %d: want 1 or more", draws)
	}

	c, err := task.Compare(a, b, task.CompareOptions{Draws: draws, Seed: j.Seed})
	if errors.Is(err, task.ErrOptions) {
		return nil, cli.Usagef("--bootstrap-iters: %w", err)
	}

	if err != nil {
		return nil, err
	}

	showComparison(j, c)

	for _, only := range []struct {
		dir   string
		tasks []string
	}{{a, c.OnlyA}, {b, c.OnlyB}} {
		if len(only.tasks) > 0 {
			j.Note("only in %s: %s", only.dir, strings.Join(slices.Sorted(slices.Values(only.tasks)), ", "))
		}
	}

	return c, nil
}
