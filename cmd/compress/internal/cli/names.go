package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/internal/hub"
)

// modelWords are the placeholders of arguments and flags that take a model or an adapter: a folder, or a name of the
// Hugging Face hub.
var modelWords = []string{"MODEL", "ADAPTER", "BASE", "TUNED", "A", "B", "SRC", "PATH", "DIR"}

// findModels puts the folders of the hub's cache in the place of the names that arguments and flags have, so that no
// verb has to know of the cache. What was given stands in the report's args, what it stood for in its flags.
func (j *Job) findModels(c *cobra.Command, v Verb, args []string) (found []string, err error) {
	found = slices.Clone(args)
	words := strings.Fields(argumentsOf(c))
	for i := range found {
		if v.Local || len(words) == 0 {
			break
		}

		word := strings.Trim(words[min(i, len(words)-1)], "[].…") // the last stands for all that follow
		if slices.Contains(modelWords, word) {
			if found[i], err = j.findModel(found[i]); err != nil {
				return nil, err
			}
		}
	}

	for _, f := range changed(c) {
		if err := j.findFlag(f); err != nil {
			return nil, err
		}
	}

	return found, nil
}

// findFlag does it for a flag. DIR is not enough for one: it names outputs too.
func (j *Job) findFlag(f *pflag.Flag) error {
	if word, _ := Placeholder(f); word != "MODEL" && word != "ADAPTER" {
		return nil
	}

	if list, ok := f.Value.(pflag.SliceValue); ok {
		texts := list.GetSlice()
		for i := range texts {
			var err error
			if texts[i], err = j.findModel(texts[i]); err != nil {
				return err
			}
		}
		return list.Replace(texts)
	}

	dir, err := j.findModel(f.Value.String())
	if err != nil || dir == f.Value.String() {
		return err
	}
	if once, ok := f.Value.(*single); ok {
		return once.Value.Set(dir)
	}

	return f.Value.Set(dir)
}

// findModel finds one model, and tells a person where a name led to.
func (j *Job) findModel(text string) (string, error) {
	dir, err := hub.Locate(text)
	if err == nil && dir != text {
		j.Aside(text + ": " + dir)
	}
	return dir, err
}
