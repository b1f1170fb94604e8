package mediate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/mediate/internal/router"
)

// promptFile finds a file of prompts: as it is, or else from the recipe.
func (m *mediation) promptFile(path string) string {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !filepath.IsAbs(path) {
		return filepath.Join(filepath.Dir(m.Recipe.Path), path)
	}
	return path
}

// checkRouter finds out before the work whether the router can be trained.
func (m *mediation) checkRouter(works bool) error {
	r := m.spec.Router
	if len(r.Prompts) == 0 {
		return nil
	}

	// The router is trained when everything is merged: what is missing is said now.
	has := map[string]bool{}
	for _, p := range r.Prompts {
		has[p.Expert] = true
		if err := checkTraining(m.promptFile(p.File), r.Features == "external"); err != nil {
			return err
		}
	}

	for _, name := range m.names {
		if !has[name] {
			return job.Faultf(m.Recipe.Path, "router: expert %q has no prompts", name)
		}
	}

	if works && r.Features != "external" && m.Options.Device == nil {
		return fmt.Errorf("%s: a router on %s needs a device: %w", m.Recipe.Path, r.Features, merge.ErrOption)
	}

	return nil
}

// writeRouter trains the router on the dense model.
func (m *mediation) writeRouter(ctx context.Context, dir, side string) error {
	spec := m.spec.Router
	if len(spec.Prompts) == 0 {
		return nil
	}

	files := map[string]string{}
	for _, p := range spec.Prompts {
		files[p.Expert] = m.promptFile(p.File)
	}

	features, err := m.features(ctx, dir, files)
	if err != nil {
		return err
	}

	counts := map[string]int{}
	for k, name := range m.names {
		counts[name] = len(features[k])

		// Files of features may come from different models.
		for _, f := range features[k] {
			if len(f) != len(features[0][0]) {
				return fmt.Errorf("features of %s have %d elements, those of %s %d: %w", name, len(f), m.names[0],
					len(features[0][0]), router.ErrFeature)
			}
		}
	}

	r, q, err := router.Fit(features,
		router.Options{Classifier: spec.Classifier, Shrinkage: spec.Shrinkage, Seed: m.Options.Seed})
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}

	m.manifest.Router = &routerRecord{
		Features: spec.Features, Classifier: spec.Classifier, Shrinkage: spec.Shrinkage, Dim: r.Dim(), Prompts: counts,
		HeldOut:  q.HeldOut,
		Accuracy: q.Accuracy, LogLoss: q.LogLoss, Temperature: r.Temperature, Outside: r.Outside,
	}

	if text := q.Warning(); text != "" {
		m.Warnings = append(m.Warnings, text)
	}

	return r.Save(filepath.Join(side, routerName))
}

// features gives the features of every member's prompts.
func (m *mediation) features(ctx context.Context, dir string, files map[string]string) ([][][]float64, error) {
	list := make([][][]float64, len(m.names))
	var model *lm.Model
	var tok *tokenizer.Tokenizer
	if m.spec.Router.Features != "external" {
		if err := m.WriteSide(dir); err != nil { // the engine reads configuration and tokenizer beside the weights
			return nil, err
		}

		var err error
		if model, err = lm.Load(ctx, dir, m.Options.Device, lm.Options{AllowExtra: true, Decode: true}); err != nil {
			return nil, err
		}
		defer model.Close()

		if tok, err = tokenizer.Load(dir); err != nil {
			return nil, err
		}
	}

	for k, name := range m.names {
		if model == nil {
			var err error
			if list[k], err = ReadFeatures(files[name]); err != nil {
				return nil, err
			}
			continue
		}

		prompts, err := ReadPrompts(files[name])
		if err != nil {
			return nil, err
		}

		for _, p := range prompts {
			ids, err := tok.Encode(p, tokenizer.EncodeOptions{})
			if err != nil {
				return nil, err
			}

			f, err := feature(ctx, model, m.spec.Router.Features, ids)
			if err != nil {
				return nil, fmt.Errorf("%s: prompt %.60q: %w", files[name], p, err)
			}

			list[k] = append(list[k], f)
		}
	}

	return list, nil
}
