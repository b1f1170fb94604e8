package vocab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/weights"
)

// The ways in which a tokenizer can be unfit.
var (
	ErrNoTokenizer = errors.New("no tokenizer.json")
	ErrTokenizer   = errors.New("invalid tokenizer.json")
)

// Bounds on files, far above any model's.
const (
	maxTokenizer = 256 << 20
	maxFile      = 32 << 20
	maxID        = 1 << 24
)

// added is an entry of added_tokens.
type added struct {
	id      int
	content string
	special bool
	fields  *orderedjson.Object // all of it
}

// tokens is the vocabulary of a tokenizer.json, and the file.
type tokens struct {
	name  string // of the model, for messages
	text  []byte
	root  *orderedjson.Object
	model *orderedjson.Object
	kind  string          // of the model: BPE, Unigram, WordPiece, WordLevel
	plain map[string]int  // the model's own tokens
	added []added         // by id
	ids   map[string]int  // both
	extra map[string]bool // what added holds, by content
	next  int             // id of a token that is added: it follows the added ones and the number of the model's

	changed bool // the file has to be written anew
}

// readTokens reads the tokenizer.json of a folder. The error wraps ErrNoTokenizer if there is none.
func readTokens(name, dir string) (*tokens, error) {
	text, err := readFile(dir, "tokenizer.json", maxTokenizer)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w in %s", ErrNoTokenizer, dir)
		}
		return nil, err
	}

	t, err := parseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("%s/tokenizer.json: %w", dir, err)
	}

	t.name = name
	return t, nil
}

// readFile reads a file beside the weights of a model.
func readFile(dir, name string, limit int64) ([]byte, error) {
	return weights.ReadFile(dir, name, limit)
}

// parseTokens reads the text of a tokenizer.json.
func parseTokens(text []byte) (*tokens, error) {
	t := &tokens{text: text}
	var err error
	if t.root, err = orderedjson.Parse(text); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTokenizer, err)
	}
	if t.model, err = orderedjson.Parse(t.root.Get("model")); err != nil {
		return nil, fmt.Errorf("%w: model: %w", ErrTokenizer, err)
	}
	if t.plain, err = plainTokens(t.model); err != nil {
		return nil, err
	}

	t.model.Decode("type", &t.kind)
	if err := t.readAdded(); err != nil {
		return nil, err
	}

	t.index()
	return t, nil
}

// plainTokens reads a model's vocabulary: a map of ids, or a list of tokens with their scores.
func plainTokens(model *orderedjson.Object) (map[string]int, error) {
	vocab := model.Get("vocab")
	var ids map[string]int
	if json.Unmarshal(vocab, &ids) == nil && ids != nil {
		for token, id := range ids {
			if id < 0 || id >= maxID {
				return nil, fmt.Errorf("%w: token %q has the id %d", ErrTokenizer, token, id)
			}
		}
		return ids, nil
	}

	var list [][]json.RawMessage
	if err := json.Unmarshal(vocab, &list); err != nil || len(list) >= maxID {
		return nil, fmt.Errorf("%w: model.vocab is neither a map of ids nor a list of tokens", ErrTokenizer)
	}

	ids = make(map[string]int, len(list))
	for i, entry := range list {
		var token string
		if len(entry) == 0 || json.Unmarshal(entry[0], &token) != nil {
			return nil, fmt.Errorf("%w: entry %d of model.vocab is no token with a score", ErrTokenizer, i)
		}
		if _, twice := ids[token]; !twice { // of a token that stands there twice, the first one holds
			ids[token] = i
		}
	}

	return ids, nil
}

// readAdded reads added_tokens.
func (t *tokens) readAdded() error {
	var list []json.RawMessage
	if t.root.Has("added_tokens") && json.Unmarshal(t.root.Get("added_tokens"), &list) != nil {
		return fmt.Errorf("%w: added_tokens is no list", ErrTokenizer)
	}

	for i, text := range list {
		o, err := orderedjson.Parse(text)
		if err != nil {
			return fmt.Errorf("%w: added token %d: %w", ErrTokenizer, i, err)
		}

		a := added{fields: o}
		if !o.Decode("id", &a.id) || !o.Decode("content", &a.content) || a.id < 0 || a.id >= maxID {
			return fmt.Errorf("%w: added token %d has no usable id and content", ErrTokenizer, i)
		}

		o.Decode("special", &a.special)
		t.added = append(t.added, a)
	}

	slices.SortStableFunc(t.added, func(a, b added) int { return a.id - b.id })
	return nil
}

// index brings all tokens together.
func (t *tokens) index() {
	t.ids = make(map[string]int, len(t.plain)+len(t.added))
	for token, id := range t.plain {
		t.ids[token] = id
	}

	t.extra, t.next = make(map[string]bool, len(t.added)), len(t.plain)
	for _, a := range t.added {
		t.ids[a.content] = a.id
		t.extra[a.content] = true
		t.next = max(t.next, a.id+1)
	}
}

// rows is one more than the largest id, or the number of tokens if that is more.
func (t *tokens) rows() int {
	n := len(t.ids)
	for _, id := range t.ids {
		n = max(n, id+1)
	}
	return n
}

// byID lists the model's own tokens in the order of their ids.
func (t *tokens) byID() []string {
	out := make([]string, 0, len(t.plain))
	for token := range t.plain {
		out = append(out, token)
	}

	slices.SortFunc(out, func(a, b string) int {
		if d := t.plain[a] - t.plain[b]; d != 0 {
			return d
		}
		if a < b {
			return -1
		}
		return 1
	})

	return out
}

// strip removes the tokens that have no row in a model of that many.
func (t *tokens) strip(rows int) error {
	rows = max(rows, 0)
	removed := map[string]bool{}
	for token, id := range t.ids {
		if id >= rows {
			removed[token] = true
		}
	}

	if len(removed) == 0 {
		return nil
	}

	t.changed = true
	t.added = slices.DeleteFunc(t.added, func(a added) bool { return a.id >= rows })
	if err := t.stripModel(removed, rows); err != nil {
		return err
	}

	for token, id := range t.plain {
		if id >= rows {
			delete(t.plain, token)
		}
	}

	t.index()
	return nil
}

// stripModel rewrites vocabulary and merges without some tokens.
func (t *tokens) stripModel(removed map[string]bool, rows int) error {
	var list []json.RawMessage
	if json.Unmarshal(t.model.Get("vocab"), &list) == nil {
		if err := t.model.Put("vocab", list[:min(len(list), rows)]); err != nil {
			return err
		}
	} else {
		kept := &orderedjson.Object{}
		old, err := orderedjson.Parse(t.model.Get("vocab"))
		if err != nil {
			return fmt.Errorf("%w: model.vocab: %w", ErrTokenizer, err)
		}

		for _, token := range old.Keys() {
			if !removed[token] {
				kept.Set(token, old.Get(token))
			}
		}

		text, err := kept.Compact()
		if err != nil {
			return err
		}

		t.model.Set("vocab", text)
	}

	if !t.model.Has("merges") {
		return nil
	}

	var merges []json.RawMessage
	if err := json.Unmarshal(t.model.Get("merges"), &merges); err != nil {
		return fmt.Errorf("%w: model.merges is no list", ErrTokenizer)
	}

	// A merge of which one side, or the result, is gone can never be applied, and tokenizers refuse to load it.
	merges = slices.DeleteFunc(merges, func(m json.RawMessage) bool {
		left, right, ok := mergePair(m)
		return !ok || removed[left] || removed[right] || removed[left+right]
	})
	return t.model.Put("merges", merges)
}

// mergePair reads a merge: "left right" or ["left", "right"].
func mergePair(text json.RawMessage) (left, right string, ok bool) {
	var pair []string
	if json.Unmarshal(text, &pair) == nil {
		if len(pair) != 2 {
			return "", "", false
		}
		return pair[0], pair[1], true
	}

	var line string
	if json.Unmarshal(text, &line) != nil {
		return "", "", false
	}

	for i := range len(line) {
		if line[i] == ' ' {
			return line[:i], line[i+1:], true
		}
	}

	return "", "", false
}

// add adds a token with the settings of another tokenizer's entry, or with the usual ones for nil. One that the
// model has already becomes an added token under its id; an added one stays as it is.
func (t *tokens) add(content string, like *added) error {
	// The first model's settings hold.
	if t.extra[content] {
		return nil
	}

	id, known := t.ids[content]
	if known && like == nil {
		return nil
	}
	if !known {
		id = t.next
	}

	// All seven keys: the Rust tokenizers refuse an entry that lacks one.
	fields, special := &orderedjson.Object{}, false
	for _, x := range []struct {
		key   string
		value any
	}{
		{"id", id},
		{"content", content},
		{"single_word", false},
		{"lstrip", false},
		{"rstrip", false},
		{"normalized", true},
		{"special", false},
	} {
		if err := fields.Put(x.key, x.value); err != nil {
			return err
		}
		if like != nil && x.key != "id" && like.fields.Has(x.key) {
			fields.Set(x.key, like.fields.Get(x.key))
		}
	}

	fields.Decode("special", &special)
	t.added = append(t.added, added{id: id, content: content, special: special, fields: fields})
	t.ids[content] = id
	t.extra[content] = true
	t.next = max(t.next, id+1)
	t.changed = true

	return nil
}

// clone gives a copy that can be changed without changing t.
func (t *tokens) clone() (*tokens, error) {
	out, err := parseTokens(t.text)
	if err != nil || !t.changed {
		return out, err
	}

	text, err := t.write()
	if err != nil {
		return nil, err
	}

	if out, err = parseTokens(text); err == nil {
		out.changed = true
	}

	return out, err
}

// write gives the text of the tokenizer.json: the one that was read if nothing changed.
func (t *tokens) write() ([]byte, error) {
	if !t.changed {
		return t.text, nil
	}

	// Loaders give ids in the order of the list, whatever it says.
	slices.SortStableFunc(t.added, func(a, b added) int { return a.id - b.id })
	list := make([]json.RawMessage, len(t.added))
	for i, a := range t.added {
		text, err := a.fields.Compact()
		if err != nil {
			return nil, err
		}
		list[i] = text
	}

	if err := t.root.Put("added_tokens", list); err != nil {
		return nil, err
	}

	model, err := t.model.Compact()
	if err != nil {
		return nil, err
	}

	t.root.Set("model", model)
	return t.root.Indent()
}
