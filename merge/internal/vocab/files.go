package vocab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
)

// files are those that belong to a tokenizer and can be copied with it.
var files = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "added_tokens.json",
	"vocab.json", "merges.txt", "vocab.txt", "spiece.model", "chat_template.jinja", "chat_template.json",
	"generation_config.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
}

// derived are files that repeat the vocabulary in another form: a changed tokenizer goes without them.
var derived = []string{"tokenizer.model", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "spiece.model"}

// tokenizers are the patterns of files that say how text becomes tokens.
var tokenizers = []string{
	"tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
	"*.model", "*.tiktoken", "token_mappings.json", "chat_template*",
}

// written are the files that a merge writes itself.
var written = []string{"config.json", "README.md"}

// CopyFiles copies what stands beside the weights of one model to another folder, with its tokenizer, but without what
// a merge writes itself.
func CopyFiles(src, dst string) error { return stage.CopySides(dst, src, false, written...) }

// CopyOthers is [CopyFiles] without the files of the tokenizer, which [Vocabulary.WriteFiles] writes.
func CopyOthers(src, dst string) error {
	return stage.CopySides(dst, src, false, slices.Concat(written, tokenizers)...)
}

// copyFile copies one file if it is there.
func copyFile(src, dst, name string) error {
	text, err := readFile(src, name, maxTokenizer)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return safefile.WriteFile(filepath.Join(dst, name), text, 0o644)
}

// WriteFiles writes the tokenizer into a folder: with a changed vocabulary tokenizer.json anew, and the other files of
// the model that it comes from; with a chat template that too.
func (v *Vocabulary) WriteFiles(dst string) error {
	src := v.inputs[v.from].Dir
	changed := v.out != nil && v.out.changed
	for _, name := range files {
		// Files derived from the vocabulary (vocab.json, merges.txt) would contradict the new one.
		if changed && (name == "tokenizer.json" || name == "tokenizer_config.json" || slices.Contains(derived, name)) {
			continue
		}
		if err := copyFile(src, dst, name); err != nil {
			return err
		}
	}

	if changed {
		text, err := v.out.write()
		if err != nil {
			return err
		}

		if err := safefile.WriteFile(filepath.Join(dst, "tokenizer.json"), text, 0o644); err != nil {
			return err
		}
	}

	if changed || v.template != "" {
		return v.writeConfig(src, dst)
	}

	return nil
}

// writeConfig writes tokenizer_config.json with the tokens and the template of the output, and the template's own file.
func (v *Vocabulary) writeConfig(src, dst string) error {
	text, err := readFile(src, "tokenizer_config.json", maxFile)
	// A tokenizer of tokenizer.json alone is complete; the template still needs a file to stand in.
	if errors.Is(err, fs.ErrNotExist) {
		text, err = []byte("{}"), nil
	}
	if err != nil {
		return err
	}

	o, err := orderedjson.Parse(text)
	if err != nil {
		return fmt.Errorf("%s/tokenizer_config.json: %w", src, err)
	}

	if v.out != nil && o.Has("added_tokens_decoder") {
		if err := o.Put("added_tokens_decoder", json.RawMessage(v.decoder())); err != nil {
			return err
		}
	}

	// Newer versions of transformers read the file of its own, older ones the entry: both get it.
	if v.template != "" {
		if err := o.Put("chat_template", v.template); err != nil {
			return err
		}
		if err := safefile.WriteFile(filepath.Join(dst, "chat_template.jinja"), []byte(v.template), 0o644); err != nil {
			return err
		}
	}

	out, err := o.Indent()
	if err != nil {
		return err
	}

	return safefile.WriteFile(filepath.Join(dst, "tokenizer_config.json"), out, 0o644)
}

// decoder lists the added tokens as tokenizer_config.json does: by id, without it.
func (v *Vocabulary) decoder() []byte {
	all := &orderedjson.Object{}
	for _, a := range v.out.added {
		entry := &orderedjson.Object{}
		for _, key := range []string{"content", "lstrip", "normalized", "rstrip", "single_word", "special"} {
			if a.fields.Has(key) {
				entry.Set(key, a.fields.Get(key))
			}
		}

		text, err := entry.Compact()
		if err == nil {
			all.Set(strconv.Itoa(a.id), text)
		}
	}

	text, _ := all.Compact() // keys are digits
	return text
}

// chooseTemplate finds the chat template that the recipe asks for: the most frequent one among the models, one of the
// known ones, or a literal.
func (v *Vocabulary) chooseTemplate() error {
	switch want := v.plan.ChatTemplate; {
	case want == "":
	case want == "auto":
		return v.frequentTemplate()
	case templates[want] != "":
		v.template = templates[want]
	default:
		v.template = want
	}

	return nil
}

// frequentTemplate takes the template that most models have; of equally frequent ones the first.
func (v *Vocabulary) frequentTemplate() error {
	count := map[string]int{}
	var order []string
	for i := range v.inputs {
		text, err := modelTemplate(v.inputs[i].Dir)
		if err != nil {
			return err
		}

		if text = strings.TrimSpace(text); text == "" { // templates that differ by a last newline are the same
			continue
		}

		count[text]++
		if count[text] == 1 {
			order = append(order, text)
		}
	}

	for _, text := range order {
		if count[text] > count[v.template] {
			v.template = text
		}
	}

	if v.template == "" {
		v.warn("no model has a chat template")
	}

	return nil
}

// modelTemplate gives a model's chat template, "" if it has none: the file of its own, or the entry of
// tokenizer_config.json, of several named ones the default.
func modelTemplate(dir string) (string, error) {
	text, err := readFile(dir, "chat_template.jinja", maxFile)
	if err == nil {
		return string(text), nil
	}

	for _, name := range []string{"chat_template.json", "tokenizer_config.json"} {
		if text, err = readFile(dir, name, maxFile); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return "", err
		}

		o, err := orderedjson.Parse(text)
		if err != nil {
			return "", fmt.Errorf("%s/%s: %w", dir, name, err)
		}

		if t := entryTemplate(o); t != "" {
			return t, nil
		}
	}

	return "", nil
}

// entryTemplate reads the key chat_template: text, or a list of named ones.
func entryTemplate(o *orderedjson.Object) string {
	var one string
	if o.Decode("chat_template", &one) {
		return one
	}

	var several []struct{ Name, Template string }
	o.Decode("chat_template", &several)

	for _, t := range several {
		if t.Name == "default" {
			return t.Template
		}
	}

	return ""
}
