package searchcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/gp"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/prune/fitness"
)

// Summary is what --json and --report give: the report, which is the same for every run of the same search, and
// what this run took.
type Summary struct {
	*Report
	Setup Preparation `json:"setup"`

	Measured    int     `json:"measurements"`    // that came in during this run
	MeasureSecs float64 `json:"measure_seconds"` // that they took, wherever they were made
	SearchSecs  float64 `json:"search_seconds"`
	// candidates that were evaluated in this run, up to the rung that stopped them
	PerHour      float64 `json:"candidates_per_hour"`
	Parallel     float64 `json:"busy_workers"`                  // measurements under way, on average, during the search
	Continuation bool    `json:"continued_a_journal,omitempty"` // some of the candidates were taken from the journal
}

// Check finds what is wrong with flags by themselves.
func Check(j *cli.Job, paths []string, o Options) error {
	_, _, _, err := o.read(j, paths)
	return err
}

// read turns flags into the library's options.
func (o *Options) read(j *cli.Job, paths []string) (settings []fitness.Setting, g gp.Grammar, opts gp.Options,
	err error,
) {
	if err = o.validate(len(paths)); err == nil {
		settings, err = o.settings()
	}
	if err == nil {
		g, err = o.grammar()
	}
	if err == nil {
		opts, err = o.search(g, j.Seed)
	}

	return settings, g, opts, err
}

// Run searches.
func Run(j *cli.Job, paths []string, o Options) (_ any, err error) {
	settings, grammar, opts, err := o.read(j, paths)
	if err != nil {
		return nil, err
	}

	p, err := take(&o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.release()) }()

	if o.Resume {
		if err := p.writtenBy(compress.Version()); err != nil {
			return nil, err
		}
	}

	s := &search{Job: j, o: &o, place: p, opts: opts, grammar: grammar}
	if err := s.prepare(paths, settings); err != nil {
		return nil, errors.Join(err, s.close())
	}

	summary, err := s.run()
	if err = errors.Join(err, s.close()); err != nil {
		return nil, err
	}
	if err := p.clear(); err != nil {
		return nil, err
	}

	return summary, nil
}

// search is one run of the verb.
type search struct {
	*cli.Job
	o       *Options
	place   *place
	opts    gp.Options
	grammar gp.Grammar
	models  []Model
	judge   *fitness.Judge
	team    *team
	ladder  *fitness.Ladder
	watch   *watch
	setup   Preparation

	references int // measurements before the search
}

// prepare opens the models, gathers what the metrics look at, and starts the queue.
func (s *search) prepare(paths []string, settings []fitness.Setting) error {
	dev, err := s.Device()
	if err != nil {
		return err
	}

	threads := dev.Info().Threads
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}

	slots := s.o.Slots(threads)
	list, models, err := subjects(s.Job, paths, s.o, max(1, threads/max(1, slots)))
	if err != nil {
		return err
	}

	s.models = models
	bars := s.Bars()
	fo := fitness.Options{
		Settings: settings, Symbols: s.grammar.Symbols, Structure: s.o.kind(),
		Blocks: s.o.Blocks, Windows: s.o.Few, Benches: max(1, slots),
		Dir:  s.place.path(stateDir),
		Note: s.say, Plan: s.announce,
		Progress: func(model, stage string, done, of int64) { bars.Show(model+": "+stage, done, of) },
	}

	begin := time.Now()
	s.judge, err = fitness.NewJudge(s.Ctx, list, fo)
	bars.End()
	if err != nil {
		return err
	}

	s.setup.Seconds = time.Since(begin).Seconds()
	s.Note("%s ready after %v; now %s, which all others are compared with", counted(len(list), "model"),
		time.Since(begin).Round(time.Second), yardstick(s.o.kind()))

	spec := Spec{Judge: s.judge.ID(), Options: fo}
	for i, l := range list {
		sub := SubjectSpec{Name: l.Name, Path: models[i].Path, Fingerprint: models[i].Fingerprint}
		for k, w := range sets(&l) {
			sub.Data[k], sub.Lengths[k] = flat(*w)
		}
		spec.Subjects = append(spec.Subjects, sub)
	}

	if s.team, err = assemble(s.Job, s.o, s.judge, spec, slots); err != nil {
		return err
	}

	s.ladder, err = fitness.NewLadder(s.Ctx, s.judge.ID(), s.team.ask, s.o.ladder())
	return err
}

// Preparation is what getting the models ready took.
type Preparation struct {
	Seconds  float64         `json:"seconds"`
	Estimate []fitness.Setup `json:"estimate"` // before it began, by model
}

// announce says what getting a model ready will take.
func (s *search) announce(p fitness.Setup) {
	s.setup.Estimate = append(s.setup.Estimate, p)
	prefix := p.Model + ": "
	s.Announce(
		cli.Stage{Name: prefix + fitness.StageGradients, Work: p.Gradients},
		cli.Stage{Name: prefix + fitness.StageStatistics, Work: p.Statistics},
	)

	disk := "no gradients on the disk to be made"
	if p.Disk > 0 {
		disk = fmt.Sprintf("gradients %s on the disk, one set of calibration data at a time", cli.Size(p.Disk))
	}

	about := time.Duration(p.Seconds() * float64(time.Second)).Round(time.Second)
	s.Note("%sgetting ready takes about %v and %s of memory; %s", prefix, about, cli.Size(p.Memory), disk)
}

// say tells something while measurements go on, or before.
func (s *search) say(text string) {
	if s.team != nil {
		s.team.Note("%s", text)
		return
	}
	s.Note("%s", text)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// fitnessID is what a journal's qualities depend on.
func (s *search) fitnessID() string {
	return compress.Version() + " " + cli.Fingerprint(s.judge.ID(), s.o.ladder())
}

func (s *search) run() (*Summary, error) {
	o := s.opts
	o.Probe, o.FitnessID = s.judge.Probe(), s.fitnessID()
	o.Journal, o.Resume = s.place.path(journalFile), s.o.Resume

	s.watch, s.references = newWatch(s), s.team.Done
	o.Events = gp.Events{Evaluated: s.watch.evaluated, Generation: s.watch.generation}
	begin, before := time.Now(), s.team.Spent
	s.watch.start = begin
	r, err := gp.Search(s.Ctx, s.grammar, s.ladder, o)
	if err != nil {
		if cause := context.Cause(s.Ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}

	sum := &Summary{SearchSecs: time.Since(begin).Seconds(), Setup: s.setup}
	sum.PerHour = float64(s.watch.fresh) / sum.SearchSecs * 3600
	sum.Parallel, sum.Continuation = (s.team.Spent-before)/sum.SearchSecs, s.watch.replayed > 0
	journal, err := cli.FileHash(s.Ctx, o.Journal)
	if err != nil {
		return nil, err
	}

	if sum.Report, err = s.earlier(journal); err != nil {
		return nil, err
	}

	if sum.Report == nil {
		if sum.Report, err = s.finish(r, journal); err != nil {
			return nil, err
		}
	}

	sum.Measured, sum.MeasureSecs = s.team.Done, s.team.Spent
	if err := s.team.Withdraw(s.Ctx); err != nil {
		return nil, err
	}

	s.show(sum)
	return sum, nil
}

// earlier is the report of a finished search, whose test scores are not taken twice; nil if there is none of
// this journal. What stands beside it is written again where it is not what the report says.
func (s *search) earlier(journal string) (*Report, error) {
	text, err := safefile.ReadFile(s.place.path(reportFile), maxKept)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	r := &Report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", s.place.path(reportFile), err)
	}
	if r.JournalHash != journal || r.Options.FitnessID != s.fitnessID() || r.Winner.Tree == nil {
		return nil, nil
	}

	s.Note("the search was finished before; its report stays")
	return r, s.publish(r)
}

// finish chooses among the finalists, tests the front, and writes the results; the report comes last.
func (s *search) finish(r *gp.Result, journal string) (*Report, error) {
	rep := s.report(r, journal)
	var err error
	if rep.Traits, err = traits(r.Grammar, rep.Climbs); err != nil {
		return nil, err
	}
	if err := s.choose(rep, r); err != nil {
		return nil, err
	}
	if err := s.test(rep); err != nil {
		return nil, err
	}

	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := s.publish(rep); err != nil {
		return nil, err // without the report a resumed search comes here again
	}

	return rep, cli.WriteFile(s.place.path(reportFile), append(text, '\n'))
}

// publish writes what the report is followed by, where that does not stand there already.
func (s *search) publish(rep *Report) error {
	tree, err := json.MarshalIndent(rep.Winner.Tree, "", "  ")
	if err != nil {
		return err
	}

	var page bytes.Buffer
	if err := rep.Page().HTML(&page); err != nil {
		return err
	}

	for _, f := range []struct {
		name string
		text []byte
	}{{bestFile, append(tree, '\n')}, {pageFile, page.Bytes()}} {
		if is, err := safefile.ReadFile(s.place.path(f.name), maxKept); err == nil && bytes.Equal(is, f.text) {
			continue
		}
		if err := cli.WriteFile(s.place.path(f.name), f.text); err != nil {
			return err
		}
	}

	return nil
}

func (s *search) close() error {
	var faults []error
	if s.team != nil {
		faults = append(faults, s.team.Close())
	}
	if s.judge != nil {
		faults = append(faults, s.judge.Close())
	}
	return errors.Join(faults...)
}
