package evalcmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/kernels"
)

// Plan lists models and the tasks that each is evaluated on.
type Plan struct {
	Models     []PlanModel `yaml:"models"` // the others are compared with the first
	Tasks      []string    `yaml:"tasks"`
	Data       []string    `yaml:"data"`
	NumFewshot *int        `yaml:"num_fewshot"`
	Limit      int         `yaml:"limit"`
	Bootstrap  int         `yaml:"bootstrap_iters"`
	MaxLength  int         `yaml:"max_length"`

	Chat      any    `yaml:"apply_chat_template"` // true, or the name of a template
	Multiturn *bool  `yaml:"fewshot_as_multiturn"`
	System    string `yaml:"system_instruction"`
}

// PlanModel is a model of a plan.
type PlanModel struct {
	Name    string `yaml:"name" json:"name"` // default: the name of its folder
	Path    string `yaml:"path" json:"path"`
	Adapter string `yaml:"adapter" json:"adapter,omitempty"`
}

// DecodeYAML reads a path, or a mapping.
func (m *PlanModel) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node) {
	if n.Kind == strictyaml.Scalar {
		m.Path = n.Text
		return
	}

	type plain PlanModel // without this method
	r.Decode(n, "a model", (*plain)(m))
}

// ErrPlan: a plan that cannot be run.
var ErrPlan = cli.Usagef("unusable plan")

const maxPlan = 1 << 20

// plainName is what the name of a model may be: it becomes that of a folder.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

func readPlan(file string) (*Plan, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}

	if st.Size() > maxPlan {
		return nil, fmt.Errorf("%s: %w: %d bytes", file, ErrPlan, st.Size())
	}

	text, err := safefile.ReadFile(file, maxPlan)
	if err != nil {
		return nil, err
	}

	p, err := readPlanText(file, text)
	if err != nil {
		return nil, err
	}

	return p, p.settle()
}

// taken are names in the folder of a batch that are no models.
var taken = []string{"comparison.json", "comparison.md", contractFile, queueFolder}

func (p *Plan) check(file string) error {
	if len(p.Models) == 0 || len(p.Tasks) == 0 {
		return fmt.Errorf("%s: %w: it needs models and tasks", file, ErrPlan)
	}

	seen := map[string]bool{}
	for i := range p.Models {
		m := &p.Models[i]
		if m.Name == "" {
			m.Name = filepath.Base(m.Path)
		}

		if !plainName.MatchString(m.Name) || seen[m.Name] {
			return fmt.Errorf("%s: %w: the name %q of a model is no plain word, or is there twice (HINT: give a name)",
				file, ErrPlan, m.Name)
		}
		if slices.Contains(taken, m.Name) {
			return fmt.Errorf("%s: %w: the name %q of a model is that of a file of the batch (HINT: give another name)",
				file, ErrPlan, m.Name)
		}

		seen[m.Name] = true
	}

	for _, t := range p.Tasks {
		if strings.ContainsAny(t, "*?[") {
			return fmt.Errorf("%s: %w: %q is a pattern, and an entry of tasks is one task, group, tag, file or "+
				"folder (HINT: list them, or name their folder)", file, ErrPlan, t)
		}
		if name := taskName(t); !plainName.MatchString(name) || seen["/"+name] {
			return fmt.Errorf("%s: %w: task %q is there twice, or has no plain name", file, ErrPlan, t)
		}

		seen["/"+taskName(t)] = true
	}

	switch c := p.Chat.(type) {
	case nil, bool, string:
	default:
		return fmt.Errorf("%s: %w: apply_chat_template is %v, want true, false or a name", file, ErrPlan, c)
	}

	return nil
}

// settle makes paths absolute, so that the plan means the same in every folder, and looks for data in the
// present one too.
func (p *Plan) settle() error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}

	absolute := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(here, path)
	}

	for i := range p.Models {
		p.Models[i].Path, p.Models[i].Adapter = absolute(p.Models[i].Path), absolute(p.Models[i].Adapter)
	}

	for i, t := range p.Tasks {
		if _, err := os.Stat(t); err == nil || strings.Contains(t, "/") {
			p.Tasks[i] = absolute(t)
		}
	}

	for i, d := range p.Data {
		p.Data[i] = absolute(d)
	}

	p.Data = append(p.Data, here)
	return nil
}

// chat is the plan's chat template as the flag says it.
func (p *Plan) chat() string {
	switch c := p.Chat.(type) {
	case bool:
		if c {
			return OwnChat
		}
	case string:
		return c
	}
	return NoChat
}

// taskName is the name of the folder of an entry of tasks.
func taskName(entry string) string {
	return strings.TrimSuffix(strings.TrimSuffix(filepath.Base(entry), ".yaml"), ".yml")
}

// BatchReport is what a plan gave.
type BatchReport struct {
	Models  []PlanModel                          `json:"models"`
	Results map[string]map[string]map[string]any `json:"results"`     // by model and task
	Against map[string][]task.Pair               `json:"comparisons"` // of every model but the first with the first
	Reused  int                                  `json:"runs_reused"` // of an interrupted batch
}

// batch runs a plan.
type batch struct {
	j       *cli.Job
	file    string // of the plan; "" for a worker
	plan    *Plan
	dir     string // where runs are until all are there
	options Options
	seats   chan *seat // one for each run at a time

	mu sync.Mutex // guards the loading of models
}

// seat is where one run at a time is done, with the model that was used last.
type seat struct {
	dev   kernels.Device
	open  *subject
	model int
}

// unit is an item of the queue: a model and an entry of tasks.
type unit struct{ Model, Task int }

// Batch runs every model of a plan on every task, through a queue that survives interruptions, and compares the models.
func Batch(j *cli.Job, file string, o Options, who workers.Where) (any, error) {
	if err := who.Validate(); err != nil {
		return nil, err
	}

	plan, err := readPlan(file)
	if err != nil {
		return nil, err
	}

	final, err := filepath.Abs(o.Out)
	if err != nil {
		return nil, err
	}

	if err := stage.Vacant(final, nil); err != nil {
		if o.Resume && errors.Is(err, checkpoint.ErrExists) {
			return nil, cli.Usagef("%s is a finished batch or something else, and is not replaced (HINT: choose "+
				"another --out; with --cache a wider plan asks only what is new)", o.Out)
		}
		return nil, err
	}

	b := &batch{
		j: j, file: file, plan: plan, options: o,
		dir: filepath.Join(filepath.Dir(final), "."+filepath.Base(final)+".batch"),
	}
	if err := scratch.Leftover(b.dir, append([]string{sumsFolder, "lock"}, taken...)...); err != nil {
		return nil, err
	}

	lock, err := stage.Lock(b.dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()

	if !o.Resume {
		if _, err := os.Stat(filepath.Join(b.dir, contractFile)); err == nil {
			j.Note("%s: the unfinished runs of an interrupted batch are discarded; --resume would have continued it",
				o.Out)
		}

		if err := empty(b.dir); err != nil {
			return nil, err
		}
	}

	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	if _, err := j.Precision(o.Fast); err != nil {
		return nil, err
	}

	slots := who.Slots(dev.Info().Threads)
	if err := b.sit(max(slots, 1), func() (kernels.Device, error) {
		return workers.Share(dev,
			max(slots, 1))
	}); err != nil {
		return nil, err
	}
	defer b.leave()

	r, err := b.run(who, slots)
	if err != nil {
		return nil, err
	}

	if err := b.finish(r, final); err != nil {
		return nil, err
	}

	return r, nil
}

// sit makes room for runs at the same time.
func (b *batch) sit(n int, device func() (kernels.Device, error)) error {
	b.seats = make(chan *seat, n)
	for range n {
		dev, err := device()
		if err != nil {
			return err
		}
		b.seats <- &seat{dev: dev}
	}
	return nil
}

// leave closes models when all runs have ended.
func (b *batch) leave() {
	for range cap(b.seats) {
		if s := <-b.seats; s.open != nil {
			s.open.m.Close()
		}
	}
}

// empty removes what an earlier batch has left.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// options are those of a run.
func (b *batch) optionsOf(u unit) Options {
	o, m := b.options, b.plan.Models[u.Model]
	o.Tasks = []string{b.plan.Tasks[u.Task]}
	o.Data = b.plan.Data
	o.Adapter = m.Adapter

	o.Resume = true
	o.Overwrite = false
	o.Shots = -1
	if b.plan.NumFewshot != nil {
		o.Shots = *b.plan.NumFewshot
	}

	o.Chat = b.plan.chat()
	if b.plan.Multiturn != nil {
		o.Multiturn = strconv.FormatBool(*b.plan.Multiturn)
	}

	o.Task.System = b.plan.System
	o.Out = b.folder(u)
	o.Task.Limit = b.plan.Limit
	o.Task.Bootstrap = b.plan.Bootstrap
	o.Task.MaxLength = b.plan.MaxLength

	return o
}

func (b *batch) folder(u unit) string {
	return filepath.Join(b.dir, b.plan.Models[u.Model].Name, taskName(b.plan.Tasks[u.Task]))
}

// contract is a hash of what all results depend on. Tasks and models are checked on the way.
func (b *batch) contract() (string, error) {
	parts := []any{compress.Version(), b.plan, b.options.Fast}
	for i := range b.plan.Tasks {
		o := b.optionsOf(unit{0, i})
		suite, err := o.suite()
		if err != nil {
			return "", err
		}

		checked, err := suite.Check(o.Task)
		if err != nil {
			return "", err
		}

		for _, c := range checked {
			if c.Err != "" || c.NoData != "" {
				return "", fmt.Errorf("%s%s", c.Err, c.NoData)
			}
		}

		parts = append(parts, checked)
	}

	at := <-b.seats
	defer func() { b.seats <- at }()

	for i := range b.plan.Models {
		s, err := b.subject(at, i)
		if err != nil {
			return "", err
		}
		parts = append(parts, s.identity)
	}

	return cli.Fingerprint(parts...), nil
}

// subject opens a model at a seat, and closes the one before.
func (b *batch) subject(at *seat, i int) (*subject, error) {
	if at.open != nil && at.model == i {
		return at.open, nil
	}

	if at.open != nil {
		at.open.m.Close()
		at.open = nil
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	s, err := load(b.j, b.plan.Models[i].Path, b.optionsOf(unit{i, 0}), at.dev)
	if err != nil {
		return nil, fmt.Errorf("%s: model %s: %w", cmp.Or(b.file, "the plan"), b.plan.Models[i].Name, err)
	}

	at.open, at.model = s, i
	return s, nil
}

// run queues all runs and waits for them.
func (b *batch) run(who workers.Where, slots int) (*BatchReport, error) {
	contract, err := b.contract()
	if err != nil {
		return nil, err
	}

	file := filepath.Join(b.dir, contractFile)
	if before, err := safefile.ReadFile(file, maxResults); err == nil && string(before) != contract {
		return nil, cli.Usagef("--resume: the interrupted batch had another plan, or other models or data (HINT: " +
			"start it again without --resume)")
	}
	if err := cli.WriteFile(file, []byte(contract)); err != nil {
		return nil, err
	}

	spec, err := json.Marshal(work{Dir: b.dir, Contract: contract, Plan: b.plan, Cache: b.options.Task.Cache})
	if err != nil {
		return nil, err
	}

	if err := workers.Vouch(filepath.Join(b.dir, offerFile), spec); err != nil {
		return nil, err
	}

	team, err := workers.Assemble(b.j, workers.Options{
		Where: who, Dir: filepath.Join(b.dir, queueFolder), Slots: slots, Kind: Kind, Name: "eval-" + contract[:16],
		Spec: spec, Check: b.check,
	}, b.handle)
	if errors.Is(err, jobs.ErrOffer) {
		return nil, cli.Usagef("--resume: the interrupted batch had another plan, or other models or data: %w", err)
	}

	if err != nil {
		return nil, err
	}

	r, err := b.collect(team)
	return r, errors.Join(err, team.Close())
}

// collect hands the runs over, model by model, and takes their results.
func (b *batch) collect(team *workers.Crew) (*BatchReport, error) {
	var items []jobs.Item
	for m := range b.plan.Models {
		for t := range b.plan.Tasks {
			data, err := json.Marshal(unit{m, t})
			if err != nil {
				return nil, err
			}
			items = append(items, jobs.Item{ID: fmt.Sprintf("%d-%d", m, t), Data: data})
		}
	}

	if err := b.sweep(); err != nil {
		return nil, err
	}

	results, err := team.Do(b.j.Ctx, "runs", items, nil)
	// what has failed is tried again by --resume; what was done is kept in its folder
	if errors.Is(err, workers.ErrWork) {
		return nil, errors.Join(err, team.Withdraw(b.j.Ctx))
	}

	if err != nil {
		return nil, err
	}

	r := &BatchReport{
		Models: b.plan.Models, Results: map[string]map[string]map[string]any{},
		Against: map[string][]task.Pair{},
	}
	for i, res := range results {
		if err := b.again(items[i]); err != nil {
			return nil, err
		}
		if err := b.take(r, items[i], res.Data); err != nil {
			return nil, err
		}
	}

	return r, team.Withdraw(b.j.Ctx)
}

// outcome is the result of an item.
type outcome struct {
	Results map[string]map[string]any `json:"results"`
	Reused  bool                      `json:"reused"`
}

// check looks whether what somebody says of a run has the form of it. The figures are those of the run's folder.
func (b *batch) check(_ jobs.Item, data []byte) error {
	var o outcome
	return jobs.Decode(data, &o)
}

// unitOf is the run of an item.
func (b *batch) unitOf(item jobs.Item) (u unit, err error) {
	err = jobs.Decode(item.Data, &u)
	within := u.Model >= 0 && u.Model < len(b.plan.Models) && u.Task >= 0 && u.Task < len(b.plan.Tasks)
	if err != nil || !within || item.ID != fmt.Sprintf("%d-%d", u.Model, u.Task) {
		return u, fmt.Errorf("%w: item %s", ErrPlan, item.ID)
	}
	return u, nil
}

// take takes the results of a run. Who did it only says that it is done, and whether an earlier one was there: the
// figures lie in its folder.
func (b *batch) take(r *BatchReport, item jobs.Item, data []byte) error {
	u, err := b.unitOf(item)
	if err != nil {
		return err
	}

	var said, o outcome
	if err := jobs.Decode(data, &said); err != nil {
		return err
	}

	text, err := safefile.ReadFile(filepath.Join(b.folder(u), resultsFile), maxResults)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		return err
	}

	o.Reused = said.Reused
	model := b.plan.Models[u.Model].Name
	if r.Results[model] == nil {
		r.Results[model] = map[string]map[string]any{}
	}
	for task, row := range o.Results {
		r.Results[model][task] = row
	}
	if o.Reused {
		r.Reused++
	}

	return nil
}

// handle does a run, unless its folder is there already.
func (b *batch) handle(ctx context.Context, item jobs.Item) ([]byte, error) {
	u, err := b.unitOf(item)
	if err != nil {
		return nil, err
	}

	o := b.optionsOf(u)
	if text, err := safefile.ReadFile(filepath.Join(o.Out, resultsFile), maxResults); err == nil {
		var done outcome
		if err := json.Unmarshal(text, &done); err == nil {
			done.Reused = true
			return json.Marshal(done)
		}
	}

	r, err := b.one(ctx, u, o)
	if err == nil {
		err = b.note(u)
	}
	if err != nil {
		return nil, err
	}

	return json.Marshal(outcome{Results: r.Results})
}

func (b *batch) one(ctx context.Context, u unit, o Options) (*task.Results, error) {
	suite, err := o.suite()
	if err != nil {
		return nil, err
	}

	at := <-b.seats
	defer func() { b.seats <- at }()

	s, err := b.subject(at, u.Model)
	if err != nil {
		return nil, err
	}

	if err := o.conversation(b.plan.Models[u.Model].Path); err != nil {
		return nil, err
	}

	out, err := open(&o)
	if err != nil {
		return nil, err
	}

	r, err := out.evaluate(ctx, s, suite, o)
	if err != nil {
		return nil, errors.Join(err, out.abandon())
	}

	return r, out.commit(r)
}

// finish compares the models, writes the comparison and gives the output its name.
func (b *batch) finish(r *BatchReport, final string) error {
	base := b.plan.Models[0].Name

	for i, m := range b.plan.Models[1:] {
		for t := range b.plan.Tasks {
			c, err := task.Compare(b.folder(unit{0, t}), b.folder(unit{i + 1, t}), task.CompareOptions{Seed: b.j.Seed})
			if err != nil {
				return err
			}
			r.Against[m.Name] = append(r.Against[m.Name], c.Rows...)
		}
	}

	table := r.table(base)
	b.j.Table(table)
	var md bytes.Buffer
	if err := table.Markdown(&md); err != nil {
		return err
	}

	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = cli.WriteFile(filepath.Join(b.dir, "comparison.json"), append(text, '\n'))
	}
	if err == nil {
		err = cli.WriteFile(filepath.Join(b.dir, "comparison.md"), md.Bytes())
	}
	if err == nil {
		err = errors.Join(os.RemoveAll(filepath.Join(b.dir, queueFolder)),
			os.RemoveAll(workers.KeysFile(filepath.Join(b.dir, queueFolder))),
			os.Remove(filepath.Join(b.dir, offerFile)), os.RemoveAll(filepath.Join(b.dir, sumsFolder)),
			os.Remove(filepath.Join(b.dir, contractFile)))
	}
	if err == nil {
		if err = os.Remove(final); errors.Is(err, fs.ErrNotExist) { // an empty folder may be there
			err = nil
		}
	}
	if err == nil {
		err = os.Rename(b.dir, final)
	}

	return err
}

// table has a row for each figure: the first model's, and how the others differ.
func (r *BatchReport) table(base string) *report.Table {
	t := &report.Table{Columns: report.Columns("model", "task", "filter", "metric", "value|%.4f", base+"|%.4f",
		"difference|%+.4f", "low|%+.4f", "high|%+.4f", "p|%.4g")}
	var rest []string
	for _, m := range r.Models[1:] {
		rest = append(rest, m.Name)
	}

	for _, name := range rest {
		for _, p := range r.Against[name] {
			t.Add(name, p.Task, p.Filter, p.Metric, p.B, p.A, p.Difference, p.Low, p.High, p.P)
		}
	}

	if len(rest) == 0 {
		for _, task := range sortedKeys(r.Results[base]) {
			for _, key := range sortedKeys(r.Results[base][task]) {
				metric, filter, ok := strings.Cut(key, ",")
				if v, isNumber := r.Results[base][task][key].(float64); ok && isNumber &&
					!strings.HasSuffix(metric, "_stderr") {
					t.Add(base, task, filter, metric, v, v, nil, nil, nil, nil)
				}
			}
		}
	}

	return t
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
