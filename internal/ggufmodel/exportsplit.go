package ggufmodel

import (
	"encoding/json"
	"slices"
	"strings"
)

// usual lists the names that are written for a splitter of more than one, the first one that is known for it. The
// architecture's own goes before.
var usual = []string{
	"gpt-2", "llama-bpe", "qwen2", "smollm", "gpt-4o", "tekken", "deepseek-v3", "glm4", "stablelm2", "dbrx", "bloom",
	"bailingmoe",
}

// component is a pre_tokenizer or a normalizer of a tokenizer.json.
type component struct {
	Type       string
	Members    []component `json:"pretokenizers"`
	Normalizer []component `json:"normalizers"`
	Pattern    struct{ Regex, String string }
	Behavior   string
	Invert     bool
	Individual bool  `json:"individual_digits"`
	UseRegex   *bool `json:"use_regex"`
}

// findSplitter finds the name for how a byte-level tokenizer cuts text into words.
func (w *words) findSplitter() (string, error) {
	var pre, normalizer component
	if err := json.Unmarshal(w.json.Pre, &pre); err != nil {
		return "", w.fault("pre_tokenizer: %v", err)
	}
	if len(w.json.Normalizer) > 0 {
		if err := json.Unmarshal(w.json.Normalizer, &normalizer); err != nil {
			return "", w.fault("normalizer: %v", err)
		}
	}

	steps, ok := pre.cuts()
	nfc, plain := normalizer.composes()
	if ok && plain {
		for _, name := range append([]string{w.config.Arch.GGUF.Splitter}, w.candidates()...) {
			s, known := splitters[name]
			if known && s.whole == w.json.Model.IgnoreMerges && s.nfc == nfc && slices.Equal(s.cuts(), steps) {
				return name, nil
			}
		}
	}

	return "", w.fault("it cuts text into words (pre_tokenizer %s, normalizer %s, ignore_merges %t) as none of the "+
		"names that llama.cpp knows; known: %s", clip(string(w.json.Pre)), clip(string(w.json.Normalizer)),
		w.json.Model.IgnoreMerges, splitterNames())
}

// candidates lists the names in the order in which they are tried.
func (w *words) candidates() []string {
	names := slices.Clone(usual)
	for name := range strings.SplitSeq(splitterNames(), ", ") {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// cuts is what a splitter does, one cut after the other; bytes are spelled as letters by all.
func (s splitter) cuts() []string {
	list := slices.Clone(s.steps)
	if s.english && !slices.Contains(list, englishCut) {
		list = append(list, englishCut)
	}
	return list
}

// cuts is what a component does, in the words of a splitter; false where these have none for it.
func (c *component) cuts() (list []string, ok bool) {
	switch {
	case c.Type == "Sequence":
		for i := range c.Members {
			more, ok := c.Members[i].cuts()
			if !ok {
				return nil, false
			}
			list = append(list, more...)
		}
		return list, true
	case c.Type == "ByteLevel":
		if c.UseRegex == nil || *c.UseRegex {
			return []string{englishCut}, true
		}
		return nil, true
	case c.Type == "Digits" && c.Individual:
		return []string{digitCut}, true
	case c.Type == "Digits":
		return []string{numberCut}, true
	case c.Type == "Punctuation" && c.Behavior == "Contiguous":
		return []string{pointCut}, true
	case c.Type == "Split" && c.Pattern.Regex != "" &&
		(c.Behavior == "Isolated" && !c.Invert || c.Behavior == "Removed" && c.Invert):
		return []string{c.Pattern.Regex}, true
	}
	return nil, false
}

// composes reports whether a normalizer composes text; !plain where it does something else, too.
func (c *component) composes() (is, plain bool) {
	switch c.Type {
	case "":
		return false, true
	case "NFC":
		return true, true
	case "Sequence":
		plain = true
		for i := range c.Normalizer {
			nfc, one := c.Normalizer[i].composes()
			is = is || nfc
			plain = plain && one
		}
		return is, plain
	}
	return false, false
}
