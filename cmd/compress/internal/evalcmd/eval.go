// Package evalcmd binds the verb eval to package task: it opens models, has them evaluated, one or several through a
// queue, and prints what comes out.
package evalcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Options are the flags of the verb.
type Options struct {
	task.FolderOptions
	Task        task.Options
	Tasks       []string
	Out         string
	Data        []string // folders of data files
	Adapter     string
	Experts     string // which experts of a mediated folder answer
	Shots       int    // -1: as the task says
	FewshotSeed uint64
	NoSpecial   bool
	cli.Compute
	Server    task.Server // in the place of a model, where it has an address
	KeyFile   string      // with the key of the server; "": none
	Tokenizer string      // folder of the server's tokenizer; "": the server is asked
	Chat      string      // chat template: NoChat, task.OwnChat, or the name of one of several
	Multiturn string      // examples as messages of their own: "", true or false
}

// NoChat is the value of Options.Chat that stands for plain text.
const NoChat = ""

// Summary is what --json and --report give: the results, and what was noticed on the way to them.
type Summary struct {
	task.Results
	Damaged int `json:"damaged_answers,omitempty"` // lines of kept answers that were dropped, and asked again
}

// CheckFlags finds what is wrong with tasks and flags by themselves.
func CheckFlags(args []string, o Options) error {
	if err := o.checkServer(args); err != nil {
		return err
	}
	_, err := o.suite()
	return err
}

// Run evaluates a model, or one behind a server, and writes the output folder.
func Run(j *cli.Job, args []string, o Options) (_ any, err error) {
	if err := o.checkServer(args); err != nil {
		return nil, err
	}
	suite, err := o.suite()
	if err != nil {
		return nil, withoutData(err)
	}

	var to evaluation = printed{}
	if o.Out != "" {
		o.Table = markdown
		folder, err := task.OpenFolder(o.Out, o.FolderOptions)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, folder.Close()) }()

		if folder.Discarded {
			j.Note("%s: the answers of an interrupted run are discarded; --resume would have used them", o.Out)
		}
		to = folder
	}

	var r *task.Results
	if o.Server.URL != "" {
		r, err = o.evaluateServer(j, to, suite)
	} else {
		r, err = o.evaluate(j, args[0], to, suite)
	}
	if err != nil {
		return nil, withoutData(err)
	}

	show(j, r)
	return &Summary{*r, r.Damaged}, nil
}

// withoutData says how to get the data that a task lacks.
func withoutData(err error) error {
	if !errors.Is(err, task.ErrNoData) {
		return err
	}
	return failure.Hinted(err, "compress eval tasks fetch TASK --out DIR downloads the data of tasks that come with "+
		"the program; --task-data DIR says where data are")
}

// evaluation is where results go.
type evaluation interface {
	Run(ctx context.Context, m *lm.Model, tok *tokenizer.Tokenizer, s *task.Suite, o task.Options) (
		*task.Results, error)
	RunServer(ctx context.Context, server task.Server, s *task.Suite, o task.Options) (*task.Results, error)
}

// printed are results that are kept nowhere.
type printed struct{}

func (printed) Run(ctx context.Context, m *lm.Model, tok *tokenizer.Tokenizer, s *task.Suite, o task.Options) (
	*task.Results, error,
) {
	return task.Run(ctx, m, tok, s, o)
}

func (printed) RunServer(ctx context.Context, server task.Server, s *task.Suite, o task.Options) (
	*task.Results, error,
) {
	return task.RunServer(ctx, server, s, o)
}

// suite loads the tasks and completes the options of their evaluation by those flags that are no fields of them.
func (o *Options) suite() (*task.Suite, error) {
	if err := openmodel.CheckWhole(o.Experts); err != nil {
		return nil, err
	}
	suite, err := task.Load(o.Tasks, o.Data...)
	if err != nil {
		return nil, err
	}

	if o.Out == "" && (o.Resume || o.Overwrite) {
		return nil, cli.Usagef("--resume and --overwrite are about what is in --out, which is not given")
	}
	if o.Shots < -1 {
		return nil, cli.Usagef("--num-fewshot %d: want 0 or more, or -1 for as many as the task says", o.Shots)
	}
	if o.Shots >= 0 {
		o.Task.Shots = &o.Shots
	}
	if o.NoSpecial {
		o.Task.Special = new(bool)
	}

	o.Task.Seed = &o.FewshotSeed
	return suite, o.Task.Validate()
}

// evaluate opens the model and runs the tasks.
func (o *Options) evaluate(j *cli.Job, path string, to evaluation, suite *task.Suite) (*task.Results, error) {
	dev, err := j.Device()
	if err != nil {
		return nil, err
	}

	m, err := load(j, path, dev, o.Compute, openmodel.Options{Adapter: o.Adapter, Experts: o.Experts})
	if err != nil {
		return nil, err
	}
	defer m.Model.Close()

	experts, err := openmodel.OpenExperts(j, m.Model, o.Experts)
	if err != nil {
		return nil, err
	}
	defer experts.Close()

	if o.Task.Chat, err = o.conversation(path); err != nil {
		return nil, err
	}
	if p := m.Model.Config().MaxPositions; p > 0 && o.Task.MaxLength > p {
		j.Note("--max-length %d: the model was made for sequences of %d tokens", o.Task.MaxLength, p)
	}

	bars := j.Bars()
	defer bars.End()

	o.Task.Identity = m.Identity
	o.Task.Router = experts.Router()
	o.Task.Progress = bars.Show

	return to.Run(j.Ctx, m.Model, m.Tokenizer, suite, o.Task)
}

// conversation reads the chat template of a checkpoint; nil where prompts are plain text.
func (o *Options) conversation(dir string) (*task.Chat, error) {
	if !slices.Contains([]string{"", "true", "false"}, o.Multiturn) {
		return nil, cli.Usagef("--fewshot-as-multiturn %s: want true or false", o.Multiturn)
	}

	name := o.Chat
	switch {
	case name == NoChat && o.Multiturn == "true":
		return nil, cli.Usagef("--fewshot-as-multiturn needs --apply-chat-template")
	case name == NoChat:
		return nil, nil
	case name == task.OwnChat:
		name = ""
	}

	c, err := task.ReadChat(dir, name)
	if err != nil {
		return nil, fmt.Errorf("--apply-chat-template: %w", err)
	}

	c.Multiturn = o.Multiturn != "false"
	c.Now = time.Now
	return c, nil
}

// load opens a model with the codebook of its edits and its adapter, if there is one, on a device. Its identity is a
// hash of all that an answer depends on beside the request.
func load(j *cli.Job, path string, dev kernels.Device, how cli.Compute,
	beside openmodel.Options,
) (*task.BatchModel, error) {
	if err := cli.ModelFolder(path); err != nil {
		return nil, err
	}

	m, err := lm.Load(j.Ctx, path, dev, how.Options())
	if err != nil {
		return nil, err
	}
	j.Opened(m, how.Options())

	s := &task.BatchModel{Model: m}
	if s.Tokenizer, err = cli.Tokenizer(m); err == nil && s.Tokenizer == nil {
		err = fmt.Errorf("%s: there is no tokenizer.json (HINT: copy it from the model that this one was made of)",
			path)
	}
	if err == nil {
		s.Identity, err = identity(j, m, how, beside)
	}
	if err == nil {
		_, _, err = openmodel.Attach(j, m, beside.Adapter)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}

	return s, nil
}

// identity is a hash of all that an answer depends on beside the request.
func identity(j *cli.Job, m *lm.Model, how cli.Compute, beside openmodel.Options) (string, error) {
	weights, err := m.Fingerprint(j.Ctx)
	if err != nil {
		return "", err
	}

	parts, err := openmodel.Identity(j.Ctx, m.Path(), beside)
	if err != nil {
		return "", err
	}

	if kept := m.Residence().Kept; len(kept) > 0 {
		parts = append(parts, kept) // sums are rounded otherwise than those of floats
	}
	if how.Options().KVBits != 0 {
		parts = append(parts, "kv", how.KV)
	}
	return cli.Fingerprint(append([]any{weights, how.Fast}, parts...)...), nil
}
