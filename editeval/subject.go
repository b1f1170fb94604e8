package editeval

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/modelcompress/compress/editeval/edit"
	"github.com/modelcompress/compress/editeval/internal/sources"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// Subject is a model that is studied, with adapters and experts attached. It is used by one goroutine at a
// time, and is what it was when a call is over.
type Subject struct {
	Name      string               // for the report
	Model     *lm.Model            // edited, and put back after each sequence
	Tokenizer *tokenizer.Tokenizer // of the model
	Identity  string               // a hash of everything that its answers depend on
	// Router is that of task.Options, for experts that are chosen by request; nil: none.
	Router func(ctx context.Context, prompts [][]int32, run func(at []int) error) error

	hp         []edit.HParams // by editor
	stats      *edit.Statistics
	background [][]int32 // ordinary text, for editors with a side memory
	sep        []int32
	parameters int64
	quantised  []lm.Quantised
	remarks    []string
	device     string
	statistics string // hash of the tokens
}

// documentTokens is the length that documents of statistics are cut to.
const documentTokens = 512

// Prepare fits a plan to a model: hyper-parameters, tokens of all records, and the covariance of keys, which is
// kept in the folder. All faults of all editors are returned at once.
func (s *Study) Prepare(ctx context.Context, sub *Subject, progress func(done, total int)) error {
	blocks, err := s.fit(sub)
	besides := slices.ContainsFunc(s.Plan.Editors, func(e Editor) bool { return edit.NeedsBackground(e.Method) })
	switch {
	case err != nil || len(blocks) == 0 && !besides:
		return err
	case besides && s.Plan.Stats.File == "":
		return fmt.Errorf("%w: editors with a side memory hold facts against ordinary text (HINT: give a file of it "+
			"under stats)", ErrData)
	}

	docs, err := s.statistics(sub)
	if err != nil {
		return err
	}

	if besides {
		sub.background = edit.BackgroundOf(docs)
	}
	if len(blocks) == 0 {
		return nil
	}

	if progress == nil {
		progress = func(int, int) {}
	}

	sub.stats, err = edit.Cached(ctx, sub.Model, docs, blocks, filepath.Join(s.dir, StateFolder, "statistics"),
		sub.Identity, progress)
	if err == nil {
		sub.statistics = sub.stats.Data
	}

	return err
}

// fit finds the hyper-parameters of all editors and the layers that need the covariance of keys.
func (s *Study) fit(sub *Subject) (blocks []int, err error) {
	if sub.sep, err = sub.Tokenizer.Encode("\n", tokenizer.EncodeOptions{NoSpecial: true}); err != nil {
		return nil, err
	}

	sub.quantised, sub.remarks = sub.Model.Quantised()
	sub.hp, sub.parameters, sub.device = nil, sub.Model.NumParameters(), sub.Model.Device().Info().Name
	var errs []error
	for _, ed := range s.Plan.Editors {
		hp, err := edit.Defaults(ed.Method, sub.Model.Config())
		if err == nil && ed.HParams != "" {
			err = hp.Merge([]byte(ed.HParams))
			hp.Source += ", the plan"
		}
		if err == nil {
			if _, err = edit.New(sub.Model, edit.Options{Method: ed.Method, HParams: &hp}); errors.Is(err,
				edit.ErrStatistics) {
				err = nil // they are collected only when everything else fits
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, editor %s: %w", sub.Name, ed.Name, err))
		}

		if edit.NeedsStatistics(ed.Method, hp) {
			blocks = append(blocks, hp.Layers...)
		}

		sub.hp = append(sub.hp, hp)
	}

	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	slices.Sort(blocks)
	return slices.Compact(blocks), s.encodable(sub)
}

// encodable tries the tokens of all records.
func (s *Study) encodable(sub *Subject) error {
	var errs []error
	for k := range s.Plan.Editors {
		if k > 0 && slices.EqualFunc(sub.hp[k].Templates, sub.hp[k-1].Templates, slices.Equal) {
			continue
		}

		x := &edit.Encoder{
			Tokenizer: sub.Tokenizer, Templates: sub.hp[k].Templates,
			Positions: sub.Model.Config().MaxPositions,
		}
		for i := range s.Records {
			if _, err := x.Record(&s.Records[i]); err != nil && len(errs) < 8 {
				errs = append(errs, fmt.Errorf("record %d: %w", i, err))
			}
		}
	}

	return errors.Join(errs...)
}

// statistics are the documents of the covariance: those of a file, else the prompts of the records with the
// answers that were true before.
func (s *Study) statistics(sub *Subject) ([][]int32, error) {
	texts, err := s.statisticsTexts()
	if err != nil {
		return nil, err
	}

	limit := documentTokens
	if n := sub.Model.Config().MaxPositions; n > 0 {
		limit = min(limit, n)
	}

	chunks := filepath.Ext(s.Plan.Stats.File) != ".jsonl"
	x := &edit.Encoder{Tokenizer: sub.Tokenizer}
	var docs [][]int32
	left := s.Plan.Stats.Tokens
	for _, text := range texts {
		ids, err := x.Document(text, 0)
		if err != nil {
			return nil, err
		}

		// A record is a document and is cut; plain text is one long document and goes on in the next piece.
		if !chunks {
			ids = ids[:min(limit, len(ids))]
		}

		for len(ids) > 0 && left > 0 {
			n := min(limit, len(ids), left)
			docs, ids, left = append(docs, ids[:n]), ids[n:], left-n
		}
	}

	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: %w: no tokens for the covariance of keys", s.Plan.Stats.File, ErrData)
	}

	return docs, nil
}

func (s *Study) statisticsTexts() ([]string, error) {
	if path := s.Plan.Stats.File; path != "" {
		return sources.Documents(s.Plan.find(path), 0)
	}

	return edit.PromptTexts(s.Records), nil
}

// Release forgets what only measurements need: [Study.Report] still takes the subject, whose model may be closed.
func (sub *Subject) Release() {
	sub.Model = nil
	sub.Tokenizer = nil
	sub.Router = nil
	sub.stats = nil
	sub.background = nil
}

// editing prepares an editor of the plan on a model.
func (s *Study) editing(sub *Subject, k int, seed uint64) (*edit.Editing, edit.Options, error) {
	o := edit.Options{
		Method: s.Plan.Editors[k].Method, HParams: &sub.hp[k], Statistics: sub.stats, Seed: seed,
		Separator: sub.sep, Background: sub.background,
	}
	// The first of all records, whatever the order and the counts of a sequence: one with more counts goes on from it.
	if sub.hp[k].Anchor {
		x := &edit.Encoder{
			Tokenizer: sub.Tokenizer, Templates: sub.hp[k].Templates, Positions: sub.Model.Config().MaxPositions,
		}
		for i := range min(edit.AnchorFacts, len(s.Records)) {
			r, err := x.Record(&s.Records[i])
			if err != nil {
				return nil, o, err
			}
			o.Anchors = append(o.Anchors, r)
		}
	}

	e, err := edit.New(sub.Model, o)
	return e, o, err
}

// common is a hash of what all measurements of a model depend on.
func (s *Study) common(sub *Subject) (string, error) {
	parts := []any{
		s.Contract, sub.Identity, sub.Model.Device().Info().Name, s.Data, s.Plan.Near, s.Plan.Drift,
		s.Plan.Fluency,
	}
	for _, t := range s.tasks {
		checked, err := t.suite.Check(s.options(t.Task))
		if err != nil {
			return "", err
		}

		for i := range checked {
			checked[i].Path = ""
		}

		parts = append(parts, t.name, t.Limit, t.Shots, s.Plan.Limit, s.Plan.Shots, s.Plan.Bootstrap, checked)
	}

	return stage.Fingerprint(parts...)
}
