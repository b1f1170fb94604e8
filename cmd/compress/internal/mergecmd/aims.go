package mergecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge/search"
)

// Aim is something that candidates are measured by, as workers are told of it: a text, whose tokens come along,
// or tasks, whose files lie where they lie for the coordinator.
type Aim struct {
	Name   string  `json:"name"`
	Hash   string  `json:"hash"`
	Weight float64 `json:"weight"`
	Text   *Text   `json:"text,omitempty"`
	Tasks  *Tasks  `json:"tasks,omitempty"`
}

// Text is windows, one after the other.
type Text struct {
	IDs     []int32 `json:"ids"`
	Labels  []int32 `json:"labels,omitempty"` // of all tokens, or none
	Lengths []int32 `json:"lengths"`
}

// Tasks are definitions and how they are run.
type Tasks struct {
	Entry  string   `json:"entry"`
	Data   []string `json:"data,omitempty"`
	Metric string   `json:"metric,omitempty"`
	Shots  int      `json:"num_fewshot"`
	Limit  int      `json:"limit"`
}

// aims are those of the flags. m has the tokenizer and the sizes of the candidates.
func (o *SearchOptions) aims(j *cli.Job, m *lm.Model) ([]Aim, error) {
	var out []Aim
	for _, arg := range o.Data {
		file, weight, err := weighted("data", arg)
		if err != nil {
			return nil, err
		}

		w, err := j.Cut(m, file, corpus.CutOptions{SeqLen: o.SeqLen, Limit: o.Limit})
		if err != nil {
			return nil, err
		}

		if len(w.IDs) == 0 {
			return nil, fmt.Errorf("%s: %w: no window", file, corpus.ErrShort)
		}

		text := flat(w)
		out = append(out, Aim{Name: shortName(file), Hash: cli.Fingerprint(text), Weight: weight, Text: text})
	}

	for _, arg := range o.Tasks {
		entry, weight, err := weighted("tasks", arg)
		if err != nil {
			return nil, err
		}

		t := &Tasks{Entry: entry, Data: slices.Clone(o.TaskData), Metric: o.Metric, Shots: o.Shots, Limit: o.TaskLimit}
		if err := t.absolute(); err != nil {
			return nil, err
		}

		hash, err := t.hash(j.Ctx)
		if err != nil {
			return nil, err
		}

		out = append(out, Aim{Name: shortName(entry), Hash: hash, Weight: weight, Tasks: t})
	}

	return out, nil
}

// searchAims makes what a judge needs of aims.
func searchAims(aims []Aim) ([]search.Aim, error) {
	var out []search.Aim
	for _, a := range aims {
		s := search.Aim{Name: a.Name, Hash: a.Hash, Weight: a.Weight}
		switch {
		case a.Text != nil:
			w, err := a.Text.windows()
			if err != nil {
				return nil, err
			}
			s.Loss = func(ctx context.Context, m *lm.Model) (float64, error) { return mean(ctx, m, w) }
		case a.Tasks != nil:
			suite, err := a.Tasks.suite()
			if err != nil {
				return nil, err
			}
			s.Loss = func(ctx context.Context, m *lm.Model) (float64, error) { return a.Tasks.loss(ctx, m, suite) }
		default:
			return nil, fmt.Errorf("%w: specification: %s is neither a text nor tasks", jobs.ErrRefused, a.Name)
		}

		out = append(out, s)
	}

	return out, nil
}

// flat lays windows one after the other.
func flat(w corpus.Windows) *Text {
	t := &Text{}
	for i, row := range w.IDs {
		t.IDs = append(t.IDs, row...)
		t.Lengths = append(t.Lengths, int32(len(row)))
		if w.Labels != nil {
			t.Labels = append(t.Labels, w.Labels[i]...)
		}
	}
	return t
}

// windows takes them apart again.
func (t *Text) windows() (w corpus.Windows, err error) {
	at := 0
	for _, n := range t.Lengths {
		if n < 0 || int(n) > len(t.IDs)-at || t.Labels != nil && len(t.Labels) != len(t.IDs) {
			return w, fmt.Errorf("%w: specification: windows longer than their data", jobs.ErrRefused)
		}

		end := at + int(n)
		w.IDs = append(w.IDs, t.IDs[at:end:end])
		if t.Labels != nil {
			w.Labels = append(w.Labels, t.Labels[at:end:end])
		}

		at = end
	}

	return w, nil
}

// mean is a model's loss over the tokens of a text, one window at a time, in nats per token.
func mean(ctx context.Context, m *lm.Model, w corpus.Windows) (float64, error) {
	var sum float64
	counted := 0
	for i, ids := range w.IDs {
		o := lm.ForwardOptions{}
		if w.Labels != nil {
			o.Labels = w.Labels[i : i+1]
		}

		r, err := m.Forward(ctx, [][]int32{ids}, o)
		if err != nil {
			return 0, err
		}

		sum, counted = sum+r.Loss*float64(r.Counted), counted+r.Counted
	}

	if counted == 0 {
		return 0, fmt.Errorf("%w: no token to predict", corpus.ErrShort)
	}

	return sum / float64(counted), nil
}

// absolute makes paths mean the same in every folder.
func (t *Tasks) absolute() error {
	for _, p := range append([]*string{&t.Entry}, pointers(t.Data)...) {
		if _, err := os.Stat(*p); err != nil {
			continue // a name
		}

		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}

	return nil
}

func pointers(list []string) []*string {
	var out []*string
	for i := range list {
		out = append(out, &list[i])
	}
	return out
}

// maxFiles bounds how many files the definitions of tasks may lie among.
const maxFiles = 20_000

// hash is of all files that lie with the definitions and their data, of what the tasks ask first, and of how
// they are run. Definitions of the program itself come with the program.
func (t *Tasks) hash(ctx context.Context) (string, error) {
	checked, err := t.check()
	if err != nil {
		return "", err
	}

	parts := []any{checked, t.Metric, t.Shots, t.Limit, len(t.Data)}
	for _, p := range append([]string{t.Entry}, t.Data...) {
		st, err := os.Stat(p)
		if err != nil {
			parts = append(parts, p)
			continue
		}

		root := p
		if !st.IsDir() {
			root = filepath.Dir(p) // what it includes, and its data
			parts = append(parts, filepath.Base(p))
		}

		err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}

			sum, err := cli.FileHash(ctx, path)
			name, _ := filepath.Rel(root, path) // both begin with root
			if parts = append(parts, name, sum); err == nil && len(parts) > 2*maxFiles {
				err = fmt.Errorf("--tasks %s: more than %d files lie with it; put it into a folder of its own", t.Entry,
					maxFiles)
			}

			return err
		})
		if err != nil {
			return "", err
		}
	}

	return cli.Fingerprint(parts...), nil
}

// check finds what is wrong with tasks before the first candidate does, and gives what they would ask.
func (t *Tasks) check() ([]task.Checked, error) {
	suite, err := t.suite()
	if err != nil {
		return nil, err
	}

	defs, err := task.Definitions([]string{t.Entry})
	if err != nil {
		return nil, err
	}

	list, err := suite.Check(t.options())
	if err != nil {
		return nil, cli.Usage(err)
	}

	for i := range list {
		if text := cmp.Or(list[i].Err, list[i].NoData); text != "" {
			return nil, failure.Hinted(fmt.Errorf("--tasks %s: task %s: %s", t.Entry, list[i].Task, text), list[i].Hint)
		}
		if d := definition(defs, list[i].Task); t.Metric != "" && d != nil && !slices.Contains(d.Metrics, t.Metric) {
			return nil, cli.Usagef("--metric %s: task %s has %s", t.Metric, list[i].Task, strings.Join(d.Metrics, ", "))
		}

		list[i].Path = "" // which may differ from machine to machine
	}

	return list, nil
}

// definition finds that of a task, nil if it is not among them.
func definition(list []task.Definition, name string) *task.Definition {
	if i := slices.IndexFunc(list, func(d task.Definition) bool { return d.Kind == "task" && d.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// options are how the tasks are run.
func (t *Tasks) options() task.Options {
	seed := uint64(1234) // that of the verb eval
	o := task.Options{Limit: t.Limit, Bootstrap: -1, Seed: &seed, Identity: "a candidate"}
	if t.Shots >= 0 {
		o.Shots = &t.Shots
	}
	return o
}

func (t *Tasks) suite() (*task.Suite, error) { return task.Load([]string{t.Entry}, t.Data...) }

// errMetric: a task has no such figure.
var errMetric = errors.New("no such metric")

// loss is the mean over the tasks: of 1 less the metric where more is better, of the metric itself where less is.
func (t *Tasks) loss(ctx context.Context, m *lm.Model, suite *task.Suite) (float64, error) {
	tok, err := cli.Tokenizer(m)
	if err != nil {
		return 0, err
	}

	if tok == nil {
		return 0, fmt.Errorf("--tasks %s: %w", t.Entry, corpus.ErrNoTokenizer)
	}

	r, err := task.Run(ctx, m, tok, suite, t.options())
	if err != nil {
		return 0, err
	}

	var sum float64
	names := suite.Tasks()
	for _, name := range names {
		v, higher, err := t.figure(r, name)
		if err != nil {
			return 0, err
		}

		if higher {
			v = 1 - v
		}

		sum += v
	}

	return sum / float64(len(names)), nil
}

// preferred are the metrics that stand for a task where none is asked for, and the task has them.
var preferred = []string{"acc", "exact_match", "bits_per_byte"}

// figure finds a task's metric and tells whether more of it is better.
func (t *Tasks) figure(r *task.Results, name string) (v float64, higher bool, err error) {
	better := r.HigherIsBetter[name]
	want := t.Metric
	for _, p := range preferred {
		if _, ok := better[p]; ok && want == "" {
			want = p
		}
	}

	if want == "" {
		var all []string
		for metric := range better {
			all = append(all, metric)
		}

		slices.Sort(all)
		if len(all) > 0 {
			want = all[0]
		}
	}

	for _, filter := range r.Filters(name) {
		if v, ok := r.Results[name][want+","+filter].(float64); ok {
			return v, better[want] == nil || *better[want], nil
		}
	}

	return 0, false, fmt.Errorf("task %s: %w: %q", name, errMetric, want)
}
