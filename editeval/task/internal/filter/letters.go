package filter

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/modelcompress/compress/internal/pyvalue"
)

// letters are what lettered ignores when it looks for the text of a choice.
type letters struct {
	*finder
	lower, plain bool
	remove       []*Pattern
}

// lettered finds the letter of a choice, in parentheses: by the pattern; else by the text of one of the
// document's choices; else by a letter behind a colon.
func lettered(a *arguments) step {
	l := &letters{finder: newFinder(a), lower: a.bool("ignore_case"), plain: a.bool("ignore_punctuation")}
	for _, source := range a.texts("regexes_to_ignore") {
		p, err := Compile(source)
		if err != nil {
			a.fail("%v", err)
		}
		l.remove = append(l.remove, p)
	}

	return func(responses []any, doc *pyvalue.Dict) ([]any, error) {
		v, _ := doc.Get("choices")
		choices, ok := v.([]any)
		if !ok || len(choices) == 0 || len(choices) > 26 {
			return nil, fmt.Errorf("%w: the document's choices are %s, want a list of at most 26", ErrArgument,
				pyvalue.Kind(v))
		}

		out := make([]any, len(responses))
		for i, r := range responses {
			s, _ := r.(string)
			var err error
			if out[i], err = l.find(s, choices); err != nil {
				return nil, err
			}
		}

		return out, nil
	}
}

func (l *letters) find(s string, choices []any) (string, error) {
	m, found, err := find(l.p, s, l.pick)
	if err != nil || found && m != "" {
		return m, err
	}

	texts, names := make([]string, len(choices)), map[string]string{}
	for i, c := range choices {
		texts[i] = l.normal(pyvalue.Strip(pyvalue.Str(c)))
		names[texts[i]] = "(" + string(rune('A'+i)) + ")"
	}

	// of two that match, the longer one
	slices.SortStableFunc(texts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for i, t := range texts {
		texts[i] = regexp.QuoteMeta(t)
	}

	m, found, err = find(&Pattern{re: regexp.MustCompile(strings.Join(texts, "|"))}, l.normal(s), l.pick)
	if err != nil {
		return "", err
	}

	if name, ok := names[m]; ok {
		m = name
	}
	if found && m != "" {
		return m, nil
	}

	last := string(rune('A' + len(choices) - 1))
	m, found, err = find(&Pattern{re: regexp.MustCompile(`:[\s\p{Z}]*([A-` + last + `])`)}, s, l.pick)
	if err != nil || !found {
		return l.fallback, err
	}

	return "(" + m + ")", nil
}

// normal is a text without what is to be ignored.
func (l *letters) normal(s string) string {
	for _, p := range l.remove {
		s = p.RemoveAll(s)
	}
	if l.lower {
		s = strings.ToLower(s)
	}
	if !l.plain {
		return s
	}

	return strings.Map(func(r rune) rune {
		if unicode.IsPunct(r) {
			return -1
		}
		return r
	}, s)
}

func (a *arguments) bool(key string) bool {
	v := a.get(key)
	b, ok := v.(bool)
	if !ok && v != nil {
		a.fail("%s is a %s, want true or false", key, pyvalue.Kind(v))
	}
	return b
}

func (a *arguments) texts(key string) []string {
	v := a.get(key)
	list, ok := v.([]any)
	if !ok && v != nil {
		a.fail("%s is a %s, want a list of texts", key, pyvalue.Kind(v))
	}

	out := make([]string, 0, len(list))
	for _, x := range list {
		out = append(out, pyvalue.Str(x))
	}

	return out
}
