package prune

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/modelcompress/compress/internal/cputime"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/safetensors"
)

// ErrOtherComparison: the folder holds a comparison of another model or on other data.
var ErrOtherComparison = failure.Others(failure.Misuse("the journal is that of another comparison", ""))

// comparing marks the reports and journals of comparisons.
const comparing = "compress prune compare"

// CompareOptions are the settings of a comparison.
type CompareOptions struct {
	Dir       string // folder for the journal and kept models, made if it is not there
	Keep      bool   // keep the pruned models, in Dir/models
	Resume    bool   // take finished runs from the journal in Dir, and go on with an unfinished one
	Overwrite bool   // an earlier comparison in Dir may be replaced

	// Open opens the model anew for a run, and a pruned one to measure it; nil is [lm.Load] on the device of the
	// model that is compared, with weights streamed.
	Open func(ctx context.Context, dir string) (*lm.Model, error)

	Events CompareEvents // told how the comparison goes
}

// CompareEvents are told how a comparison goes on, one after the other; any may be nil.
type CompareEvents struct {
	Run     func(i int)          // the run of contender i begins; not called for one that the journal has
	Step    func(s Step)         // of a run, see [Events]
	Measure func(done, of int64) // progress of the perplexity of the dense model, or of what a run has made
	Note    func(text string)    // a remark

	// Pruned has the report of a run, whose notes it may add to, before the model in folder is measured. m has served
	// as the source, and o are the options that it was pruned with. An error ends the comparison.
	Pruned func(m *lm.Model, o Options, folder string, r *Report) error
}

// Compare prunes a model in several ways, with the same calibration sequences, and measures the perplexity of each on
// the windows of test. Every contender is tested against the best of its target, with the windows as pairs.
//
// Each run starts from the dense model, which m only has to describe: a streamed one is enough. Measurements of the
// dense model and gradients are made once, for all runs that ask for them. A finished run is noted in
// Dir/journal.jsonl; with Resume it is taken from there, contenders may be added, and a kept model whose files have
// changed since is made again. After an error, what an interrupted run has finished stays for a resumed one where
// [Resumable] says so. A run in the journal counts for the same model, calibration ids and options alone.
//
// A run that its method cannot do on this model - an allocation that would have to take more than all of a block, a
// formula that gives all weights one score - has its reason in Impossible, and the others go on; if that holds for all,
// the reasons are the error.
//
// The errors wrap those of [CompareOptions.Check], [ErrOtherComparison], and those of [Check] and [Model] with the
// target and the method in front.
func Compare(ctx context.Context, m *lm.Model, calib, test corpus.Windows, list []Contender,
	o CompareOptions,
) (*Comparison, error) {
	if err := o.Check(m.Path()); err != nil {
		return nil, err
	}

	c := &comparison{o: o, model: m, calib: calib, test: test}
	if c.o.Open == nil {
		c.o.Open = func(ctx context.Context, dir string) (*lm.Model, error) {
			return lm.Load(ctx, dir, m.Device(), lm.Options{Stream: true, Decode: true})
		}
	}

	if err := c.plan(ctx, list); err != nil {
		return nil, err
	}
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	defer c.journal.close()

	if err := c.dense(ctx); err != nil {
		return nil, err
	}

	var reasons []error // of runs that are impossible
	for i := range c.runs {
		err := c.step(ctx, i)
		if err == nil {
			continue
		}

		r := &c.runs[i]
		named := fmt.Errorf("%s, %s: %w", r.Target, r.Method, err)
		if !impossible(err) {
			return nil, named
		}
		c.report.Impossible = append(c.report.Impossible, Impossible{r.Method, r.Target, err.Error()})
		reasons = append(reasons, named)
	}
	if len(reasons) == len(c.runs) {
		return nil, errors.Join(reasons...)
	}

	if !o.Keep {
		os.Remove(filepath.Join(o.Dir, modelsFolder)) // it stays if an earlier comparison kept some
	}

	c.report.judge()
	return &c.report, os.RemoveAll(filepath.Join(o.Dir, scratchFolder))
}

// Check returns what [Compare] would refuse about its folder: it is to be missing or empty, or with Resume or
// Overwrite that of an earlier comparison, and to lie apart from the model.
func (o CompareOptions) Check(model string) error {
	if err := stage.Apart(model, o.Dir); err != nil {
		return err
	}

	var allow func(dir string) error
	if o.Resume || o.Overwrite {
		allow = func(dir string) error {
			if isComparison(dir) {
				return nil
			}
			return fmt.Errorf("%w: %w", stage.ErrTarget, errForeign)
		}
	}

	return stage.Vacant(o.Dir, allow)
}

// errForeign: a folder has more in it than comparisons write.
var errForeign = failure.Misuse("it is not that of a comparison alone", "choose another --out")

// What is in the folder of a comparison. The reports are those of the command line.
const (
	modelsFolder  = "models"
	scratchFolder = "scratch"
	journalName   = "journal.jsonl"
)

var comparisonFiles = []string{
	"report.json", safefile.Unfinished("report.json"), "report.html", safefile.Unfinished("report.html"), modelsFolder,
	scratchFolder, journalName,
}

// comparison is what the runs share.
type comparison struct {
	o           CompareOptions
	model       *lm.Model
	calib, test corpus.Windows

	runs    []plannedRun
	job     string // fingerprint of what all runs share
	journal *outcomes
	report  Comparison
}

// plannedRun is a contender with all that its run needs.
type plannedRun struct {
	Contender
	key string // fingerprint of model, calibration ids and options
}

// plan makes the runs, so that what is wrong with any is found before the first one.
func (c *comparison) plan(ctx context.Context, list []Contender) error {
	model, err := c.model.Fingerprint(ctx)
	if err != nil {
		return err
	}

	if c.job, err = stage.Fingerprint(model, c.calib.Hash, c.test.Hash); err != nil {
		return err
	}

	c.report = Comparison{
		Command: comparing, Model: c.model.Path(), Calibration: c.calib.Hash,
		Data: c.test.Hash, Source: c.test.Source, SeqLen: c.test.SeqLen,
	}

	memo := &Memo{}
	for _, one := range list {
		r := plannedRun{Contender: one}
		r.Options.Memo = memo
		r.Options.Events.Step = c.o.Events.Step

		g := &r.Options.Gradients
		if r.Options.Needs()&Gradients != 0 && g.File == "" && g.Keep == "" {
			g.Keep = filepath.Join(c.o.Dir, scratchFolder, "gradients.safetensors")
			g.Half = !g.Exact // what the metrics get, in half of the space
		}

		if g.File != "" {
			if err := Check(ctx, c.model, c.calib, r.Options); err != nil {
				return err
			}
		}

		if r.key, err = Fingerprint(ctx, c.model, c.calib, r.Options); err != nil {
			return err
		}

		c.runs = append(c.runs, r)
	}

	return nil
}

// open makes the folder and opens the journal.
func (c *comparison) open(ctx context.Context) error {
	// Resume and Overwrite together mean: go on if it is this comparison; the journal decides that.
	if c.o.Overwrite && !c.o.Resume {
		if err := removeComparison(c.o.Dir); err != nil {
			return err
		}
	}

	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.o.Dir, 0o777); err != nil {
		return err
	}

	var err error
	path := filepath.Join(c.o.Dir, journalName)
	if c.journal, err = openOutcomes(path, c.job); err != nil {
		return err
	}

	// Models and scratch only after the journal: it holds the lock that keeps a second comparison out.
	err = errors.Join(os.MkdirAll(filepath.Join(c.o.Dir, modelsFolder), 0o777),
		os.MkdirAll(filepath.Join(c.o.Dir, scratchFolder), 0o777))
	if err != nil {
		c.journal.close()
	}

	return err
}

// denseKey is the place of the dense model in the journal.
const denseKey = "dense"

// dense measures the model as it is, unless the journal has it.
func (c *comparison) dense(ctx context.Context) error {
	done, found := c.journal.done[denseKey]
	if !found {
		var err error
		if done.HeldOut, err = c.measure(ctx, c.model); err != nil {
			return err
		}

		done.Method, done.Key = "dense", denseKey
		if err := c.journal.add(denseKey, done); err != nil {
			return err
		}
	}

	c.report.Dense = done.HeldOut
	return nil
}

// measure takes a model's perplexity.
func (c *comparison) measure(ctx context.Context, m *lm.Model) (HeldOut, error) {
	done, of := int64(0), m.LossWork(c.test)
	r, err := m.Perplexity(ctx, c.test, func(more int64) {
		done += more
		if c.o.Events.Measure != nil {
			c.o.Events.Measure(done, of)
		}
	})
	if err != nil {
		return HeldOut{}, err
	}

	return HeldOut{
		Perplexity: r.Perplexity, Stderr: r.Stderr, NLL: r.NLL, Tokens: r.Tokens, Windows: r.WindowNLL,
	}, nil
}

// step takes a run from the journal, or runs it.
func (c *comparison) step(ctx context.Context, i int) error {
	r := c.runs[i]
	folder := filepath.Join(c.o.Dir, modelsFolder, r.folderName())
	if done, ok := c.journal.done[r.key]; ok {
		again, err := c.lost(ctx, folder, &done)
		if err != nil {
			return err
		}

		if !again {
			done.Method, done.Target = r.Method, r.Target // as they are written this time
			c.report.Runs = append(c.report.Runs, done)
			c.report.Resumed++
			return nil
		}
	}

	if c.o.Events.Run != nil {
		c.o.Events.Run(i)
	}

	done := Outcome{Method: r.Method, Target: r.Target, Key: r.key}
	if err := c.prune(ctx, r, folder, &done); err != nil {
		return err
	}

	// The journal has a run only when its kept files are as their checksums say.
	if c.o.Keep {
		var err error
		done.Model = folder
		if done.Files, err = checksums(ctx, folder); err != nil {
			return err
		}
	} else if err := os.RemoveAll(folder); err != nil {
		return err
	}

	c.report.Runs = append(c.report.Runs, done)
	return c.journal.add(r.key, done)
}

// lost reports whether a finished run has to be made again, since its model is to be kept and is not there, or not as
// it was written.
func (c *comparison) lost(ctx context.Context, folder string, done *Outcome) (bool, error) {
	if !c.o.Keep {
		return false, nil
	}

	err := intact(ctx, folder, done)
	switch {
	case errors.Is(err, errChanged):
		if c.o.Events.Note != nil {
			c.o.Events.Note(fmt.Sprintf("%v: it is made again", err))
		}
		return true, os.RemoveAll(folder)
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	}

	return false, err
}

// prune does one run, into a folder, and measures what it made.
func (c *comparison) prune(ctx context.Context, r plannedRun, folder string, out *Outcome) error {
	m, err := c.o.Open(ctx, c.model.Path())
	if err != nil {
		return err
	}
	defer m.Close()

	o := r.Options
	if err := Check(ctx, m, c.calib, o); err != nil {
		return err
	}

	// Whatever an earlier run left in the folder of models may go, but for what this one can go on with.
	o.Out, err = m.NewSaver(folder, lm.SaveOptions{Overwrite: true, Resume: c.o.Resume, Fingerprint: r.key})
	if err != nil {
		return err
	}

	start := cputime.Process()
	done, err := Model(ctx, m, c.calib, o)
	if err != nil {
		return errors.Join(err, giveUp(err, o.Out))
	}

	if c.o.Events.Pruned != nil {
		if err := c.o.Events.Pruned(m, o, folder, done); err != nil {
			return err
		}
	}

	out.CPU = (cputime.Process() - start).Seconds()
	out.Sparsity = done.Total.Sparsity
	out.Overall = done.Total.Overall
	out.Notes = done.Notes
	out.Shared = done.Times.Gradients + done.Times.Allocate
	out.Seconds = done.Times.Total - out.Shared

	pruned, err := c.o.Open(ctx, folder)
	if err != nil {
		return err
	}

	out.HeldOut, err = c.measure(ctx, pruned)
	return errors.Join(err, pruned.Close())
}

// impossible reports whether an error concerns a run's own method and target alone.
func impossible(err error) bool { return errors.Is(err, ErrAllocation) || errors.Is(err, ErrConstant) }

// giveUp ends the output of a failed run.
func giveUp(why error, out *lm.Saver) error {
	if Resumable(why) {
		return out.Suspend()
	}
	return out.Abort()
}

// Resumable reports whether a resumed run can get past the error of a failed one, so that it is worth calling Suspend
// of the outputs rather than Abort: an interrupt, a full disk, another fault of the operating system, or a file that
// was cut short meanwhile. A fault of the input or of the options would only be met again.
func Resumable(err error) bool {
	var errno syscall.Errno
	return errors.Is(err, context.Canceled) || errors.Is(err, safetensors.ErrNoSpace) ||
		errors.Is(err, safetensors.ErrTruncated) || errors.As(err, &errno)
}
