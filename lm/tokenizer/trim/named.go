package trim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/weights"
)

// listKeys are keys of generation_config.json whose tokens are kept out of a text, or weighed: what names a token that
// has gone has no effect any more, and goes too.
var listKeys = []string{"suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "force_words_ids", "sequence_bias"}

// pairKeys hold lists of a position and a token.
var pairKeys = []string{"forced_decoder_ids"}

// isIDKey reports whether a key of a configuration holds an id, or a list of them.
func isIDKey(key string) bool {
	for _, end := range []string{"_token_id", "_token_ids", "_token_index"} {
		if strings.HasSuffix(key, end) {
			return true
		}
	}
	return false
}

// findNamed collects the ids that the files name: they stay.
func (v *Vocabulary) findNamed() error {
	for _, name := range []string{modelConfig, generationConfig, tokenizerConfig} {
		if v.texts[name] == nil {
			continue
		}

		o, err := orderedjson.Parse(v.texts[name])
		if err != nil {
			return fmt.Errorf("%s: %w: %w", weights.Place(v.path, name), ErrFile, err)
		}
		v.findIDs(o)
	}

	v.findUnknown()
	v.findSpecial(tokenizerConfig)
	v.findSpecial(specialTokens)

	if v.root.Has("padding") {
		if padding, ok := v.root.Find("padding"); ok {
			v.named = append(v.named, idsIn(padding.Get("pad_id"))...)
		}
	}
	_, err := v.post(v.root.Get("post_processor"), func(id int32) (int32, bool) {
		v.named = append(v.named, id)
		return id, true
	})
	return err
}

// findIDs collects the ids that a configuration names.
func (v *Vocabulary) findIDs(o *orderedjson.Object) {
	for key, text := range o.All() {
		if isIDKey(key) {
			v.named = append(v.named, idsIn(text)...)
		}
		if !slices.Contains(pairKeys, key) {
			continue
		}

		var list [][]json.RawMessage
		_ = json.Unmarshal(text, &list)
		for _, pair := range list {
			if len(pair) == 2 {
				v.named = append(v.named, idsIn(pair[1])...)
			}
		}
	}
}

// idsIn reads an id or a list of ids; what is neither has none.
func idsIn(text json.RawMessage) (ids []int32) {
	var one *int32
	if json.Unmarshal(text, &one) == nil {
		if one != nil {
			ids = append(ids, *one)
		}
		return ids
	}

	_ = json.Unmarshal(text, &ids)
	return ids
}

// findUnknown collects the token for what is outside the vocabulary.
func (v *Vocabulary) findUnknown() {
	var unk string
	if v.model.Decode("unk_token", &unk) {
		if id, ok := v.plain[unk]; ok {
			v.named = append(v.named, id)
		}
	}

	var id int32
	if v.model.Decode("unk_id", &id) {
		v.named = append(v.named, id)
	}
}

// findSpecial collects the tokens that a file names by their text, as special tokens, and the added ones that it lists.
func (v *Vocabulary) findSpecial(name string) {
	o, err := orderedjson.Parse(v.texts[name])
	if err != nil {
		return // it is not there; one that is broken is no JSON for the tokenizer's reader either
	}

	keep := func(text json.RawMessage) {
		if id, ok := v.tok.TokenID(contentOf(text)); ok {
			v.named = append(v.named, id)
		}
	}

	for key, text := range o.All() {
		var list []json.RawMessage
		switch {
		case key == "added_tokens_decoder":
			table, err := orderedjson.Parse(text)
			if err != nil {
				continue
			}
			for id := range table.All() {
				if n, err := strconv.ParseInt(id, 10, 32); err == nil {
					v.named = append(v.named, int32(n))
				}
			}
		case strings.HasSuffix(key, "_special_tokens") && json.Unmarshal(text, &list) == nil:
			for _, one := range list {
				keep(one)
			}
		case strings.HasSuffix(key, "_token"):
			keep(text)
		}
	}
}

// contentOf reads a token in a configuration: its text, or an object with the text in "content".
func contentOf(text json.RawMessage) string {
	var plain string
	if json.Unmarshal(text, &plain) == nil {
		return plain
	}

	var object struct{ Content string }
	_ = json.Unmarshal(text, &object)
	return object.Content
}

// post gives a post-processor, or one of a sequence, with other ids, by a function that is false for one without.
func (v *Vocabulary) post(text json.RawMessage, id func(int32) (int32, bool)) (json.RawMessage, error) {
	if len(text) == 0 || string(text) == "null" {
		return text, nil
	}

	o, err := orderedjson.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: post_processor: %w", ErrFile, err)
	}

	if o.Has("processors") {
		var list []json.RawMessage
		o.Decode("processors", &list)
		for i := range list {
			if list[i], err = v.post(list[i], id); err != nil {
				return nil, err
			}
		}
		if err := o.Put("processors", list); err != nil {
			return nil, err
		}
	}

	if err := template(o, id); err != nil {
		return nil, err
	}
	for _, key := range []string{"sep", "cls"} { // of BERT and RoBERTa: a token and its id
		var pair []json.RawMessage
		if !o.Decode(key, &pair) || len(pair) != 2 {
			continue
		}
		changed, err := renumber(pair[1], id)
		if err != nil {
			return nil, err
		}
		if err := o.Put(key, []json.RawMessage{pair[0], changed}); err != nil {
			return nil, err
		}
	}

	return o.Compact()
}

// template gives the tokens of a template other ids.
func template(o *orderedjson.Object, id func(int32) (int32, bool)) error {
	tokens, ok := o.Find("special_tokens")
	if !ok {
		return nil
	}

	for _, key := range tokens.Keys() {
		one, err := orderedjson.Parse(tokens.Get(key))
		if err != nil {
			return fmt.Errorf("%w: post_processor: %w", ErrFile, err)
		}
		ids, err := renumber(one.Get("ids"), id)
		if err != nil {
			return err
		}
		one.Set("ids", ids)
		text, err := one.Compact()
		if err != nil {
			return err
		}
		tokens.Set(key, text)
	}

	text, err := tokens.Compact()
	o.Set("special_tokens", text)
	return err
}

// renumber gives an id or a list of ids other values. Of a list those without one go; an id without one, such as -1,
// stays as it is.
func renumber(text json.RawMessage, id func(int32) (int32, bool)) (json.RawMessage, error) {
	var one *int32
	if json.Unmarshal(text, &one) == nil {
		if one == nil {
			return text, nil
		}
		if x, ok := id(*one); ok {
			return orderedjson.Text(x)
		}
		return text, nil
	}

	var list []int32
	if json.Unmarshal(text, &list) != nil {
		return text, nil
	}
	out := list[:0:0]
	for _, one := range list {
		if x, ok := id(one); ok {
			out = append(out, x)
		}
	}
	if out == nil {
		out = []int32{}
	}
	return orderedjson.Text(out)
}
