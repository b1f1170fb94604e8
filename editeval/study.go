package editeval

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/internal/sources"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/hub"
)

// Names of what a folder of results holds.
const (
	ResultsFile  = "results.json" // a [Report]
	TimingsFile  = "timings.json" // of this run: the only file that differs from run to run
	StateFolder  = ".editeval"    // what an interrupted run goes on with
	baseFolder   = "base"
	unitsFolder  = "sequences"
	editsFile    = "edits.json"
	sequenceFile = "sequence.json"
)

// ErrData: what a plan names cannot be used.
var ErrData = sources.ErrData

// Study is a plan with what it names: read, checked, and laid out in a folder.
type Study struct {
	Plan    Plan
	Records []edit.Record // of all files, in their order
	Counts  []int         // those of the plan that there are records for
	Remarks []string      // what a reader of the results must know
	Data    string        // hash of the records
	// Contract names what results depend on besides plan, data and models, such as the version of the program;
	// results of another one are made anew.
	Contract string
	// Note is told what a user must know while the work goes on; it may be called from several goroutines at
	// once. nil: nobody.
	Note func(text string)

	dir    string
	tasks  []entry
	active atomic.Int32 // sequences at work in this process
}

// entry is a task with its suite.
type entry struct {
	Task
	suite *task.Suite
}

// Open reads what a plan names. dir is the folder of results; texts and safety prompts become tasks below its
// [StateFolder].
func Open(p Plan, dir string) (*Study, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}

	p.complete()
	s := &Study{Plan: p, dir: dir}
	for _, e := range p.Editors {
		if idle := edit.Idle(e.Method, []byte(e.HParams)); len(idle) > 0 {
			s.remark("editor %s: %s does not read %s", e.Name, e.Method, strings.Join(idle, ", "))
		}
	}

	if err := s.records(); err != nil {
		return nil, err
	}

	if f := p.Stats.File; f != "" {
		if _, err := os.Stat(p.find(f)); err != nil {
			return nil, p.Missing("stats: file", f, err)
		}
	}

	folder := filepath.Join(dir, StateFolder, "tasks")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, err
	}

	entries, err := s.written(folder)
	if err != nil {
		return nil, err
	}

	return s, s.load(entries)
}

// find is a path of the plan: as it is, or beside the plan.
func (p *Plan) find(path string) string {
	if p.File == "" || filepath.IsAbs(path) {
		return path
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}

	beside := filepath.Join(filepath.Dir(p.File), path)
	if _, err := os.Stat(beside); err == nil {
		return beside
	}

	return path
}

// Path is where a model of the plan lies: at its path, beside the plan if there is nothing, or else in the hub's cache.
func (p *Plan) Path(path string) string {
	found := p.find(path)
	if _, err := os.Stat(found); err != nil {
		if dir, ok := hub.Find(path); ok {
			return dir
		}
	}
	return found
}

// Missing says which plan names a path, under which key, and where it was looked for, if err is about a file
// that is not there.
func (p *Plan) Missing(key, path string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) || p.File == "" {
		return err
	}
	return fmt.Errorf("%s: %s: %q: %w (HINT: paths count from the working directory, or else from the folder "+
		"of the plan)", p.File, key, path, err)
}

// records reads the files of edits.
func (s *Study) records() error {
	h := sha256.New()
	var doubts []doubt
	some := edit.ReadOptions{
		Skip:      s.Plan.Skip,
		NoSubject: !slices.ContainsFunc(s.Plan.Editors, func(e Editor) bool { return edit.NeedsSubject(e.Method) }),
	}
	for _, path := range s.Plan.Edits {
		set, err := edit.ReadSome(s.Plan.find(path), some)
		if err != nil {
			return s.Plan.Missing("edits", path, err)
		}

		if n := len(set.Skipped); n > 0 {
			s.remark("%s: %s skipped, the first: %s", path, label(n, "faulty record"), set.Skipped[0].What)
		}
		for _, m := range set.Remarks {
			doubts = append(doubts, doubt{m, path, len(s.Records)})
		}

		s.Records = append(s.Records, set.Records...)
	}

	for i := range s.Records {
		r := &s.Records[i]
		if n := s.Plan.Near; n > 0 {
			r.Near = r.Near[:min(n, len(r.Near))]
		}

		text, err := json.Marshal(r)
		if err != nil {
			return err
		}

		h.Write(text)
	}

	s.Data = hex.EncodeToString(h.Sum(nil))
	var left []string
	for _, c := range s.Plan.Counts {
		// Counts beyond the records are left out, not refused, so that one plan serves files of any size.
		if c <= len(s.Records) {
			s.Counts = append(s.Counts, c)
		} else {
			left = append(left, fmt.Sprint(c))
		}
	}

	if len(left) > 0 {
		s.remark("the files have %s: counts of %s are left out", label(len(s.Records), "edit"),
			strings.Join(left, ", "))
	}

	if len(s.Counts) == 0 {
		return fmt.Errorf("%w: counts: the smallest is %d, there are %d edits", ErrPlan, s.Plan.Counts[0],
			len(s.Records))
	}
	if err := s.keepCounts(); err != nil {
		return err
	}

	s.doubt(doubts)
	return nil
}

// doubt is a remark on a record.
type doubt struct {
	edit.Remark
	path  string
	first int // of the file's records, among all
}

// maxDoubts is how many remarks on records are made one by one.
const maxDoubts = 5

// doubt remarks on records that are edited. What is wrong with others, or with a pair of which one is not
// edited, concerns nobody.
func (s *Study) doubt(list []doubt) {
	used := s.used()
	list = slices.DeleteFunc(list, func(d doubt) bool {
		return !slices.Contains(used, d.first+d.Index) || !slices.Contains(used, d.first+d.Other)
	})

	for i, d := range list {
		if i == maxDoubts {
			s.remark("%s more that are edited repeat or contradict others, or change nothing",
				label(len(list)-i, "record"))
			return
		}
		s.remark("%s: record %d: %s", d.path, d.Index, d.What)
	}
}

func (s *Study) remark(format string, a ...any) {
	s.Remarks = append(s.Remarks, fmt.Sprintf(format, a...))
}

// load loads the suites, with all faults at once.
func (s *Study) load(entries []Task) error {
	var errs []error
	var data []string
	for _, d := range s.Plan.Data {
		data = append(data, s.Plan.find(d))
	}
	if s.Plan.File != "" {
		data = append(data, filepath.Dir(s.Plan.File))
	}

	seen := map[string]bool{}
	for _, t := range entries {
		if t.name == "" {
			t.name = stem(t.Entry)
		}

		if !plainName.MatchString(t.name) || seen[t.name] {
			errs = append(errs, fmt.Errorf("%w: task %.200q is there twice, or has no plain name", ErrPlan, t.Entry))
			continue
		}

		seen[t.name] = true
		suite, err := task.Load([]string{s.Plan.find(t.Entry)}, data...)
		if err == nil {
			err = s.try(suite, t)
		}

		errs = append(errs, s.Plan.Missing("tasks", t.Entry, err))
		s.tasks = append(s.tasks, entry{t, suite})
	}

	return errors.Join(errs...)
}

// try makes the prompts of a suite.
func (s *Study) try(suite *task.Suite, t Task) error {
	checked, err := suite.Check(s.options(t))
	errs := []error{err}
	for _, c := range checked {
		if c.Err != "" || c.NoData != "" {
			errs = append(errs, fmt.Errorf("%w: %s", ErrData, strings.TrimSpace(c.Err+" "+c.NoData)))
		}
	}
	return errors.Join(errs...)
}

// options of a task.
func (s *Study) options(t Task) task.Options {
	o := task.Options{Shots: s.Plan.Shots, Limit: s.Plan.Limit, Bootstrap: s.Plan.Bootstrap}
	if t.Limit > 0 {
		o.Limit = t.Limit
	}
	if t.Shots != nil {
		o.Shots = t.Shots
	}
	return o
}

// Tasks lists every task with how many documents are scored.
func (s *Study) Tasks() (names []string, documents []int, err error) {
	for _, t := range s.tasks {
		checked, err := t.suite.Check(s.options(t.Task))
		if err != nil {
			return nil, nil, err
		}

		for _, c := range checked {
			names, documents = append(names, c.Task), append(documents, c.Documents)
		}
	}

	return names, documents, nil
}

// written writes texts and safety prompts as tasks, and returns all entries.
func (s *Study) written(folder string) ([]Task, error) {
	entries := slices.Clone(s.Plan.Tasks)
	for _, t := range s.Plan.Texts {
		docs, err := sources.Documents(s.Plan.find(t.File), cmp.Or(t.Limit, s.Plan.Limit))
		if err != nil {
			return nil, s.Plan.Missing("texts", t.File, err)
		}

		path, err := sources.Perplexity(folder, "text_"+t.Name, docs)
		if err != nil {
			return nil, err
		}

		// All that was taken of the text: the plan's limit has been applied already.
		entries = append(entries, Task{Entry: path, Limit: len(docs)})
	}

	if f := s.Plan.Safety; f != nil {
		path, err := sources.Refusals(folder, s.Plan.find(f.File), f.Column, f.Refusals, f.MaxTokens)
		if err != nil {
			return nil, s.Plan.Missing("safety: file", f.File, err)
		}
		entries = append(entries, Task{Entry: path, Limit: f.Limit})
	}

	return entries, nil
}

// missing reports whether a file is not there.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
