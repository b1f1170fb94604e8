package trim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// The files that name tokens or ids.
const (
	tokenizerFile    = "tokenizer.json"
	tokenizerConfig  = "tokenizer_config.json"
	specialTokens    = "special_tokens_map.json" // names tokens by their text alone
	addedTokens      = "added_tokens.json"
	vocabJSON        = "vocab.json"
	vocabText        = "vocab.txt"
	mergesText       = "merges.txt"
	modelConfig      = "config.json"
	generationConfig = "generation_config.json"
)

// others are patterns of files that repeat the vocabulary in forms that are not rewritten: with the old ids they would
// contradict tokenizer.json, so they are left out.
var others = []string{"*.model", "*.tiktoken", "tekken.json", "token_mappings.json", "vocab.bpe", "encoder.json"}

// Files gives the files that change with the vocabulary, by name, and the names of those that a model with it must not
// have. config.json gets its ids only: how many rows the model has is its configuration's affair.
func (v *Vocabulary) Files(s *Selection) (files map[string][]byte, left []string, err error) {
	w := &writer{v: v, s: s, files: map[string][]byte{}}
	for name := range v.texts {
		write := map[string]func() ([]byte, error){
			tokenizerFile: w.tokenizer, tokenizerConfig: w.tokenizerConfig, addedTokens: w.addedTokens,
			vocabJSON: w.vocabJSON, vocabText: w.vocabText, mergesText: w.mergesText,
			modelConfig:      func() ([]byte, error) { return w.config(modelConfig) },
			generationConfig: func() ([]byte, error) { return w.config(generationConfig) },
		}[name]
		if write == nil {
			continue
		}

		if w.files[name], err = write(); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", weights.Place(v.path, name), err)
		}
	}

	if err := w.check(); err != nil {
		return nil, nil, err
	}

	for _, name := range v.names {
		if slices.ContainsFunc(others, func(p string) bool { ok, _ := filepath.Match(p, name); return ok }) {
			left = append(left, name)
		}
	}

	return w.files, left, nil
}

// writer writes the files of a selection.
type writer struct {
	v     *Vocabulary
	s     *Selection
	files map[string][]byte
}

// id is the new id of an old one; false where it has none.
func (w *writer) id(old int32) (int32, bool) {
	id := w.s.id(old)
	return id, id >= 0
}

// check reads the new tokenizer as its users will.
func (w *writer) check() error {
	tok, err := tokenizer.Parse(w.files[tokenizerFile])
	if err != nil {
		return fmt.Errorf("the trimmed tokenizer cannot be read: %w", err)
	}

	for id, old := range w.s.Old {
		was, live := w.v.tok.Token(old)
		is, _ := tok.Token(int32(id))
		if live && w.v.live[old] && was != is {
			return fmt.Errorf("the trimmed tokenizer has %q under the id %d, not %q", is, id, was)
		}
	}

	return nil
}

// tokenizer writes tokenizer.json.
func (w *writer) tokenizer() ([]byte, error) {
	root, model := w.v.root.Clone(), w.v.model.Clone()
	if err := w.vocab(model); err != nil {
		return nil, err
	}

	if w.v.merges != nil {
		kept := []json.RawMessage{}
		for _, m := range w.v.merges {
			// By closure its parts are kept where its result is.
			if _, ok := w.id(m.into); ok {
				kept = append(kept, m.text)
			}
		}
		if err := model.Put("merges", kept); err != nil {
			return nil, err
		}
	}

	text, err := model.Compact()
	if err != nil {
		return nil, err
	}
	root.Set("model", text)
	if err := w.added(root); err != nil {
		return nil, err
	}

	if padding, ok := root.Find("padding"); ok && padding.Has("pad_id") {
		id, err := renumber(padding.Get("pad_id"), w.id)
		if err != nil {
			return nil, err
		}
		padding.Set("pad_id", id)
		if text, err = padding.Compact(); err != nil {
			return nil, err
		}
		root.Set("padding", text)
	}

	if root.Has("post_processor") {
		if text, err = w.v.post(root.Get("post_processor"), w.id); err != nil {
			return nil, err
		}
		root.Set("post_processor", text)
	}

	return root.Indent()
}

// vocab writes the tokens of the model.
func (w *writer) vocab(model *orderedjson.Object) error {
	if w.v.kind == "Unigram" {
		var list []json.RawMessage
		if err := json.Unmarshal(model.Get("vocab"), &list); err != nil {
			return err
		}

		kept := []json.RawMessage{}
		for _, old := range w.s.Old {
			if int(old) < len(list) {
				kept = append(kept, list[old])
			}
		}
		if err := model.Put("vocab", kept); err != nil || !model.Has("unk_id") {
			return err
		}

		id, err := renumber(model.Get("unk_id"), w.id)
		model.Set("unk_id", id)
		return err
	}

	text, err := w.table(model.Get("vocab"))
	model.Set("vocab", text)
	return err
}

// table gives an object of ids by tokens with the new ids, without the tokens that go.
func (w *writer) table(text []byte) (json.RawMessage, error) {
	old, err := orderedjson.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}

	kept := &orderedjson.Object{}
	for token, value := range old.All() {
		var was int32
		if err := json.Unmarshal(value, &was); err != nil {
			return nil, fmt.Errorf("%w: token %.100q has the id %.40s", ErrFile, token, value)
		}
		if id, ok := w.id(was); ok {
			kept.Set(token, json.RawMessage(strconv.Itoa(int(id))))
		}
	}

	return kept.Compact()
}

// added writes the added tokens, by their ids: libraries number those outside the model's vocabulary in this order.
func (w *writer) added(root *orderedjson.Object) error {
	if len(w.v.added) == 0 {
		return nil
	}

	list := slices.Clone(w.v.added)
	slices.SortStableFunc(list, func(a, b *added) int { return int(w.s.id(a.id)) - int(w.s.id(b.id)) })

	texts := make([]json.RawMessage, len(list))
	for i, a := range list {
		fields := a.fields.Clone()
		id, err := renumber(fields.Get("id"), w.id)
		if err != nil {
			return err
		}
		fields.Set("id", id)
		if texts[i], err = fields.Compact(); err != nil {
			return err
		}
	}

	return root.Put("added_tokens", texts)
}

// tokenizerConfig writes tokenizer_config.json.
func (w *writer) tokenizerConfig() ([]byte, error) {
	o, err := orderedjson.Parse(w.v.texts[tokenizerConfig])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}

	if table, ok := o.Find("added_tokens_decoder"); ok {
		text, err := w.byID(table)
		if err != nil {
			return nil, err
		}
		o.Set("added_tokens_decoder", text)
	}

	if err := w.ids(o); err != nil {
		return nil, err
	}
	return o.Indent()
}

// byID gives an object whose keys are ids the new ones, in their order.
func (w *writer) byID(table *orderedjson.Object) (json.RawMessage, error) {
	type entry struct {
		id   int32
		text json.RawMessage
	}

	var list []entry
	for key, text := range table.All() {
		old, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%w: added_tokens_decoder: %.40q is no id", ErrFile, key)
		}
		if id, ok := w.id(int32(old)); ok {
			list = append(list, entry{id, text})
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].id < list[j].id })

	out := &orderedjson.Object{}
	for _, e := range list {
		out.Set(strconv.Itoa(int(e.id)), e.text)
	}
	return out.Compact()
}

// config writes config.json or generation_config.json with the new ids.
func (w *writer) config(name string) ([]byte, error) {
	o, err := orderedjson.Parse(w.v.texts[name])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}

	if err := w.ids(o); err != nil {
		return nil, err
	}
	return o.Indent()
}

// ids gives the keys of a configuration that hold ids the new ones.
func (w *writer) ids(o *orderedjson.Object) error {
	for _, key := range o.Keys() {
		text, err := o.Get(key), error(nil)
		switch {
		case isIDKey(key):
			text, err = renumber(text, w.id)
		case slices.Contains(listKeys, key):
			text, err = w.sequences(text)
		case slices.Contains(pairKeys, key):
			text, err = w.pairs(text)
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		// Where all entries have gone, so has what they were for: transformers refuses some of these lists if they are
		// empty.
		if had := o.Get(key); string(text) == "[]" && slices.Contains(listKeys, key) && string(had) != "[]" {
			o.Delete(key)
			continue
		}
		o.Set(key, text)
	}
	return nil
}

// sequences renumbers a list of ids, of lists of ids, or of such with a weight; entries that name a token that has gone
// are left out.
func (w *writer) sequences(text json.RawMessage) (json.RawMessage, error) {
	var flat []int32
	var list []json.RawMessage
	if json.Unmarshal(text, &flat) == nil || json.Unmarshal(text, &list) != nil {
		return renumber(text, w.id)
	}

	kept := []json.RawMessage{}
	for _, one := range list {
		changed, whole, err := w.sequence(one)
		if err != nil {
			return nil, err
		}
		if whole {
			kept = append(kept, changed)
		}
	}
	return orderedjson.Text(kept)
}

// sequence renumbers a list of ids, or a pair of such a list and a weight, and reports whether all its tokens are left.
func (w *writer) sequence(text json.RawMessage) (json.RawMessage, bool, error) {
	var ids []int32
	if json.Unmarshal(text, &ids) == nil {
		out, whole := w.s.Map(ids)
		changed, err := orderedjson.Text(out)
		return changed, whole, err
	}

	var parts []json.RawMessage
	if json.Unmarshal(text, &parts) != nil {
		return text, true, nil // a weight
	}

	for i := range parts {
		changed, whole, err := w.sequence(parts[i])
		if err != nil || !whole {
			return nil, whole, err
		}
		parts[i] = changed
	}
	changed, err := orderedjson.Text(parts)
	return changed, true, err
}

// pairs renumbers the tokens of a list of positions and tokens, which are all kept.
func (w *writer) pairs(text json.RawMessage) (json.RawMessage, error) {
	var list [][]json.RawMessage
	if json.Unmarshal(text, &list) != nil {
		return text, nil
	}

	for _, pair := range list {
		if len(pair) != 2 {
			continue
		}
		changed, err := renumber(pair[1], w.id)
		if err != nil {
			return nil, err
		}
		pair[1] = changed
	}
	return orderedjson.Text(list)
}

// addedTokens writes added_tokens.json: ids by tokens.
func (w *writer) addedTokens() ([]byte, error) { return w.indented(addedTokens) }

// vocabJSON writes vocab.json, of the same form.
func (w *writer) vocabJSON() ([]byte, error) { return w.table(w.v.texts[vocabJSON]) }

func (w *writer) indented(name string) ([]byte, error) {
	text, err := w.table(w.v.texts[name])
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, err
	}
	return append(b.Bytes(), '\n'), nil
}

// vocabText writes vocab.txt, a token on each line, the first of which has the id 0.
func (w *writer) vocabText() ([]byte, error) {
	lines := strings.Split(strings.TrimSuffix(string(w.v.texts[vocabText]), "\n"), "\n")

	var b bytes.Buffer
	for _, old := range w.s.Old {
		if int(old) < len(lines) {
			b.WriteString(lines[old])
			b.WriteByte('\n')
		}
	}
	return b.Bytes(), nil
}

// mergesText writes merges.txt: a first line with the version, and a merge on each line.
func (w *writer) mergesText() ([]byte, error) {
	var prefix string
	w.v.model.Decode("continuing_subword_prefix", &prefix)

	var b bytes.Buffer
	for line := range strings.Lines(string(w.v.texts[mergesText])) {
		left, right, ok := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		id, known := w.v.plain[left+strings.TrimPrefix(right, prefix)]
		_, kept := w.id(id)
		if kept || !ok || !known || strings.HasPrefix(line, "#version") {
			b.WriteString(line)
		}
	}
	return b.Bytes(), nil
}
