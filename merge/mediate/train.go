package mediate

import (
	"context"
	_ "embed" // foreign prompts
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
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

	if err := m.alike(); err != nil {
		return err
	}

	if r.Foreign != "" {
		if _, err := ReadPrompts(m.promptFile(r.Foreign)); err != nil {
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

// alike refuses experts that have the same prompts, whatever their order and how often each stands there: nothing would
// tell such experts apart.
func (m *mediation) alike() error {
	r := m.spec.Router
	seen := map[string]string{}
	for _, p := range r.Prompts {
		path := m.promptFile(p.File)
		key := path // features from outside
		if r.Features != "external" {
			list, err := ReadPrompts(path)
			if err != nil {
				return err
			}
			slices.Sort(list)
			key = strings.Join(slices.Compact(list), "\x00")
		}

		if first, ok := seen[key]; ok {
			return failure.Hinted(fmt.Errorf("%s: %w: those of experts %q and %q are the same, so that no router can "+
				"tell the experts apart", m.Recipe.Path, router.ErrPrompts, first, p.Expert),
				"give each expert prompts of its own task")
		}
		seen[key] = p.Expert
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

	if spec.Classifier == router.Nearest {
		return m.writeNearest(ctx, dir, side, files)
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

	return m.saveRouter(r, q, side, spec.Features, counts)
}

// saveRouter notes what a router is and writes it.
func (m *mediation) saveRouter(r *router.Router, q router.Quality, side, features string, counts map[string]int) error {
	m.manifest.Router = &routerRecord{
		Features: features, Classifier: r.Classifier, Shrinkage: m.spec.Router.Shrinkage, Dim: r.Dim(), Prompts: counts,
		HeldOut:  q.HeldOut,
		Accuracy: q.Accuracy, LogLoss: q.LogLoss, Temperature: r.Temperature, Outside: r.Outside,
		Others: q.Others, Told: q.Told, Lost: q.Lost, Mix: r.Mix,
	}

	if text := q.Warning(); text != "" {
		m.Warnings = append(m.Warnings, text)
	}

	return r.Save(filepath.Join(side, routerName))
}

//go:embed foreign.txt
var foreignText string

// nobodys are prompts as a general model is asked, which are no expert's: languages, code, chat, questions, noise. A
// line of the file is a prompt, with \n and \t for what a line cannot hold.
func nobodys() (list []string) {
	for _, line := range strings.Split(strings.TrimSpace(foreignText), "\n") {
		list = append(list, strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(line))
	}
	return list
}

// affordable is the fraction of a prompt's pass that routing it may take where features are chosen.
const affordable = 0.05

// writeNearest trains a router by nearest prompts: on the features that are asked for, or on those of two kinds that
// serve best, where the dearer one has to be better if it takes more of a pass than is affordable.
func (m *mediation) writeNearest(ctx context.Context, dir, side string, files map[string]string) error {
	spec := m.spec.Router
	model, tok, err := m.dressed(ctx, dir)
	if err != nil {
		return err
	}
	defer model.Close()

	others := nobodys()
	if spec.Foreign != "" {
		list, err := ReadPrompts(m.promptFile(spec.Foreign))
		if err != nil {
			return err
		}
		others = append(others, list...)
	}

	kinds := []string{spec.Features}
	if spec.Features == "auto" {
		kinds = []string{"embed_mean", "early"}
	}

	type attempt struct {
		kind string
		r    *router.Router
		q    router.Quality
	}
	var chosen attempt
	var said []string
	counts := map[string]int{}
	for _, kind := range kinds {
		prompts := make([][]router.Prompt, len(m.names))
		for k, name := range m.names {
			texts, err := ReadPrompts(files[name])
			if err != nil {
				return err
			}
			counts[name] = len(texts)
			if prompts[k], err = seen(ctx, model, tok, kind, texts); err != nil {
				return fmt.Errorf("%s: %w", files[name], err)
			}
		}

		nobody, err := seen(ctx, model, tok, kind, others)
		if err != nil {
			return err
		}

		x := attempt{kind: kind}
		if x.r, x.q, err = router.FitNearest(prompts, nobody,
			router.Options{Classifier: router.Nearest, Seed: m.Options.Seed}); err != nil {
			return fmt.Errorf("router: %w", err)
		}

		n, _ := depth(kind, model.Blocks(), 1)
		cost := float64(n) / float64(max(1, model.Blocks()))
		least := 0.0
		if cost > affordable {
			least = 0.02 // what chance does to figures of some hundred prompts
		}
		if chosen.r == nil || merit(x.q) > merit(chosen.q)+least {
			chosen = x
		}
		said = append(said, fmt.Sprintf("%s (%d of %d blocks, about %.0f %% of a prompt's pass): accuracy %.3f, "+
			"foreign told %.3f, own taken for foreign %.3f", kind, n, model.Blocks(), 100*cost, x.q.Accuracy,
			x.q.Told, x.q.Lost))
	}

	if chosen.q.HeldOut > 0 {
		m.router = append([]string{fmt.Sprintf("features %s, temperature %.3g, foreign from log odds %.3g on, by %d "+
			"prompts and %d foreign ones", chosen.kind, chosen.r.Temperature, chosen.r.Outside, chosen.q.HeldOut,
			chosen.q.Others)}, said...)
	}

	return m.saveRouter(chosen.r, chosen.q, side, chosen.kind, counts)
}

// merit is what a router serves: experts found, foreign prompts told, and none of the experts' lost.
func merit(q router.Quality) float64 { return q.Accuracy + q.Told - q.Lost }

// seen is what the classifier by nearest prompts sees of texts.
func seen(ctx context.Context, model *lm.Model, tok *tokenizer.Tokenizer, kind string, texts []string) (
	list []router.Prompt, err error,
) {
	for _, text := range texts {
		ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
		if err != nil {
			return nil, err
		}

		f, err := feature(ctx, model, kind, ids)
		if err != nil {
			return nil, fmt.Errorf("prompt %.60q: %w", text, err)
		}
		list = append(list, router.Prompt{Feature: f, Grams: router.Grams(ids)})
	}

	return list, nil
}

// dressed opens the dense model with its tokenizer; configuration and tokenizer are put beside the weights for that.
func (m *mediation) dressed(ctx context.Context, dir string) (*lm.Model, *tokenizer.Tokenizer, error) {
	if err := m.WriteSide(dir); err != nil {
		return nil, nil, err
	}

	model, err := lm.Load(ctx, dir, m.Options.Device, lm.Options{AllowExtra: true, Decode: true})
	if err != nil {
		return nil, nil, err
	}

	tok, err := tokenizer.Load(dir)
	if err != nil {
		model.Close()
		return nil, nil, err
	}

	return model, tok, nil
}

// features gives the features of every member's prompts.
func (m *mediation) features(ctx context.Context, dir string, files map[string]string) ([][][]float64, error) {
	list := make([][][]float64, len(m.names))
	var model *lm.Model
	var tok *tokenizer.Tokenizer
	if m.spec.Router.Features != "external" {
		var err error
		if model, tok, err = m.dressed(ctx, dir); err != nil {
			return nil, err
		}
		defer model.Close()
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
