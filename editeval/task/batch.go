package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/system"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Names in the folder of a batch. No model has the name of one: plainName and reserved see to that.
const (
	comparisonFile = "comparison.json"
	contractFile   = "contract" // what identifies an unfinished batch
	sumsFolder     = ".sums"    // hashes of the files of finished runs
)

// Ways in which a batch can be refused.
var (
	// ErrFinishedBatch: the folder is a finished batch or something else.
	ErrFinishedBatch = failure.Misuse("it is a finished batch or something else, and is not replaced",
		"choose another --out; with --cache a wider plan asks only what is new")
	// ErrOtherBatch: the interrupted batch had another plan, or other models or data.
	ErrOtherBatch = failure.Misuse("the interrupted batch had another plan, or other models or data",
		"start it again without --resume")
)

// BatchOptions configure [RunBatch] and [OpenBatch].
type BatchOptions struct {
	Resume bool   // continue an interrupted batch; otherwise what it has left is discarded
	Cache  string // folder that keeps answers by the model's weights and the request; "": none
	Seed   uint64 // of the bootstrap in comparisons
	// Contract names what results depend on besides the plan, its data and its models, such as the version of the
	// program. A batch is only continued under the same.
	Contract string
	// Note is told of what an interrupted batch has left that is done again; nil: nobody.
	Note func(text string)
}

// BatchModel is a model that is ready to be evaluated.
type BatchModel struct {
	Model     *lm.Model            // loaded; closed by whoever opened it
	Tokenizer *tokenizer.Tokenizer // of the model
	Identity  string               // see [Options]
}

// Unit is one run of a batch: a model and an entry of tasks of the plan, by position.
type Unit struct{ Model, Task int }

// BatchReport is what a plan gave.
type BatchReport struct {
	Models  []PlanModel                          `json:"models"`
	Results map[string]map[string]map[string]any `json:"results"`     // by model and task
	Against map[string][]Pair                    `json:"comparisons"` // of every model but the first with the first
	Reused  int                                  `json:"runs_reused"` // of an interrupted batch
}

// Batch is the evaluation of several models on several tasks in the making. Its folder lies hidden beside its final
// name and outlives an interruption. [Batch.Run] may be called from several goroutines at once, each with a model of
// its own.
type Batch struct {
	// Discarded: an interrupted batch was there, and is not continued.
	Discarded bool

	plan  *Plan
	o     BatchOptions
	dir   string         // where runs are until all are there
	final string         // "": another process coordinates
	lock  *system.Folder // nil: none
}

// RunBatch evaluates every model of a plan on every task, into the folder out, and compares the models with the first.
// open loads a model, and closed, which may be nil, is told when it is no longer needed; one model is open at a time.
// The same call with Resume goes on after an interruption.
//
// What it consists of can be called piece by piece, so that runs may go on beside each other or in other processes:
// [OpenBatch], [Batch.Contract], [Batch.Begin], [Batch.Run] for every [Unit], [Batch.Report], [Batch.Publish].
func RunBatch(ctx context.Context, p *Plan, out string,
	open func(ctx context.Context, m PlanModel) (*BatchModel, error), closed func(m *BatchModel) error, o BatchOptions,
) (_ *BatchReport, err error) {
	b, err := OpenBatch(p, out, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()

	if closed == nil {
		closed = func(*BatchModel) error { return nil }
	}

	with := func(i int, do func(m *BatchModel) error) error {
		m, err := open(ctx, p.Models[i])
		if err != nil {
			return fmt.Errorf("model %s: %w", p.Models[i].Name, err)
		}
		return errors.Join(do(m), closed(m))
	}

	// Every model is looked at before the first is asked anything: a plan with a mistake in its last line is known at
	// once.
	var identities []string
	for i := range p.Models {
		err := with(i, func(m *BatchModel) error { identities = append(identities, m.Identity); return nil })
		if err != nil {
			return nil, err
		}
	}

	contract, err := b.Contract(identities)
	if err != nil {
		return nil, err
	}
	if err := b.Begin(contract); err != nil {
		return nil, err
	}

	reused := 0
	for i := range p.Models {
		err := with(i, func(m *BatchModel) error {
			for t := range p.Tasks {
				before, err := b.Run(ctx, Unit{i, t}, m)
				if err != nil {
					return err
				}
				if before {
					reused++
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}

	r, err := b.Report(reused)
	if err != nil {
		return nil, err
	}

	return r, b.Publish(r, nil)
}

// OpenBatch locks the place of a batch, and refuses one that cannot be written. Without Resume what an interrupted
// batch has left is discarded.
func OpenBatch(p *Plan, out string, o BatchOptions) (*Batch, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}

	final, err := filepath.Abs(out)
	if err != nil {
		return nil, err
	}

	if err := stage.Vacant(final, nil); err != nil {
		switch {
		case !errors.Is(err, stage.ErrExists):
			return nil, err
		case o.Resume:
			return nil, fmt.Errorf("%s: %w", out, ErrFinishedBatch)
		default: // whose hint is about replacing, which a batch never does
			return nil, failure.Hinted(err, "choose another --out")
		}
	}

	b := &Batch{plan: p, o: o, final: final}
	b.dir = filepath.Join(filepath.Dir(final), "."+filepath.Base(final)+".batch")
	if err := scratch.Leftover(b.dir, append([]string{sumsFolder, "lock"}, reserved...)...); err != nil {
		return nil, err
	}
	if b.lock, err = stage.Lock(b.dir); err != nil {
		return nil, err
	}

	if !o.Resume {
		if err := b.discard(); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}

	return b, nil
}

// JoinBatch is a batch that another process coordinates in a folder, the Dir of its own [Batch].
func JoinBatch(p *Plan, dir string, o BatchOptions) (*Batch, error) {
	return &Batch{plan: p, o: o, dir: dir}, p.Validate()
}

// Dir is the hidden folder in which the batch grows. A program may keep hidden files there, and a folder "queue"; it
// removes them before [Batch.Publish].
func (b *Batch) Dir() string { return b.dir }

// Close ends the batch. What is done stays for one with Resume, unless it was published.
func (b *Batch) Close() error {
	if b.lock == nil {
		return nil
	}
	err := b.lock.Close()
	b.lock = nil
	return err
}

func (b *Batch) note(format string, args ...any) {
	if b.o.Note != nil {
		b.o.Note(fmt.Sprintf(format, args...))
	}
}

// discard removes what an earlier batch has left.
func (b *Batch) discard() error {
	_, err := os.Stat(filepath.Join(b.dir, contractFile))
	b.Discarded = err == nil

	entries, err := os.ReadDir(b.dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(b.dir, e.Name())))
	}

	return err
}

// Units lists the runs of the plan, model by model.
func (b *Batch) Units() (units []Unit) {
	for m := range b.plan.Models {
		for t := range b.plan.Tasks {
			units = append(units, Unit{m, t})
		}
	}
	return units
}

// known returns nil if a unit is one of the plan.
func (b *Batch) known(u Unit) error {
	if u.Model < 0 || u.Model >= len(b.plan.Models) || u.Task < 0 || u.Task >= len(b.plan.Tasks) {
		return fmt.Errorf("%w: it has no model %d or no task %d", ErrPlan, u.Model, u.Task)
	}
	return nil
}

// folder is that of a run.
func (b *Batch) folder(u Unit) string {
	return filepath.Join(b.dir, b.plan.Models[u.Model].Name, entryName(b.plan.Tasks[u.Task]))
}

// suite loads an entry of tasks.
func (b *Batch) suite(entry int) (*Suite, error) {
	return Load([]string{b.plan.Tasks[entry]}, b.plan.Data...)
}

// Contract is a hash of what all results depend on; identities are those of the models. It makes the prompts of all
// tasks, so that what is wrong with them is found before a model is asked.
func (b *Batch) Contract(identities []string) (string, error) {
	parts := []any{b.o.Contract, b.plan, identities}
	for i := range b.plan.Tasks {
		suite, err := b.suite(i)
		if err != nil {
			return "", err
		}

		checked, err := suite.Check(b.plan.options())
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

	return stage.Fingerprint(parts...)
}

// Begin takes the runs of an interrupted batch up, if it had the same contract, and refuses others: the error wraps
// [ErrOtherBatch]. Finished runs whose files are not what they were are removed, to be done again.
func (b *Batch) Begin(contract string) error {
	file := filepath.Join(b.dir, contractFile)
	before, err := safefile.ReadFile(file, maxResults)
	if err == nil && string(before) != contract {
		return fmt.Errorf("%s: %w", b.final, ErrOtherBatch)
	}
	if err := safefile.WriteFile(file, []byte(contract), 0o644); err != nil {
		return err
	}
	return b.sweep()
}

// SameFolder reports whether the folder of a batch that another process coordinates is reached from here: whether it
// holds the same contract.
func (b *Batch) SameFolder(contract string) bool {
	text, err := safefile.ReadFile(filepath.Join(b.dir, contractFile), maxResults)
	return err == nil && string(text) == contract
}

// Done reports whether the results of a run are there.
func (b *Batch) Done(u Unit) bool {
	if b.known(u) != nil {
		return false
	}
	_, err := b.results(u)
	return err == nil
}

// results are those of a run that is done.
func (b *Batch) results(u Unit) (map[string]map[string]any, error) {
	text, err := safefile.ReadFile(filepath.Join(b.folder(u), ResultsFile), maxResults)
	if err != nil {
		return nil, err
	}

	var r struct {
		Results map[string]map[string]any `json:"results"`
	}
	err = json.Unmarshal(text, &r)

	return r.Results, err
}

// Run evaluates a model of the plan on an entry of tasks, into the folder of the batch; reused is true, and nothing is
// done, where that was done before.
func (b *Batch) Run(ctx context.Context, u Unit, m *BatchModel) (reused bool, err error) {
	if b.Done(u) {
		return true, nil
	}
	if err := b.known(u); err != nil {
		return false, err
	}

	suite, err := b.suite(u.Task)
	if err != nil {
		return false, err
	}

	o := b.plan.options()
	o.Cache, o.Identity = b.o.Cache, m.Identity
	if o.Chat, err = b.plan.chat(b.plan.Models[u.Model]); err != nil {
		return false, err
	}

	// Results that cannot be read do not count as done, and are replaced.
	f, err := OpenFolder(b.folder(u), FolderOptions{Resume: true, Overwrite: true, Samples: true})
	if err != nil {
		return false, err
	}

	if _, err := f.Run(ctx, m.Model, m.Tokenizer, suite, o); err != nil {
		return false, errors.Join(err, f.Close())
	}

	return false, b.seal(u)
}

// sumsOf is the file with the hashes of the files of a run.
func (b *Batch) sumsOf(u Unit) string {
	return filepath.Join(b.dir, sumsFolder, fmt.Sprintf("%d-%d.json", u.Model, u.Task))
}

// seal keeps the hashes of a run that is finished.
func (b *Batch) seal(u Unit) error {
	sums, err := stage.Sums(b.folder(u))
	if err != nil {
		return err
	}
	return stage.WriteSealed(b.sumsOf(u), sums)
}

// sweep removes finished runs whose files are not what they were when they were finished, which is said.
func (b *Batch) sweep() error {
	for _, u := range b.Units() {
		var want map[string]string
		// Sums stand beside the folder, sealed: without them the run was not finished.
		err := stage.ReadSealed(b.sumsOf(u), &want)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}

		if err == nil {
			var have map[string]string
			if have, err = stage.Sums(b.folder(u)); err != nil {
				return err
			}
			if maps.Equal(want, have) {
				continue
			}
		} else if !errors.Is(err, stage.ErrDamaged) {
			return err
		}

		b.note("%s: damaged since it was written; the run is done again", b.folder(u))
		if err := errors.Join(os.RemoveAll(b.folder(u)), os.Remove(b.sumsOf(u))); err != nil {
			return err
		}
	}

	return nil
}

// Report reads the results of all runs, which must be done, and compares the models; reused of the runs were those of
// an interrupted batch.
func (b *Batch) Report(reused int) (*BatchReport, error) {
	r := &BatchReport{
		Models: b.plan.Models, Results: map[string]map[string]map[string]any{}, Against: map[string][]Pair{},
		Reused: reused,
	}

	for _, u := range b.Units() {
		rows, err := b.results(u)
		if err != nil {
			return nil, err
		}

		model := b.plan.Models[u.Model].Name
		if r.Results[model] == nil {
			r.Results[model] = map[string]map[string]any{}
		}
		maps.Copy(r.Results[model], rows)
	}

	for i, m := range b.plan.Models[1:] {
		for t := range b.plan.Tasks {
			c, err := Compare(b.folder(Unit{0, t}), b.folder(Unit{i + 1, t}), CompareOptions{Seed: b.o.Seed})
			if err != nil {
				return nil, err
			}
			r.Against[m.Name] = append(r.Against[m.Name], c.Rows...)
		}
	}

	return r, nil
}

// Publish writes the report, and more files by name, and gives the folder its name. Its hidden files are removed first.
func (b *Batch) Publish(r *BatchReport, more map[string][]byte) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}

	files := map[string][]byte{comparisonFile: append(text, '\n')}
	maps.Copy(files, more)
	for name, data := range files {
		if err := safefile.WriteFile(filepath.Join(b.dir, name), data, 0o644); err != nil {
			return err
		}
	}

	err = errors.Join(os.RemoveAll(filepath.Join(b.dir, sumsFolder)), os.Remove(filepath.Join(b.dir, contractFile)))
	if err == nil {
		if err = os.Remove(b.final); errors.Is(err, fs.ErrNotExist) { // an empty folder may be there
			err = nil
		}
	}
	if err == nil {
		err = os.Rename(b.dir, b.final)
	}
	if err == nil {
		err = safefile.SyncFolder(filepath.Dir(b.final))
	}

	return err
}
