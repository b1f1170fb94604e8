package cli

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/card"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
)

// explained adds to the refusal of an output that --resume was to go on with which options it was made with, or begun:
// as far as its card, or the note of what began it, says that.
func (j *Job) explained(err error, b begun) error {
	resume, out := j.verb.Flags().Lookup("resume"), j.verb.Flags().Lookup("out")
	if resume == nil || resume.Value.String() != "true" || out == nil {
		return err
	}

	var then, made string
	switch {
	case errors.Is(err, stage.ErrExists):
		then, made = cardCommand(out.Value.String()), "made"
	case failure.IsOthers(err):
		then, made = strings.TrimSuffix(string(b.then), "\n"), "begun"
	}
	if then == "" {
		return err
	}

	list := differing(then, j.CommandLine())
	switch {
	case len(list) > 0:
		return fmt.Errorf("%w; it was %s with %s", err, made, strings.Join(list, "; "))
	case made == "made":
		return fmt.Errorf("%w; its options were the same, so the model or the data is another", err)
	}
	return fmt.Errorf("%w; it was begun with the same options", err)
}

// cardCommand is the command on the card in a folder that this program wrote; "" if there is none.
func cardCommand(dir string) string {
	text, err := safefile.ReadFile(filepath.Join(dir, card.Name), 2*card.MaxBase)
	if err != nil || !card.Own(text) {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), "\n```sh\n")
	line, _, ended := strings.Cut(rest, "\n```\n")
	if !ended {
		return ""
	}
	return line
}

// differing lists the options that differ between two lines of [Job.CommandLine]: "--sparsity 0.5, now 0.6".
func differing(then, now string) (list []string) {
	was, is := options(then), options(now)
	names := maps.Clone(was)
	maps.Copy(names, is)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, before := was[name]
		b, after := is[name]
		switch {
		case a == b && before == after:
		case !before:
			list = append(list, fmt.Sprintf("no %s, now %s", name, b))
		case !after:
			list = append(list, strings.TrimSpace(name+" "+a)+", now without")
		default:
			list = append(list, fmt.Sprintf("%s %s, now %s", name, a, b))
		}
	}
	return list
}

// options are the flags of a command line with their values; the verb and its arguments, which stand before the first,
// are under "arguments".
func options(line string) map[string]string {
	all, name := map[string]string{}, "arguments"
	for _, word := range shellWords(line) {
		if !strings.HasPrefix(word, "--") {
			all[name] = strings.TrimSpace(all[name] + " " + word)
			continue
		}

		// A flag that is given twice keeps its first values too.
		flag, value, _ := strings.Cut(word, "=")
		name = flag
		all[name] = strings.TrimSpace(all[name] + " " + value)
	}
	return all
}

// shellWords divides what [quotedWord] has written.
func shellWords(line string) (words []string) {
	var word strings.Builder
	quoted, open := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\'':
			quoted, open = !quoted, true
		case c == '\\' && !quoted && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			open = true
		case c == ' ' && !quoted:
			if open {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteByte(c)
			open = true
		}
	}
	if open {
		words = append(words, word.String())
	}
	return words
}
