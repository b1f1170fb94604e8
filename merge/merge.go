package merge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/merge/internal/stream"
)

// Models merges what a recipe says into the folder dst: weights, configuration, tokenizer, a model card and a
// manifest. A recipe of several documents gives its last one; the results of the others, which it uses by name,
// lie beside dst until that is complete.
//
// After an interruption, a full disk or an I/O error, the unfinished output stays beside dst, from where a call
// with Resume continues; after any other error nothing is left. The errors wrap this package's, those of
// package safetensors, or list every fault of the recipe.
func Models(ctx context.Context, r Recipe, dst string, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	all, err := job.Handle(r).Merges()
	if err != nil {
		return nil, err
	}

	if dst, err = filepath.Abs(dst); err != nil {
		return nil, err
	}

	// The card tells of the models of all documents.
	ctx = weights.Recorded(ctx, new(weights.Record))

	o.Memory = cmp.Or(o.Memory, DefaultMemory)
	if o.Ties == TieDraw {
		o.Ties = "" // one choice, one job
	}

	parts := filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".parts")
	named := map[string]string{}
	for _, doc := range all.Docs[:len(all.Docs)-1] {
		part := o
		part.Resume, part.Overwrite = true, true
		named[doc.Name] = filepath.Join(parts, fmt.Sprintf("%x", sha256.Sum256([]byte(doc.Name)))[:16])
		if err := os.MkdirAll(parts, 0o777); err != nil {
			return nil, err
		}
		if _, err := one(ctx, all, doc, named, named[doc.Name], part); err != nil {
			return nil, fmt.Errorf("document %q: %w", doc.Name, err)
		}
	}

	report, err := one(ctx, all, all.Docs[len(all.Docs)-1], named, dst, o)
	if err != nil {
		return nil, err
	}

	return report, removeParts(parts)
}

// partName is the form of the names of the results of documents, and of those that are not complete.
var partName = regexp.MustCompile(`^(?:[0-9a-f]{16}|\.[0-9a-f]{16}\.(?:partial|merging))$`)

// removeParts removes the results of a recipe's other documents. The folder stays if there is something else in it.
func removeParts(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || system.Is(err, syscall.ENOTDIR) {
		return nil
	}

	for _, e := range entries {
		if partName.MatchString(e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}

	_ = os.Remove(dir)
	return err
}

// Check resolves a recipe without writing an output: what would be read and written, and what is to be warned
// of. Of several documents it gives the last one's summary, with those before it, whose results it plans with
// as if they were there. Which tensors mediate would keep apart is not known before they are compared: the plan is
// that of its dense model with all of them averaged.
func Check(ctx context.Context, r Recipe, o Options) (s *Summary, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}

	all, err := job.Handle(r).Merges()
	if err != nil {
		return nil, err
	}

	dir, release, err := scratch.Folder("compress-plan-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()

	named, before := map[string]string{}, []*Summary(nil)
	for i, doc := range all.Docs {
		if doc.Mediate != nil && len(all.Docs) > 1 {
			return nil, fmt.Errorf("%s: mediate among several documents cannot be planned, only merged: %w", all.Path,
				ErrOption)
		}

		named[doc.Name] = filepath.Join(dir, fmt.Sprint(i))
		if s, err = preview(ctx, all, doc, named, o); err != nil {
			return nil, err
		}
		s.Document, s.Before = doc.Name, before
		before = append(before[:i:i], s)
	}

	return s, nil
}

// preview is the summary of one document, whose result's outline it leaves for those after it, if it has a name.
func preview(ctx context.Context, r job.Recipe, doc *recipe.Document, named map[string]string, o Options) (
	*Summary, error,
) {
	options := job.Options(o.Job())
	options.Outlined = true
	w, err := job.Open(ctx, r, doc, named, options)
	if err != nil {
		return nil, err
	}
	defer w.Close() // it was only read

	steps, err := o.steps(w, false)
	if err != nil {
		return nil, err
	}

	groups, err := steps.Groups(nothing)
	if err == nil && doc.Name != "" {
		err = w.Outline(named[doc.Name])
	}
	if err != nil {
		return nil, err
	}

	memory, err := stream.Budget(groups, w.Engine())
	if err != nil {
		return nil, err
	}

	return newSummary(w, memory), nil
}

// nothing is what an interrupted run has finished where there was none.
func nothing(string) bool { return false }

// steps are what makes a document; works is false where nothing is going to be written.
func (o Options) steps(w *job.Work, works bool) (job.Steps, error) {
	if w.Doc.Mediate == nil {
		return job.Ordinary{Work: w}, nil
	}

	steps, err := job.Mediator(o.Mediator).Steps(w, works)
	if steps == nil && err == nil {
		err = fmt.Errorf("%s: merge_method %s needs Options.Mediator, which package merge/mediate has: %w",
			w.Recipe.Path, recipe.Mediated, ErrOption)
	}

	return steps, err
}

// one merges one document.
func one(ctx context.Context, r job.Recipe, doc *recipe.Document, named map[string]string, dst string,
	o Options,
) (report *Report, err error) {
	start := time.Now()
	w, err := job.Open(ctx, r, doc, named, job.Options(o.Job()))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()

	for _, dir := range w.Folders {
		if err := output.Apart(dir, dst); err != nil {
			return nil, err
		}
	}

	steps, err := o.steps(w, true)
	if err != nil {
		return nil, err
	}

	key, err := identity(w, o)
	if err == nil {
		key, err = steps.Identity(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	if err := steps.Prepare(ctx, output.JobKept(key)); err != nil {
		return nil, err
	}

	// Groups are made once before anything is written, for the faults of their parameters. Their warnings come again
	// with those that are run.
	warnings := w.Warnings
	if _, err := steps.Groups(nothing); err != nil {
		return nil, err
	}
	w.Warnings = slices.Clone(warnings)

	out, err := output.Open(dst, output.Options{
		Overwrite: o.Overwrite, Resume: o.Resume, Job: key, Tensors: w.Layout(),
		Joints: w.Plan.Joints, MaxShard: o.MaxShard, Readers: o.Threads, Every: o.journalEvery,
	})
	if err != nil {
		return nil, err
	}

	if out.Complete() {
		err := steps.Intact(ctx, dst)
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", err, output.ErrChanged)
		}
		if err != nil {
			return nil, err
		}
		return readReport(dst)
	}

	d := &document{Work: w, steps: steps, o: o, out: out, report: newReport(w, o, key), start: start}
	if err := d.run(ctx); err != nil {
		if stage.Resumable(ctx, err) {
			return nil, errors.Join(err, out.Suspend())
		}
		return nil, errors.Join(err, out.Abort())
	}

	return d.report, nil
}

// document is a document whose output is open.
type document struct {
	*job.Work
	steps  job.Steps
	o      Options
	out    *output.Folder
	report *Report
	start  time.Time
}

// run merges into the output and finishes it.
func (d *document) run(ctx context.Context) error {
	if err := d.steps.Begin(d.out.Stage()); err != nil {
		return err
	}

	groups, err := d.steps.Groups(d.out.Done)
	if err != nil {
		return err
	}

	engine := d.Engine()
	engine.Written = d.out.Written
	engine.Noted = func(name string, n stream.Note) error { return d.out.Note(name, n) }
	stop := d.show(&engine)
	result, err := stream.Run(ctx, groups, d.out, engine)
	stop()
	if err != nil {
		return err
	}

	d.report.Threads, d.report.OnDevice = result.Threads, result.OnDevice
	d.report.Seconds = time.Since(d.start).Seconds()
	d.report.BytesPerSecond = float64(d.report.BytesOut) / d.report.Seconds
	return d.out.Finish(func(dir string) error { return d.finish(ctx, dir) })
}

// finish adds to the folder, whose weights have been read back, everything else.
func (d *document) finish(ctx context.Context, dir string) error {
	made, err := d.steps.Finish(ctx, dir)
	if err != nil {
		return err
	}

	if made != nil {
		m := Mediation(*made)
		d.report.Mediation = &m
		d.report.Seconds = time.Since(d.start).Seconds() // experts and routers take long
	}

	d.report.Warnings = d.Warnings
	if err := d.noted(d.out.Notes()); err != nil {
		return err
	}
	if err := d.writeSide(ctx, dir); err != nil {
		return err
	}

	return d.steps.Seal(ctx, dir)
}

// writeSide writes everything beside the weights: configuration, tokenizer, card, recipe and manifest.
func (d *document) writeSide(ctx context.Context, dir string) error {
	if err := d.WriteSide(dir); err != nil {
		return err
	}
	if err := output.WriteFile(filepath.Join(dir, "mergekit_config.yml"), d.Recipe.Text); err != nil {
		return err
	}

	card := output.Card{
		Plan: d.Plan, Documents: d.Recipe.Docs, Summary: d.Method.Summary,
		Based: d.Method.Spec.Base != recipe.BaseIgnored, Seed: d.o.Seed, Recipe: d.Recipe.Text,
		Remarks: weights.Remarks(ctx),
	}
	if err := output.WriteFile(filepath.Join(dir, "README.md"), card.Text()); err != nil {
		return err
	}

	var err error
	if d.report.Files, err = output.Sums(dir); err != nil {
		return err
	}

	manifest, err := json.MarshalIndent(d.report, "", "  ")
	if err != nil {
		return err
	}

	return output.WriteFile(filepath.Join(dir, output.ManifestName), append(manifest, '\n'))
}

// show passes the engine's progress on, from one goroutine, until it is stopped. What an interrupted run has done
// counts.
func (d *document) show(engine *stream.Options) (stop func()) {
	if d.o.Progress == nil {
		return func() {}
	}

	name := ""
	if len(d.Recipe.Docs) > 1 {
		name = d.Doc.Name
	}

	var done atomic.Int64
	for _, t := range d.Layout() {
		if size, err := t.DType.ByteSize(t.Shape); err == nil && d.out.Done(t.Name) {
			done.Add(size)
		}
	}

	wake := make(chan struct{}, 1)
	engine.Progress = func(n int64) {
		done.Add(n)
		select {
		case wake <- struct{}{}:
		default:
		}
	}

	return stream.Follow(wake, func() { d.o.Progress(Progress{name, done.Load(), d.report.BytesOut}) })
}

// identity identifies a merge: the recipe, the choices that change the output, and the inputs by path, size and time.
func identity(w *job.Work, o Options) (string, error) {
	var files []string
	for _, in := range w.Inputs {
		files = append(append(files, w.Models[in.Ref].Files()...), weights.Place(in.Dir, "config.json"),
			weights.Place(in.Dir, "tokenizer.json"))
	}

	o.Threads, o.Memory = 0, 0
	return output.JobOf(map[string]any{
		"format": 3, "version": build.Version(), "recipe": string(w.Recipe.Text),
		"document": w.Doc.Name + stream.Elsewhere(o.Device), "options": o,
	}, files)
}
