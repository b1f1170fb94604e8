package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/internal/hub"
	models "github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// adapterWord is the placeholder of an adapter.
const adapterWord = "ADAPTER"

// modelWords are the placeholders of arguments and flags that take a model or an adapter: a folder, or a name of the
// Hugging Face hub.
var modelWords = []string{"MODEL", adapterWord, "BASE", "TUNED", "A", "B", "SRC", "PATH", "DIR"}

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
			if word == adapterWord {
				err = checkAdapter(found[i])
			}
			if err != nil {
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
	word, _ := Placeholder(f)
	if word != "MODEL" && word != adapterWord {
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
	if err == nil && word == adapterWord {
		err = checkAdapter(dir)
	}
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
	if err != nil || dir == text {
		return dir, err
	}
	j.note(dir, text)

	// The form that names one of several is that of the name, not of the cache.
	if s := new(models.SeveralError); errors.As(models.Several(dir), &s) {
		return "", failure.Hinted(&models.SeveralError{Dir: text, Names: s.Names}, "such as "+text+"/"+s.Names[0])
	}

	return dir, nil
}

// checkAdapter refuses a file that is no adapter, before what it is for is opened.
func checkAdapter(path string) error {
	stat, err := os.Stat(path)
	switch {
	case path != "" && errors.Is(err, fs.ErrNotExist):
		return failure.Hinted(fmt.Errorf("adapter %s: %w", path, fs.ErrNotExist), "give the folder of an adapter, "+
			"with adapter_config.json and adapter_model.safetensors, a GGUF file, or owner/name of the hub")
	case err != nil || stat.IsDir():
		return nil // said by who reads it
	case models.IsGGUF(path) && IsAdapter(path):
		return nil
	case models.IsGGUF(path):
		return fmt.Errorf("%s: a GGUF file, where an adapter is wanted, and it is none (HINT: the folder of an "+
			"adapter, with adapter_config.json and adapter_model.safetensors, or a GGUF file that llama.cpp takes "+
			"for --lora)",
			path)
	}
	return fmt.Errorf("%s: a file, where an adapter is wanted (HINT: the folder of an adapter, with "+
		"adapter_config.json and adapter_model.safetensors)", path)
}

// IsImatrix tells an importance matrix.
func IsImatrix(path string) bool {
	_, err := imatrix.Read(path)
	return err == nil
}

// IsAdapter tells an adapter of llama.cpp's.
func IsAdapter(path string) bool {
	f, err := gguf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return ggufmodel.IsAdapter(f)
}
