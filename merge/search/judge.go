package search

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/stream"
)

// JudgeOptions are what the candidates of a search have in common. Device and Aims must be set.
type JudgeOptions struct {
	Device kernels.Device // that candidates run on
	Aims   []Aim          // what they are measured by
	Merge  merge.Options  // of every candidate; Overwrite, Resume and Progress do not matter
	OnDisk bool           // merge candidates into a folder, instead of in memory
	// Folders are places of models by their paths in the recipe, for those that lie elsewhere than the recipe says.
	Folders map[string]string
}

// Judge rates candidates of a search, one at a time. Close frees what it holds: in memory, one merged model.
type Judge struct {
	path, scratch string
	o             JudgeOptions
	model         *resident
}

// NewJudge makes a judge for recipes of a path. scratch is a folder that it may make and removes.
func NewJudge(path, scratch string, o JudgeOptions) (*Judge, error) {
	if o.Device == nil {
		return nil, fmt.Errorf("a search needs a device: %w", merge.ErrOption)
	}
	o.Merge.Overwrite = false
	o.Merge.Resume = false
	o.Merge.Progress = nil
	return &Judge{path: path, scratch: scratch, o: o}, errors.Join(o.Merge.Validate(), validAims(o.Aims))
}

// validAims returns every fault of the aims, joined.
func validAims(aims []Aim) error {
	var errs []error
	if len(aims) == 0 {
		errs = append(errs, fmt.Errorf("a search needs something to measure: %w", merge.ErrOption))
	}

	for _, a := range aims {
		if !(a.Weight > 0) || math.IsInf(a.Weight, 1) || a.Loss == nil {
			errs = append(errs,
				fmt.Errorf("%s: needs a measure and a weight above 0, not %v: %w", a.Name, a.Weight, merge.ErrOption))
		}
	}

	return errors.Join(errs...)
}

// Close frees the model and removes the scratch folder.
func (j *Judge) Close() error {
	var err error
	if j.model != nil {
		err = j.model.Close()
		j.model = nil
	}
	return errors.Join(err, os.RemoveAll(j.scratch))
}

// Rate merges and measures a candidate. What is wrong with its numbers alone is part of the rating.
func (j *Judge) Rate(ctx context.Context, text []byte) (Rating, error) {
	return scoring(j.score).rating(ctx, text)
}

// score is the loss of a candidate.
func (j *Judge) score(ctx context.Context, text []byte) (loss float64, err error) {
	r, err := merge.Parse(j.path, text)
	if err != nil {
		return 0, err
	}

	r = r.At(j.o.Folders)
	merges, err := job.Handle(r).Merges()
	if err != nil {
		return 0, err
	}

	if j.o.OnDisk || onlyOnDisk(merges, j.o.Device) != "" {
		return j.onDisk(ctx, r)
	}

	loss, err = j.inMemory(ctx, merges)
	if errors.Is(err, errUnfit) {
		j.o.OnDisk = true
		return j.onDisk(ctx, r)
	}

	return loss, err
}

// onlyOnDisk returns why candidates cannot be held in memory whatever their size, "" if they can.
func onlyOnDisk(r job.Recipe, dev kernels.Device) string {
	switch {
	case len(r.Docs) > 1:
		return "the recipe has several documents"
	case r.Docs[0].Mediate != nil:
		return "mediate writes more than a model"
	case !dev.Info().Host:
		return "the device has memory of its own"
	}
	return ""
}

// onDisk merges a candidate into a folder and measures it there.
func (j *Judge) onDisk(ctx context.Context, r merge.Recipe) (_ float64, err error) {
	if err := os.RemoveAll(j.scratch); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(j.scratch)) }()

	dir := filepath.Join(j.scratch, "merged")
	if err := os.MkdirAll(j.scratch, 0o777); err != nil {
		return 0, err
	}
	if _, err := merge.Models(ctx, r, dir, j.o.Merge); err != nil {
		return 0, own(err)
	}

	m, err := lm.Load(ctx, dir, j.o.Device, lm.Options{AllowExtra: true})
	if err != nil {
		return 0, err
	}
	defer m.Close()

	return j.measure(ctx, m)
}

// inMemory merges a candidate over the one before it and measures it.
func (j *Judge) inMemory(ctx context.Context, r job.Recipe) (_ float64, err error) {
	options := job.Options(j.o.Merge.Job())
	options.KnownOwners = true // the plan of the search has found it
	w, err := job.Open(ctx, r, r.Docs[0], nil, options)
	if err != nil {
		return 0, own(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()

	groups, err := w.Groups(func(string) bool { return false })
	if err != nil {
		return 0, own(err)
	}

	if err := j.room(ctx, w); err != nil {
		return 0, err
	}

	o := w.Engine()
	o.Written = j.model.Written
	if _, err := stream.Run(ctx, groups, j.model, o); err != nil {
		return 0, own(err)
	}

	return j.measure(ctx, j.model.Model)
}

// room makes the model that candidates are merged into, unless the last one has the same tensors.
func (j *Judge) room(ctx context.Context, w *job.Work) error {
	layout := w.Layout()
	if j.model != nil && j.model.fits(layout) {
		return nil
	}
	if err := j.Close(); err != nil {
		return err
	}
	if err := w.Outline(j.scratch); err != nil {
		return err
	}

	m, err := lm.Load(ctx, j.scratch, j.o.Device, lm.Options{AllowExtra: true})
	if err != nil {
		return err
	}

	j.model, err = newResident(m, layout)
	return err
}

// own marks errors that come from a candidate's numbers.
func own(err error) error {
	for _, of := range []error{merge.ErrMethod, merge.ErrOverflow, lm.ErrNonFinite} {
		if errors.Is(err, of) {
			return fmt.Errorf("%w: %w", errCandidate, err)
		}
	}
	return err
}

// measure gives a model's loss over all aims.
func (j *Judge) measure(ctx context.Context, m *lm.Model) (float64, error) {
	var sum, weight float64
	for _, a := range j.o.Aims {
		loss, err := a.Loss(ctx, m)
		if err != nil {
			return 0, own(fmt.Errorf("%s: %w", a.Name, err))
		}
		sum, weight = sum+a.Weight*loss, weight+a.Weight
	}
	return sum / weight, nil
}

// Input is a model or adapter that a search reads.
type Input struct {
	Name   string `json:"name"`   // as the recipe has it
	Folder string `json:"folder"` // where it lies
}

// Plan is what the candidates of a search are.
type Plan struct {
	Inputs []Input
	Files  []string // of statistics
	Bytes  int64    // of a candidate's tensors
	OnDisk string   // why candidates cannot be held in memory, whatever their size; "": they can
}

// Preview finds out what the candidates of a search are, and makes dir look like the checkpoint of one, with its
// configuration and tokenizer, but with weights that are zeros without a place on the disk. Where candidates
// cannot be held in memory it is the merge of the starting point.
func Preview(ctx context.Context, path string, text []byte, dir string, o JudgeOptions) (*Plan, error) {
	space, err := parseOpen(path, text)
	if err != nil {
		return nil, job.Faulty(err)
	}

	r, err := merge.Parse(path, space.Recipe(space.Start()))
	if err != nil {
		return nil, err
	}

	r = r.At(o.Folders)
	merges, err := job.Handle(r).Merges()
	if err != nil {
		return nil, err
	}

	p := &Plan{OnDisk: onlyOnDisk(merges, o.Device)}
	if err := p.inputs(merges); err != nil {
		return nil, err
	}

	if p.OnDisk != "" {
		report, err := merge.Models(ctx, r, dir, o.Merge)
		if err == nil {
			p.Bytes = report.BytesOut
		}
		return p, err
	}

	w, err := job.Open(ctx, merges, merges.Docs[0], nil, job.Options(o.Merge.Job()))
	if err != nil {
		return nil, err
	}
	defer w.Close() // it was only read

	if _, err := w.Groups(func(string) bool { return false }); err != nil {
		return nil, err
	}

	p.Files, p.Bytes = w.StatisticsFiles(), w.Plan.Summary().BytesOut
	return p, w.Outline(dir)
}

// inputs lists the folders that a recipe reads.
func (p *Plan) inputs(r job.Recipe) error {
	named := map[string]string{} // results of other documents
	for _, doc := range r.Docs {
		folders, err := doc.Folders(r.Places(named))
		if err != nil {
			return err
		}

		for s, dir := range folders {
			if x := (Input{s.String(), dir}); dir != "" && !slices.Contains(p.Inputs, x) {
				p.Inputs = append(p.Inputs, x)
			}
		}

		named[doc.Name] = ""
	}

	slices.SortFunc(p.Inputs, func(a, b Input) int { return strings.Compare(a.Name, b.Name) })
	return nil
}
