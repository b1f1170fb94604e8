package merge

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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
	if err := output.WriteFile(filepath.Join(dir, "README.md"), w.card()); err != nil {
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

// card is the output's README.md: what it was made from and how, in the form that hubs read.
func (w *work) card() []byte {
	var b strings.Builder
	b.WriteString("---\nbase_model:\n")
	for _, m := range w.plan.Models {
		fmt.Fprintf(&b, "- %s\n", quoted(m.Model.Path))
	}
	b.WriteString("library_name: transformers\ntags:\n- mergekit\n- merge\n---\n\n# Merge\n\n")
	fmt.Fprintf(&b, "A merge of language models by the method `%s` (%s), made with compress.\n\n", w.doc.Method, w.method.Summary)
	if w.plan.Base >= 0 && w.method.Spec.Base != recipe.BaseIgnored {
		fmt.Fprintf(&b, "Base: `%s`\n\n", w.plan.Models[w.plan.Base])
	}
	b.WriteString("Models:\n\n")
	for i, m := range modelWords(w.plan) {
		if i != w.plan.Base || w.method.Spec.Base == recipe.BaseIgnored {
			fmt.Fprintf(&b, "* `%s`\n", m)
		}
	}
	fmt.Fprintf(&b, "\n%d tensors, %d parameters; seed %d. `merge.json` holds the options and the inputs.\n\nRecipe:\n\n```yaml\n%s```\n",
		len(w.plan.Tensors), w.plan.Summary().Parameters, w.o.Seed, strings.TrimRight(string(w.recipe.text), "\n")+"\n")
	return []byte(b.String())
}

// quoted is a YAML scalar.
func quoted(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		return `""`
	}
	return string(text)
}
