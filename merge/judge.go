package merge

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
	"github.com/modelcompress/compress/merge/internal/resident"
	"github.com/modelcompress/compress/merge/internal/stream"
	"github.com/modelcompress/compress/merge/internal/tune"
)

// JudgeOptions are what the candidates of a search have in common. Device and Aims must be set.
type JudgeOptions struct {
	Device kernels.Device
	Aims   []SearchAim
	Merge  Options // of every candidate; Overwrite, Resume and Progress do not matter
	OnDisk bool    // merge candidates into a folder, instead of in memory
	// Folders are places of models by their paths in the recipe, for those that lie elsewhere than the recipe says.
	Folders map[string]string
}

// Judge rates candidates of a search, one at a time. Close frees what it holds: in memory, one merged model.
type Judge struct {
	path, scratch string
	o             JudgeOptions
	model         *resident.Model
}

// NewJudge makes a judge for recipes of a path. scratch is a folder that it may make and removes.
func NewJudge(path, scratch string, o JudgeOptions) (*Judge, error) {
	if o.Device == nil {
		return nil, fmt.Errorf("a search needs a device: %w", ErrOption)
	}
	o.Merge.Overwrite = false
	o.Merge.Resume = false
	o.Merge.Progress = nil
	return &Judge{path: path, scratch: scratch, o: o}, errors.Join(o.Merge.Validate(), validAims(o.Aims))
}

// validAims returns every fault of the aims, joined.
func validAims(aims []SearchAim) error {
	var errs []error
	if len(aims) == 0 {
		errs = append(errs, fmt.Errorf("a search needs something to measure: %w", ErrOption))
	}

	for _, a := range aims {
		if !(a.Weight > 0) || math.IsInf(a.Weight, 1) || a.Loss == nil {
			errs = append(errs,
				fmt.Errorf("%s: needs a measure and a weight above 0, not %v: %w", a.Name, a.Weight, ErrOption))
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
func (j *Judge) Rate(ctx context.Context, text []byte) (SearchRating, error) {
	return tune.Score(j.score).Rating(ctx, text)
}

// score is the loss of a candidate.
func (j *Judge) score(ctx context.Context, text []byte) (loss float64, err error) {
	r, err := parseMerges(j.path, text)
	if err != nil {
		return 0, err
	}

	r.folders = j.o.Folders
	if j.o.OnDisk || onlyOnDisk(r, j.o.Device) != "" {
		return j.onDisk(ctx, r)
	}

	loss, err = j.inMemory(ctx, r)
	if errors.Is(err, resident.ErrUnfit) {
		j.o.OnDisk = true
		return j.onDisk(ctx, r)
	}

	return loss, err
}

// onlyOnDisk says why candidates cannot be held in memory whatever their size, "" if they can.
func onlyOnDisk(r Recipe, dev kernels.Device) string {
	switch {
	case len(r.docs) > 1:
		return "the recipe has several documents"
	case r.docs[0].Mediate != nil:
		return "mediate writes more than a model"
	case !dev.Info().Host:
		return "the device has memory of its own"
	}
	return ""
}

// onDisk merges a candidate into a folder and measures it there.
func (j *Judge) onDisk(ctx context.Context, r Recipe) (_ float64, err error) {
	if err := os.RemoveAll(j.scratch); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(j.scratch)) }()

	dir := filepath.Join(j.scratch, "merged")
	if err := os.MkdirAll(j.scratch, 0o777); err != nil {
		return 0, err
	}
	if _, err := Models(ctx, r, dir, j.o.Merge); err != nil {
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
func (j *Judge) inMemory(ctx context.Context, r Recipe) (_ float64, err error) {
	w, err := prepare(r, r.docs[0], nil, j.o.Merge)
	defer func() { err = errors.Join(err, w.close()) }()

	if err != nil {
		return 0, own(err)
	}

	groups, err := w.groups(func(string) bool { return false })
	if err != nil {
		return 0, own(err)
	}

	if err := j.room(ctx, w); err != nil {
		return 0, err
	}

	o := w.streaming()
	o.Written = j.model.Written
	if _, err := stream.Run(ctx, groups, j.model, o); err != nil {
		return 0, own(err)
	}

	return j.measure(ctx, j.model.Model)
}

// room makes the model that candidates are merged into, unless the last one has the same tensors.
func (j *Judge) room(ctx context.Context, w *work) error {
	layout := w.layout()
	if j.model != nil && j.model.Fits(layout) {
		return nil
	}
	if err := j.Close(); err != nil {
		return err
	}
	if err := w.outline(j.scratch); err != nil {
		return err
	}

	m, err := lm.Load(ctx, j.scratch, j.o.Device, lm.Options{AllowExtra: true})
	if err != nil {
		return err
	}

	j.model, err = resident.New(m, layout)
	return err
}

// outline writes a folder that looks like the result of a merge, but has zeros for weights, which take no space.
func (w *work) outline(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	donor := w.folders[w.plan.Models[w.plan.Donor]]
	return errors.Join(w.writeConfig(donor, dir), w.writeTokenizer(donor, dir), resident.WriteZeros(dir, w.layout()))
}

// own marks errors that come from a candidate's numbers.
func own(err error) error {
	for _, of := range []error{ErrMethod, ErrOverflow, lm.ErrNonFinite} {
		if errors.Is(err, of) {
			return fmt.Errorf("%w: %w", tune.ErrCandidate, err)
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

// SearchInput is a model or adapter that a search reads.
type SearchInput struct {
	Name   string `json:"name"`   // as the recipe has it
	Folder string `json:"folder"` // where it lies
}

// SearchPlan says what the candidates of a search are.
type SearchPlan struct {
	Inputs []SearchInput
	Files  []string // of statistics
	Bytes  int64    // of a candidate's tensors
	OnDisk string   // why candidates cannot be held in memory, whatever their size; "": they can
}

// PlanSearch says what the candidates of a search are, and makes dir look like the checkpoint of one, with its
// configuration and tokenizer, but with weights that are zeros without a place on the disk. Where candidates
// cannot be held in memory it is the merge of the starting point.
func PlanSearch(ctx context.Context, path string, text []byte, dir string, o JudgeOptions) (*SearchPlan, error) {
	space, err := tune.Parse(path, text)
	if err != nil {
		return nil, faulty(err)
	}

	r, err := parseMerges(path, space.Recipe(space.Start()))
	if err != nil {
		return nil, err
	}

	r.folders = o.Folders
	p := &SearchPlan{OnDisk: onlyOnDisk(r, o.Device)}
	if err := p.inputs(r); err != nil {
		return nil, err
	}

	if p.OnDisk != "" {
		report, err := Models(ctx, r, dir, o.Merge)
		if err == nil {
			p.Bytes = report.BytesOut
		}
		return p, err
	}

	w, err := prepare(r, r.docs[0], nil, o.Merge)
	defer w.close()

	if err == nil {
		_, err = w.groups(func(string) bool { return false })
	}
	if err != nil {
		return nil, err
	}

	for _, f := range w.stats {
		p.Files = append(p.Files, f.Path())
	}

	slices.Sort(p.Files)
	p.Bytes = w.plan.Summary().BytesOut
	return p, w.outline(dir)
}

// inputs lists the folders that a recipe reads.
func (p *SearchPlan) inputs(r Recipe) error {
	named := map[string]string{} // results of other documents
	for _, doc := range r.docs {
		folders, err := doc.Folders(r.places(named))
		if err != nil {
			return err
		}

		for s, dir := range folders {
			if x := (SearchInput{s.String(), dir}); dir != "" && !slices.Contains(p.Inputs, x) {
				p.Inputs = append(p.Inputs, x)
			}
		}

		named[doc.Name] = ""
	}

	slices.SortFunc(p.Inputs, func(a, b SearchInput) int { return strings.Compare(a.Name, b.Name) })
	return nil
}
