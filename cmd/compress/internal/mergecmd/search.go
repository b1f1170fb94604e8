package mergecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge/mediate"
	"github.com/modelcompress/compress/merge/search"
)

const (
	// recipeLimit bounds what is read of a recipe file.
	recipeLimit = 1 << 20
	// stateDir is what an interrupted search goes on with, besides the journal.
	stateDir = ".search"
)

// Search finds the open numbers of a recipe.
func Search(j *cli.Job, path string, o SearchOptions) (_ any, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}

	s := &searchRun{Job: j, o: &o, out: o.Out}
	if s.path, err = filepath.Abs(path); err != nil {
		return nil, err
	}

	s.text, err = safefile.ReadFile(path, recipeLimit)
	if errors.Is(err, safefile.ErrTooLarge) {
		err = cli.Usagef("%s: longer than %d bytes, which no recipe is", path, recipeLimit)
	}
	if err != nil {
		return nil, err
	}

	_, missing := os.Lstat(s.state(""))
	lock, err := folder.Take(s.out, o.Resume, o.Overwrite)
	if err != nil {
		return nil, err
	}

	result, err := s.run()
	err = errors.Join(err, s.close())

	// What was refused as another search leaves a finished one as it was.
	refused := missing != nil && errors.Is(err, search.ErrJournal)
	if err == nil || !s.begun() || refused {
		err = errors.Join(err, os.RemoveAll(s.state("")))
		_ = os.Remove(s.out) // it stays if something is in it
	}

	return result, errors.Join(err, lock.Close())
}

// searchRun is one run of the verb.
type searchRun struct {
	*cli.Job
	o         *SearchOptions
	path, out string
	text      []byte
	spec      SearchSpec
	bench     *bench
	crew      *workers.Crew

	rounds int // of measurements
}

// state is a path below the folder of what an interrupted search goes on with.
func (s *searchRun) state(name string) string { return filepath.Join(s.out, stateDir, name) }

// begun tells whether there is something to go on with.
func (s *searchRun) begun() bool {
	st, err := os.Stat(filepath.Join(s.out, search.JournalName))
	return err == nil && st.Size() > 0
}

// folder is what lies in the folder of a search.
var folder = cli.Folder{
	From: "merge search", Holds: "a search", State: stateDir,
	Names: []string{search.JournalName, search.BestName}, Marks: []string{search.JournalName},
}

// run plans, assembles the workers and searches.
func (s *searchRun) run() (any, error) {
	opts, err := s.plan()
	if err != nil {
		return nil, s.Excerpted(err)
	}

	if s.begun() {
		if err := search.CheckJournal(s.text, s.out, opts); err != nil {
			return nil, err
		}
	}

	if err := s.assemble(); err != nil {
		return nil, err
	}

	opts.Rate = s.rate
	if s.o.Shared() || s.o.Resume {
		opts.Confirm = s.confirm
	}

	result, err := search.Run(s.Ctx, s.path, s.text, s.out, opts)
	if err != nil {
		return nil, s.Excerpted(err)
	}

	if err := s.crew.Withdraw(s.Ctx); err != nil {
		return nil, err
	}

	s.Table(found(result, s.out))
	return result, nil
}

// plan finds out what candidates are, and what they are measured by.
func (s *searchRun) plan() (o search.Options, err error) {
	if s.spec.Merge.Memory, err = cli.Bytes("memory", s.o.Memory); err != nil {
		return o, err
	}

	s.spec.Merge.Seed = s.Seed
	s.spec.Merge.Mediator = mediate.Mediator()
	dev, err := s.Device()
	if err != nil {
		return o, err
	}

	outline := s.state("outline")
	if err := os.RemoveAll(outline); err != nil {
		return o, err
	}

	p, err := search.Preview(s.Ctx, s.path, s.text, outline, search.JudgeOptions{Device: dev, Merge: s.spec.Merge})
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(outline)

	models, err := s.describe(p)
	if err != nil {
		return o, err
	}

	m, err := s.Load(outline, lm.Options{Stream: true, AllowExtra: true})
	if err != nil {
		return o, err
	}
	defer m.Close()

	if s.spec.Aims, err = s.o.aims(s.Job, m); err != nil {
		return o, err
	}

	aims, err := searchAims(s.spec.Aims)
	if err != nil {
		return o, err
	}

	return search.Options{
		Aims: aims, Models: models, Generations: s.o.Generations, Population: s.o.Population, Sigma: s.o.Sigma,
		Seed:   s.Seed,
		Resume: s.o.Resume, Merge: s.spec.Merge,
	}, nil
}

// describe writes what candidates are into the specification, and hashes what they are made of.
func (s *searchRun) describe(p *search.Plan) (models map[string]string, err error) {
	s.spec.Path, s.spec.Recipe = s.path, string(s.text)
	s.spec.Bytes, s.spec.OnDisk = p.Bytes, p.OnDisk != ""

	s.spec.Files, models = map[string]string{}, map[string]string{}
	for _, in := range p.Inputs {
		if in.Folder, err = filepath.Abs(in.Folder); err != nil {
			return nil, err
		}

		sum, err := hashFolder(s.Ctx, in.Folder)
		if err != nil {
			return nil, err
		}

		s.spec.Inputs, s.spec.Hashes = append(s.spec.Inputs, in), append(s.spec.Hashes, sum)
		models[in.Name] = sum
	}

	for _, file := range p.Files {
		abs, err := filepath.Abs(file)
		if err != nil {
			return nil, err
		}

		if s.spec.Files[abs], err = cli.FileHash(s.Ctx, abs); err != nil {
			return nil, err
		}

		models[abs] = s.spec.Files[abs]
	}

	if p.OnDisk != "" {
		s.Note("candidates are merged on the disk: %s", p.OnDisk)
	}

	return models, nil
}

// assemble opens the queue, with as many slots in this process as fit.
func (s *searchRun) assemble() error {
	dev, err := s.Device()
	if err != nil {
		return err
	}

	slots := s.o.Slots(dev.Info().Threads)
	onDisk := s.spec.OnDisk
	if slots > 0 && !onDisk {
		memory, err := room(s.o.InMemory, dev)
		if err != nil {
			return err
		}

		asked := slots
		switch slots, onDisk = resident(slots, memory, s.spec.Bytes); {
		case onDisk:
			s.Note("a candidate takes %s, and %s of memory are for candidates: they are merged on the disk, below %s",
				cli.Size(s.spec.Bytes), cli.Size(memory), s.out)
		case slots < asked:
			s.Note("%d candidates of %s at a time instead of %d: %s of memory are for candidates", slots,
				cli.Size(s.spec.Bytes), asked, cli.Size(memory))
		}
	}

	s.bench = newBench(&s.spec, s.state("candidates"), slots,
		func() (kernels.Device, error) { return workers.Share(dev, slots) })
	s.bench.onDisk = onDisk
	id, err := workers.Identity(dev)
	if err != nil {
		return err
	}

	spec, err := json.Marshal(s.spec)
	if err != nil {
		return err
	}

	s.crew, err = workers.Assemble(s.Job, workers.Options{
		Where: s.o.Where, Dir: s.state("queue"), Slots: slots, Kind: SearchKind,
		Name: SearchKind + "-" + cli.Fingerprint(id, string(spec), string(s.text), s.Seed)[:16], Spec: spec,
		Check: func(_ jobs.Item, data []byte) error { _, err := readRating(data); return err },
	}, s.bench.handle)
	return err
}

// close ends the workers of this process.
func (s *searchRun) close() error {
	var errs []error
	if s.crew != nil {
		errs = append(errs, s.crew.Close())
	}
	if s.bench != nil {
		errs = append(errs, s.bench.close())
	}
	return errors.Join(errs...)
}

// rate has the candidates of a generation measured by whoever takes them.
func (s *searchRun) rate(ctx context.Context, recipes [][]byte, done func(int, search.Rating) error) error {
	var items []jobs.Item
	same := map[string][]int{} // candidates by their item: rounded, two can be the same
	for k, text := range recipes {
		id := cli.Fingerprint(string(text))[:32]
		if same[id] = append(same[id], k); len(same[id]) == 1 {
			items = append(items, jobs.Item{ID: id, Data: text})
		}
	}

	s.rounds++
	_, err := s.crew.Do(ctx, fmt.Sprintf("round %d", s.rounds), items, func(r jobs.Result) error {
		rating, err := readRating(r.Data)
		if err != nil {
			return fmt.Errorf("worker %s: %w: %w", r.Worker, workers.ErrWork, err)
		}

		for _, k := range same[r.ID] {
			if err := done(k, rating); err != nil {
				return err
			}
		}

		return nil
	})
	if errors.Is(err, workers.ErrWork) {
		s.bench.mu.Lock()
		defer s.bench.mu.Unlock()
		err = cmpError(s.bench.fault, err) // of this process, it says more
	}

	return err
}

// errUntrue: what somebody measured is not what is measured here.
var errUntrue = errors.New("a score that a worker gave is not true")

// confirm measures the best candidate here, before it is written: others than this process may have measured it. The
// same program on the same kind of device gives the same bits.
func (s *searchRun) confirm(ctx context.Context, recipe []byte, score float64) error {
	b := s.bench
	if cap(b.free) == 0 { // all work was left to others
		b = newBench(&s.spec, s.state("confirmed"), 1, s.Device)
		b.onDisk = s.bench.onDisk
	}

	r, err := b.rate(ctx, recipe)
	if b != s.bench {
		err = errors.Join(err, b.close())
	}
	if err != nil {
		return err
	}
	if r.Failed != "" || r.Score != score {
		return fmt.Errorf("%w: the best candidate was said to have a loss of %.6g, and here it has %.6g%s "+
			"(HINT: a worker lies or computes wrongly; start again with workers that you know)",
			errUntrue, score, r.Score, r.Failed)
	}

	return nil
}

// found is the table of what a search found.
func found(r *search.Report, out string) *report.Table {
	t := &report.Table{Columns: report.Columns("number", "from", "to", "start", "best")}
	for i, v := range r.Variables {
		t.Add(v.Name, v.Low, v.High, v.Start, r.Values[i])
	}

	failed := 0
	for _, s := range r.Steps {
		if s.Failed != "" {
			failed++
		}
	}

	var names []string
	for _, a := range r.Options.Aims {
		names = append(names, a.Name)
	}

	t.Note = fmt.Sprintf("loss %.6g (%s)", r.Score, strings.Join(names, ", "))
	if r.Start >= 0 {
		t.Note += fmt.Sprintf(", at the start %.6g", r.Start)
	}

	t.Note += fmt.Sprintf("; %d candidates, %d of them without a score; recipe in %s", len(r.Steps), failed,
		filepath.Join(out, search.BestName))
	return t
}
