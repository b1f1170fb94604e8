package merge

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/recipe"
)

// sideFiles writes everything beside the weights: configuration, tokenizer, card, recipe and manifest.
func (w *work) sideFiles(dir string, _ []string, report *Report) error {
	donor := w.folders[w.plan.Models[w.plan.Donor]]
	if err := w.writeConfig(donor, dir); err != nil {
		return err
	}
	if err := w.writeTokenizer(donor, dir); err != nil {
		return err
	}
	if err := output.WriteFile(filepath.Join(dir, "mergekit_config.yml"), w.recipe.text); err != nil {
		return err
	}

	readme := output.Card{
		Plan: w.plan, Documents: w.recipe.docs, Summary: w.method.Summary,
		Based: w.method.Spec.Base != recipe.BaseIgnored, Seed: w.o.Seed, Recipe: w.recipe.text,
	}

	if err := output.WriteFile(filepath.Join(dir, "README.md"), readme.Text()); err != nil {
		return err
	}

	var err error
	if report.Files, err = output.Sums(dir); err != nil {
		return err
	}

	manifest, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}

	return output.WriteFile(filepath.Join(dir, output.ManifestName), append(manifest, '\n'))
}

// writeConfig writes the configuration, if the donor has one.
func (w *work) writeConfig(donor, dir string) error {
	config, err := readFile(filepath.Join(donor, "config.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	if config, err = w.plan.OutputConfig(config); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(donor, "config.json"), err)
	}

	return output.WriteFile(filepath.Join(dir, "config.json"), config)
}
