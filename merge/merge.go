package merge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/scratch"
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
	if err := r.merges(); err != nil {
		return nil, err
	}
	if len(r.docs) == 0 {
		return nil, fmt.Errorf("recipe without a document: %w", ErrOption)
	}

	dst, err := filepath.Abs(dst)
	if err != nil {
		return nil, err
	}

	o.Memory = cmp.Or(o.Memory, DefaultMemory)
	if o.Ties == TieDraw {
		o.Ties = "" // one choice, one job
	}

	parts := filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+".parts")
	named := map[string]string{}
	for _, doc := range r.docs[:len(r.docs)-1] {
		part := o
		part.Resume, part.Overwrite = true, true
		named[doc.Name] = filepath.Join(parts, fmt.Sprintf("%x", sha256.Sum256([]byte(doc.Name)))[:16])
		if err := os.MkdirAll(parts, 0o777); err != nil {
			return nil, err
		}
		if _, err := one(ctx, r, doc, named, named[doc.Name], part); err != nil {
			return nil, fmt.Errorf("document %q: %w", doc.Name, err)
		}
	}

	report, err := one(ctx, r, r.docs[len(r.docs)-1], named, dst, o)
	if err != nil {
		return nil, err
	}

	return report, removeParts(parts)
}

// partName is the form of the names of the results of documents, and of those that are not complete.
var partName = regexp.MustCompile(`^(?:[0-9a-f]{16}|\.[0-9a-f]{16}\.merging)$`)

// removeParts removes the results of a recipe's other documents. The folder stays if there is something else in it.
func removeParts(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
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
// as if they were there.
func Check(r Recipe, o Options) (s *Summary, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := r.merges(); err != nil {
		return nil, err
	}
	if len(r.docs) == 1 && r.docs[0].Mediate != nil {
		return checkMediation(r, o)
	}

	dir, release, err := scratch.Folder("compress-plan-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()

	named, before := map[string]string{}, []*Summary(nil)
	for i, doc := range r.docs {
		named[doc.Name] = filepath.Join(dir, fmt.Sprint(i))
		if s, err = preview(r, doc, named, o); err != nil {
			return nil, err
		}
		s.Document, s.Before = doc.Name, before
		before = append(before[:i:i], s)
	}

	return s, nil
}

// preview is the summary of one document, whose result's outline it leaves for those after it, if it has a name.
func preview(r Recipe, doc *recipe.Document, named map[string]string, o Options) (*Summary, error) {
	if doc.Mediate != nil {
		return nil, fmt.Errorf("%s: mediate among several documents cannot be planned, only merged: %w", r.path,
			ErrOption)
	}

	w, err := prepare(r, doc, named, o)
	defer w.close()

	if err != nil {
		return nil, err
	}

	groups, err := w.groups(func(string) bool { return false })
	if err == nil && doc.Name != "" {
		err = w.outline(named[doc.Name])
	}
	if err != nil {
		return nil, err
	}

	return w.summary(groups)
}

// summary is what a merge of groups would do.
func (w *work) summary(groups []stream.Group) (*Summary, error) {
	memory, err := stream.Budget(groups, w.streaming())
	if err != nil {
		return nil, err
	}

	p := w.plan.Summary()
	s := &Summary{
		Method: p.Method, Models: p.Models, Base: p.Base, Donor: p.Donor, Tensors: p.Tensors, Copied: p.Copied,
		Parameters: p.Parameters, Blocks: p.Blocks, BytesIn: p.BytesIn, BytesOut: p.BytesOut, Largest: p.Largest,
		LargestIn: p.LargestIn, DTypes: p.DTypes, Vocabulary: p.Vocabulary, Warnings: w.warnings, Memory: memory,
	}
	for _, t := range w.plan.Tensors {
		s.Plan = append(s.Plan, planned(w.plan, &t))
	}

	return s, nil
}

// one merges one document.
func one(ctx context.Context, r Recipe, doc *recipe.Document, named map[string]string, dst string,
	o Options,
) (report *Report, err error) {
	if doc.Mediate != nil {
		return mediate(ctx, r, doc, named, dst, o)
	}

	start := time.Now()
	w, err := prepare(r, doc, named, o)
	defer func() { err = errors.Join(err, w.close()) }()

	if err != nil {
		return nil, err
	}

	for _, dir := range w.folders {
		if output.Same(dir, dst) {
			return nil, fmt.Errorf("%s: %w", dst, ErrInPlace)
		}
	}

	job, err := w.job()
	if err != nil {
		return nil, err
	}

	if _, err := w.groups(func(string) bool { return false }); err != nil { // before anything is written
		return nil, err
	}

	w.warnings = append([]string(nil), w.plan.Warnings...)
	out, err := output.Open(dst, output.Options{
		Overwrite: o.Overwrite, Resume: o.Resume, Job: job, Tensors: w.layout(),
		Joints: w.plan.Joints, MaxShard: o.MaxShard, Readers: o.Workers, Every: o.journalEvery,
	})
	if err != nil {
		return nil, err
	}

	return w.fill(ctx, dst, job, out, func(report *Report) error { return w.run(ctx, out, report, start) })
}

// fill has run write an output unless that is complete already. What run leaves when it fails stays where a
// resumed merge can use it.
func (w *work) fill(ctx context.Context, dst, job string, out *output.Folder,
	run func(report *Report) error,
) (*Report, error) {
	if out.Complete() {
		return readReport(dst)
	}

	report := w.report(job)
	if err := run(report); err != nil {
		if output.Resumable(ctx, err) {
			return nil, errors.Join(err, out.Suspend())
		}
		return nil, errors.Join(err, out.Abort())
	}

	return report, nil
}

func (w *work) streaming() stream.Options {
	workers := w.o.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	memory := w.o.Memory
	if memory == 0 {
		memory = DefaultMemory
	}
	return stream.Options{Workers: workers, Memory: memory, AllowNonFinite: w.o.AllowNonFinite, Device: w.o.Device}
}

// run merges into an open output and finishes it.
func (w *work) run(ctx context.Context, out *output.Folder, report *Report, start time.Time) error {
	groups, err := w.groups(out.Done)
	if err != nil {
		return err
	}

	o := w.streaming()
	o.Written, o.Noted = out.Written, func(name string, n stream.Note) error { return out.Note(name, n) }

	var done atomic.Int64
	for _, t := range w.layout() {
		if size, err := t.DType.ByteSize(t.Shape); err == nil && out.Done(t.Name) {
			done.Add(size)
		}
	}

	show := make(chan struct{}, 1)
	o.Progress = func(n int64) {
		done.Add(n)
		select {
		case show <- struct{}{}:
		default:
		}
	}

	stop := w.show(&done, report.BytesOut, show)
	result, err := stream.Run(ctx, groups, out, o)
	stop()
	if err != nil {
		return err
	}

	report.Threads, report.There = result.Workers, result.There
	report.Warnings = w.warnings
	if err := w.noted(report, out.Notes()); err != nil {
		return err
	}

	report.Seconds = time.Since(start).Seconds()
	report.BytesPerSecond = float64(report.BytesOut) / report.Seconds
	return out.Finish(func(dir string) error { return w.sideFiles(dir, out.Shards(), report) })
}

// show passes progress on, from one goroutine, until it is stopped.
func (w *work) show(done *atomic.Int64, total int64, wake chan struct{}) (stop func()) {
	if w.o.Progress == nil {
		return func() {}
	}
	name := ""
	if len(w.recipe.docs) > 1 {
		name = w.doc.Name
	}
	return stream.Follow(wake, func() { w.o.Progress(Progress{name, done.Load(), total}) })
}

// job identifies a merge: the recipe, the choices that change the output, and the inputs by path, size and time.
func (w *work) job() (string, error) {
	var files []string
	for _, in := range w.inputs {
		files = append(append(files, w.models[in.Ref].Files()...), filepath.Join(in.Dir, "config.json"),
			filepath.Join(in.Dir, "tokenizer.json"))
	}

	o := w.o
	o.Workers, o.Memory = 0, 0
	return output.JobOf(map[string]any{
		"format": 3, "version": build.Version(), "recipe": string(w.recipe.text),
		"document": w.doc.Name + stream.Elsewhere(w.o.Device), "options": o,
	}, files)
}
