package cli

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/hub"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
)

// aside are flags without influence on what lies in --out: how fast, where and how often something is said or kept.
var aside = []string{
	"device", "threads", "quiet", "json", "report", "resume", "overwrite", "memory", "hessian-memory", "cache",
	"teacher-cache", "teacher-stream", "micro-batch", "save-every", "log-csv", "log-tensorboard", "masks",
	"imatrix-out", "save-grads", "tensors", "help",
}

// Typed is the name by which the user gave a model: that on the hub, or the path.
func (j *Job) Typed(path string) string { return cmp.Or(j.typed[path], path) }

// CommandLine is the command of the run as a card shows it: what influences the result, in an order of its own, so that
// runs with the same result have the same one. What it writes to is DIR or the like.
func (j *Job) CommandLine() string {
	words := strings.Fields(j.verb.CommandPath())
	for _, a := range withoutSecrets(j.given) {
		words = append(words, quotedWord(a))
	}

	j.verb.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains(aside, f.Name) {
			return
		}

		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
			if f.Value.Type() == "stringSlice" {
				values = []string{strings.Join(values, ",")}
			}
		}

		for _, v := range values {
			word, _ := Placeholder(f)
			switch {
			case f.Value.Type() == "bool" && v == "true":
				words = append(words, "--"+f.Name)
				continue
			case f.Value.Type() == "bool":
				words = append(words, "--"+f.Name+"="+v)
				continue
			case f.Name == "out":
				v = cmp.Or(word, "DIR")
			default:
				v = quotedWord(secret.ReplaceAllString(j.Typed(v), "$1"))
			}
			if f.NoOptDefVal != "" { // a value after a blank would be an argument
				words = append(words, "--"+f.Name+"="+v)
				continue
			}
			words = append(words, "--"+f.Name, v)
		}
	})

	return strings.Join(words, " ")
}

// quotedWord writes a word as a shell reads it.
func quotedWord(s string) string {
	plain := func(r rune) bool {
		return r > 0x7f || '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z' ||
			strings.ContainsRune("-_./:,=+@%", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Card completes a card by the command of the run and what it says of its models, and gives its text. base is the
// folder of the model that the result was made of, whose card it follows; empty: none.
func (j *Job) Card(base string, c card.Card) []byte {
	for i := range c.Base {
		c.Base[i] = j.Typed(c.Base[i])
		if n, ok := hub.Of(c.Base[i]); ok {
			c.Base[i] = n.ID()
		}
	}

	c.Command = j.CommandLine()
	for _, text := range j.SourceRemarks() {
		if !slices.Contains(c.Remarks, text) {
			c.Remarks = append(c.Remarks, text)
		}
	}
	if base != "" {
		// A card that is not there, or no text, is none.
		c.Of, _ = safefile.ReadFile(filepath.Join(base, card.Name), 2*card.MaxBase)
	}
	return c.Bytes()
}

// WriteCard writes a card into the folder of a result. A README.md that somebody has changed since an earlier run,
// which --resume goes on with, stays as it is.
func (j *Job) WriteCard(dir, base string, c card.Card) error {
	path := filepath.Join(dir, card.Name)
	if !stage.CardMayGo(dir, base) {
		j.Note("%s: changed since it was written, so it stays as it is", path)
		return nil
	}
	return WriteFile(path, j.Card(base, c))
}
