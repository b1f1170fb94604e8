// Package editevalcmd runs the verb editeval: it reads a plan, opens its models, has the sequences of edits
// worked on beside each other, and writes and prints what came out.
package editevalcmd

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/editeval"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/strictyaml"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora"
	"github.com/modelcompress/compress/merge/mediate"
)

// Options are the flags of the verb.
type Options struct {
	Out       string
	DryRun    bool
	Resume    bool
	Overwrite bool
	workers.Where
}

// Ways in which a run is refused.
var (
	ErrFlags   = cli.Usagef("unusable flags")
	ErrModels  = cli.Usagef("unusable plan: it names no models")
	ErrExperts = errors.New("experts that are chosen by request cannot be edited (HINT: experts: dense, a name, or " +
		"weights such as a=0.6,b=0.4 in the plan)")
)

func (o *Options) validate() error {
	if o.Out == "" && !o.DryRun {
		return fmt.Errorf("%w: --out is needed, or --dry-run", ErrFlags)
	}
	return o.Where.Validate()
}

// Run carries out a plan.
func Run(j *cli.Job, path string, o Options) (_ any, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}

	text, err := safefile.ReadFile(path, strictyaml.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}

	plan, err := parse(path, text, j.Seed)
	if err != nil {
		return nil, err
	}

	if o.DryRun {
		return rehearse(j, plan)
	}

	p, err := take(&o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.release()) }()

	r := &run{Job: j, o: &o, plan: plan, text: text, dir: p.dir}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	if err := r.work(); err != nil {
		return nil, err
	}

	return r.finish(p)
}

// CheckPlan finds what is wrong with a plan by itself.
func CheckPlan(file string, text []byte) error {
	_, err := parse(file, text, 0)
	return err
}

// parse reads a plan; its seeds are that of the job unless it names some.
func parse(path string, text []byte, seed uint64) (editeval.Plan, error) {
	plan, err := editeval.Parse(path, text)
	if err != nil {
		return plan, err
	}
	if len(plan.Models) == 0 {
		return plan, fmt.Errorf("%s: %w", path, ErrModels)
	}
	if len(plan.Seeds) == 0 {
		plan.Seeds = []uint64{seed}
	}

	return plan, nil
}

// run is one run of the verb.
type run struct {
	*cli.Job
	o        *Options
	plan     editeval.Plan
	text     []byte // of the plan, as it was read: the file may change meanwhile
	dir      string
	study    *editeval.Study
	subjects []*editeval.Subject
	team     *team
}

// prepare opens everything once, so that what is wrong with any model is said before the work; what the models'
// sequences share is left in the folder.
func (r *run) prepare() error {
	study, err := editeval.Open(r.plan, r.dir)
	if err != nil {
		return err
	}

	r.study = study
	r.plan.Counts = study.Counts // those of earlier results too
	study.Contract = compress.Version()
	study.Note = r.say
	for _, remark := range study.Remarks {
		r.Note("%s", remark)
	}

	dev, err := r.Device()
	if err != nil {
		return err
	}

	bars := r.Bars()
	defer bars.End()

	for _, m := range r.plan.Models {
		sub, err := open(r.Job, &r.plan, m, dev)
		if err != nil {
			return err
		}

		if sub.codebook != "" {
			study.Remarks = append(study.Remarks, m.Name+": "+sub.codebook)
			r.Note("%s: %s", m.Name, sub.codebook)
		}

		err = study.Prepare(r.Ctx, sub.Subject, func(done, total int) {
			bars.Show(m.Name+": statistics", int64(done), int64(total))
		})
		if err = errors.Join(err, sub.close()); err != nil {
			return err
		}

		r.subjects = append(r.subjects, sub.Subject)
	}

	return nil
}

// subject is a model that is open.
type subject struct {
	*editeval.Subject
	experts  *openmodel.Experts
	codebook string // what a reader must know of edits that are not in the weights; empty: there are none
}

// close closes the model; what the report needs stays.
func (s *subject) close() error {
	m := s.Model
	s.Release()
	return errors.Join(s.experts.Close(), m.Close())
}

// open opens a model of a plan on a device.
func open(j *cli.Job, plan *editeval.Plan, m editeval.Model, dev kernels.Device) (_ *subject, err error) {
	path := plan.Path(m.Path)
	if err := cli.ModelFolder(path); err != nil {
		return nil, plan.Missing("models", m.Path, err)
	}

	model, err := lm.Load(j.Ctx, path, dev, lm.Options{})
	if err != nil {
		return nil, plan.Missing("models", m.Path, err)
	}

	j.Opened(model, lm.Options{})
	s := &subject{Subject: &editeval.Subject{Name: m.Name, Model: model}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()

	if s.Tokenizer, err = cli.Tokenizer(model); err == nil && s.Tokenizer == nil {
		err = fmt.Errorf("%s: there is no tokenizer.json (HINT: copy it from the model that this one was made of)",
			path)
	}
	if err != nil {
		return s, err
	}
	if s.Identity, err = identity(j, plan, m, model); err != nil {
		return s, err
	}

	if mediate.IsFolder(path) {
		if openmodel.ByRouter(m.Experts) {
			return s, fmt.Errorf("%s: %w", path, ErrExperts)
		}
		if s.experts, err = openmodel.OpenExperts(j, model, m.Experts); err != nil {
			return s, err
		}
		if _, err = s.experts.Enter(j.Ctx, nil); err != nil {
			return s, err
		}
	} else if m.Experts != "" {
		return s, cli.Usagef("experts %s: %s is no mediated folder", m.Experts, path)
	}

	if s.codebook, err = openmodel.EnterCodebook(j.Ctx, model); err != nil {
		return s, err
	}

	return s, attach(j, plan, m, model)
}

// attach lets the adapter of a model act on it.
func attach(j *cli.Job, plan *editeval.Plan, m editeval.Model, model *lm.Model) error {
	if m.Adapter == "" {
		return nil
	}
	a, err := lora.Open(plan.Path(m.Adapter), model)
	if err == nil {
		_, err = a.Attach(model)
	}
	return plan.Missing("adapter", m.Adapter, err)
}

// identity is a hash of all that the answers of a model depend on.
func identity(j *cli.Job, plan *editeval.Plan, m editeval.Model, model *lm.Model) (string, error) {
	weights, err := model.Fingerprint(j.Ctx)
	if err != nil {
		return "", err
	}

	o := openmodel.Options{Experts: m.Experts}
	if m.Adapter != "" {
		o.Adapter = plan.Path(m.Adapter)
	}

	beside, err := openmodel.Identity(j.Ctx, model.Path(), o)
	if err != nil {
		return "", err
	}

	return cli.Fingerprint(append([]any{weights}, beside...)...), nil
}

// finish writes the report and removes what only an interrupted run needs.
func (r *run) finish(p *place) (any, error) {
	report, err := r.study.Report(r.subjects)
	if err != nil {
		return nil, err
	}

	page, err := html(report)
	if err != nil {
		return nil, err
	}

	err = errors.Join(cli.WriteFile(filepath.Join(r.dir, planFile), r.text),
		cli.WriteFile(filepath.Join(r.dir, pageFile), page))
	if err == nil {
		err = p.clear()
	}

	show(r.Job, report)
	return report, err
}
