package chat

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/weights"
)

// Files of a tokenizer's folder.
const (
	configFile     = "tokenizer_config.json"
	templateFile   = "chat_template.jinja"
	templateFolder = "additional_chat_templates"
	maxFile        = 16 << 20
)

// Source is a chat template as a tokenizer's folder has it.
type Source struct {
	Template string
	Tokens   map[string]string // special tokens by the names that templates use
}

// Read finds the chat template of a folder: chat_template.jinja, or what tokenizer_config.json says. name
// chooses one of several, which stand in the configuration or in additional_chat_templates; "" is the default
// one. Where there is only one, name changes nothing.
func Read(dir, name string) (Source, error) {
	named, tokens, err := find(dir)
	if err != nil {
		return Source{}, err
	}

	if name == "" || len(named) == 1 {
		name = standard
	}

	template, ok := named[name]
	if !ok {
		have := "none"
		if len(named) > 0 {
			have = strings.Join(slices.Sorted(maps.Keys(named)), ", ")
		}
		return Source{}, fmt.Errorf("%w: %s has no template %q; there: %s", ErrTemplate, dir, name, have)
	}

	return Source{template, tokens}, nil
}

// Default is what Read finds without a name, with an empty template where the folder has none at all.
func Default(dir string) (Source, error) {
	named, tokens, err := find(dir)
	if err != nil {
		return Source{}, err
	}
	if template, ok := named[standard]; ok || len(named) == 0 {
		return Source{template, tokens}, nil
	}
	return Read(dir, standard)
}

// standard is the name of the template that counts where none is named.
const standard = "default"

// find reads the templates of a folder by name, and its special tokens. A template in a file of its own counts
// more than one of the same name in the configuration, as in the transformers library.
func find(dir string) (named, tokens map[string]string, err error) {
	root, err := weights.OpenFiles(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()

	named, tokens = map[string]string{}, map[string]string{}
	config, err := readFile(root, configFile)
	if err == nil && config != nil {
		if named, tokens, err = readConfig(config); err != nil {
			err = fmt.Errorf("%s: %w", path.Join(dir, configFile), err)
		}
	}
	if err == nil {
		err = readTemplates(root, named)
	}

	return named, tokens, err
}

// readTemplates adds the templates that have files of their own.
func readTemplates(root *weights.Files, named map[string]string) error {
	files := map[string]string{"default": templateFile}
	found, err := root.In(templateFolder)
	if err != nil {
		return err
	}

	for _, file := range found {
		if name, ok := strings.CutSuffix(file, ".jinja"); ok {
			files[name] = path.Join(templateFolder, file)
		}
	}

	for name, file := range files {
		text, err := readFile(root, file)
		if err != nil {
			return err
		}

		if text != nil {
			named[name] = string(text)
		}
	}

	return nil
}

// readFile reads a file of a folder; nil without an error where there is none.
func readFile(root *weights.Files, name string) ([]byte, error) {
	text, err := root.Read(name, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, safefile.ErrTooLarge):
		return nil, fmt.Errorf("%w: %s is longer than %d bytes", ErrTemplate, name, maxFile)
	}
	return text, err
}
