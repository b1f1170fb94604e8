package tokenizer

import (
	"fmt"
	"strings"
)

// sparse bounds how far ids may run ahead of the number of tokens; it keeps a small file from asking for a large table.
const sparse = 1 << 20

// modelBuilder reads one kind of model.
type modelBuilder func(*Tokenizer, *node) (model, error)

func modelKinds() map[string]modelBuilder {
	return map[string]modelBuilder{
		"BPE": buildBPE, "Unigram": buildUnigram, "WordPiece": buildWordPiece, "WordLevel": buildWordLevel,
	}
}

// model turns one piece of pre-tokenized text into ids, which it adds with x.emit or to x.ids.
type model interface {
	tokenize(x *encoder, p piece) error
}

func (t *Tokenizer) buildModel(v value) (model, error) {
	n, err := newNode(v, 0)
	if err != nil {
		return nil, err
	}
	kind := n.kind
	if kind == "" {
		kind = guessModel(n)
	}
	build := modelKinds()[kind]
	if build == nil {
		return nil, unknown(kind, modelKinds())
	}
	m, err := build(t, n)
	if err == nil {
		err = n.err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return m, nil
}

// guessModel names the model of old files, which don't.
func guessModel(n *node) string {
	switch {
	case n.has("merges"):
		return "BPE"
	case strings.HasPrefix(n.fields["vocab"].text, "["):
		return "Unigram"
	case n.has("continuing_subword_prefix"):
		return "WordPiece"
	}
	return "WordLevel"
}

// readVocab reads a vocabulary that is an object of text: id.
func (t *Tokenizer) readVocab(n *node) error {
	v := n.fields["vocab"]
	if v.absent() {
		return fmt.Errorf("%w: no field \"vocab\"", ErrSyntax)
	}
	v.text = strings.Clone(v.text) // tokens share this copy, so that the rest of the file can go
	c := v.cursor()
	size := strings.Count(v.text, ":")
	t.ids = make(map[string]int32, size)
	return c.object(func(key string) error {
		id, err := c.integer()
		if err != nil {
			return err
		}
		if _, dup := t.ids[key]; dup {
			return fmt.Errorf("%w: token %q is listed twice", ErrVocab, key)
		}
		t.ids[key] = int32(id)
		return t.setToken(id, key, tokenModel, size)
	})
}

// setToken enters a token of the model or an added one. size is the number of tokens that are to come or known.
func (t *Tokenizer) setToken(id int64, text string, kind tokenKind, size int) error {
	if id < 0 || id >= int64(size)*8+sparse {
		return fmt.Errorf("%w: token %q has id %d in a vocabulary of %d", ErrTokenID, text, id, size)
	}
	for int64(len(t.tokens)) <= id {
		t.tokens = append(t.tokens, token{})
	}
	if old := t.tokens[id]; old.kind != tokenNone && old.text != text {
		return fmt.Errorf("%w: id %d belongs to both %q and %q", ErrTokenID, id, old.text, text)
	}
	t.tokens[id] = token{text, kind}
	return nil
}
