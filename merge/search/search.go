package search

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/job"
)

// The files that Run writes.
const (
	BestName    = "best.yaml"     // the recipe with the best numbers
	JournalName = "journal.jsonl" // what was tried; an interrupted search continues from it

	candidateName = ".candidate" // what a candidate needs on the disk, while it is measured
)

// ErrScore: no candidate has a score.
var ErrScore = errors.New("no candidate has a score")

// Aim is something that candidates are measured by.
type Aim struct {
	Name string `json:"name"` // for the report
	// of all that the measure depends on, so that a search is only continued with the same aims
	Hash   string  `json:"hash"`
	Weight float64 `json:"weight"` // in the score; must be positive
	// Loss measures a model; less is better. An error that wraps lm.ErrNonFinite is the candidate's, any other
	// ends the search.
	Loss func(context.Context, *lm.Model) (float64, error) `json:"-"`
}

// Options are the choices of a search. Aims must be set, and Device or Rate.
type Options struct {
	Device kernels.Device `json:"-"`
	Aims   []Aim          `json:"aims"`
	// Models are hashes of the models' contents by the names in the recipe, which are part of what the journal
	// belongs to; nil: none.
	Models      map[string]string `json:"models,omitempty"`
	Generations int               `json:"generations"` // after the starting point; 0: 20
	Population  int               `json:"population"`  // candidates per generation; 0: 4 + 3·ln(number of open numbers)
	Sigma       float64           `json:"sigma"`       // standard deviation at the start as a fraction of each range; 0: 0.25
	Seed        uint64            `json:"seed"`
	Merge       merge.Options     `json:"merge"` // of every candidate; Overwrite, Resume and Progress do not matter
	Resume      bool              `json:"-"`     // continue an interrupted search
	Each        func(Step)        `json:"-"`     // called after every candidate, in their order; may be nil
	// OnDisk merges every candidate into a folder below the output, instead of in memory: for models that do
	// not fit there.
	OnDisk bool `json:"-"`
	// Rate rates candidates elsewhere, each as a Judge of this recipe and these options would; nil: one after
	// the other, here.
	Rate Rate `json:"-"`
	// Confirm looks at the best recipe and its score before anything is written; its error ends the search. It may be
	// nil.
	Confirm func(ctx context.Context, recipe []byte, score float64) error `json:"-"`
}

// Report says what a search found.
type Report struct {
	Version   string     `json:"version"`
	Options   Options    `json:"options"`
	Variables []Variable `json:"variables"`
	Values    []float64  `json:"values"` // the best ones, in the order of Variables
	// Score is the loss of the best candidate: the mean of the aims by weight.
	// Start is that of the starting point, -1 if it could not be measured.
	Score  float64 `json:"score"`
	Start  float64 `json:"start_score"`
	Steps  []Step  `json:"steps"`
	Recipe string  `json:"recipe"` // with the best values
}

// Run finds the open numbers of a recipe, written {search: [low, high]}, that make the loss least: by an
// evolution strategy (CMA-ES), each candidate merged, in memory where that is possible, and measured. dst gets
// the journal and the recipe with the best numbers; the merge itself is left to [merge.Models]. The result and the
// journal depend on the recipe, the models, the aims, the options and the device, not on interruptions, nor on
// where and in which order candidates are rated. path names the recipe and the folder that its paths are
// relative to.
func Run(ctx context.Context, path string, text []byte, dst string, o Options) (*Report, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}

	space, err := parseOpen(path, text)
	if err != nil {
		return nil, job.Faulty(err)
	}

	start, err := merge.Parse(path, space.Recipe(space.Start()))
	if err == nil {
		_, err = job.Handle(start).Merges()
	}
	if err != nil {
		return nil, err
	}

	if err := os.MkdirAll(dst, 0o777); err != nil {
		return nil, err
	}

	journal, old, err := openJournal(filepath.Join(dst, JournalName), o.job(text), o.Resume)
	if err != nil {
		return nil, err
	}
	defer journal.Close()

	if o.Rate == nil {
		judge, err := NewJudge(path, filepath.Join(dst, candidateName),
			JudgeOptions{Device: o.Device, Aims: o.Aims, Merge: o.Merge, OnDisk: o.OnDisk})
		if err != nil {
			return nil, err
		}
		defer judge.Close()

		o.Rate = local(judge.score, 1)
	}

	course := o.course()
	course.old = old
	course.note = func(step Step) error {
		if o.Each != nil {
			o.Each(step)
		}
		return journal.Add(step)
	}

	result, err := evolve(ctx, space, o.Rate, course)
	if err != nil {
		return nil, err
	}

	if o.Confirm != nil {
		if err := o.Confirm(ctx, result.Recipe, result.Score); err != nil {
			return nil, err
		}
	}

	report := &Report{
		Version: build.Version(), Options: o, Variables: result.Variables, Values: result.Values, Score: result.Score,
		Start: result.Start,
		Steps: result.Steps, Recipe: string(result.Recipe),
	}
	return report, safefile.WriteFile(filepath.Join(dst, BestName), result.Recipe, 0o666)
}

// CheckJournal finds out whether a search can be gone on with, before anything is made ready for it: its errors are
// those that [Run] has with Resume for the journal in dst, which must be there.
func CheckJournal(text []byte, dst string, o Options) error {
	j, _, err := openJournal(filepath.Join(dst, JournalName), o.job(text), true)
	if err != nil {
		return err
	}
	return j.Close()
}

// CheckCandidate finds out whether a text is a candidate of a recipe: the recipe itself with a number within its
// bounds in the place of every open one, and nothing else. path names the recipe for messages.
func CheckCandidate(path string, recipe, candidate []byte) error {
	space, err := parseOpen(path, recipe)
	if err != nil {
		return job.Faulty(err)
	}
	return space.Check(candidate)
}

// validate returns every fault of the options, joined.
func (o Options) validate() error {
	errs := []error{o.Merge.Validate(), validAims(o.Aims), o.course().validate()}
	if o.Device == nil && o.Rate == nil {
		errs = append(errs, fmt.Errorf("a search needs a device: %w", merge.ErrOption))
	}
	return errors.Join(errs...)
}

// course is what the course of the search depends on.
func (o Options) course() settings {
	return settings{generations: o.Generations, population: o.Population, sigma: o.Sigma, seed: o.Seed}
}

// job identifies a search, so that a journal is only continued by the same one.
func (o Options) job(text []byte) string {
	o.Merge.Threads, o.Merge.Memory = 0, 0
	h := sha256.New()
	// Options are numbers and strings, which JSON can always express.
	_ = json.NewEncoder(h).Encode(map[string]any{
		"format": 1, "version": build.Version(), "recipe": string(text),
		"options": o,
	})
	return hex.EncodeToString(h.Sum(nil))
}
