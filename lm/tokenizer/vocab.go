package tokenizer

import (
	"fmt"
	"strings"

	"github.com/modelcompress/compress/lm/tokenizer/internal/config"
	"github.com/modelcompress/compress/lm/tokenizer/internal/prepare"
)

// sparse bounds how far ids may run ahead of the number of tokens; it keeps a small file from asking for a large table.
const sparse = 1 << 20

// modelBuilder reads one kind of model.
type modelBuilder func(*Tokenizer, *config.Node) (model, error)

func modelKinds() map[string]modelBuilder {
	return map[string]modelBuilder{
		"BPE": buildBPE, "Unigram": buildUnigram, "WordPiece": buildWordPiece, "WordLevel": buildWordLevel,
	}
}

// model turns one piece of pre-tokenized text into ids, which it adds with x.emit or to x.ids.
type model interface {
	tokenize(x *encoder, p prepare.Piece) error
}

func (t *Tokenizer) buildModel(v config.Value) (model, error) {
	n, err := config.NewNode(v, 0)
	if err != nil {
		return nil, err
	}

	kind := n.Kind
	if kind == "" {
		kind = guessModel(n)
	}

	build := modelKinds()[kind]
	if build == nil {
		return nil, config.Unknown(kind, modelKinds())
	}

	m, err := build(t, n)
	if err == nil {
		err = n.Err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}

	return m, nil
}

// guessModel names the model of old files, which don't.
func guessModel(n *config.Node) string {
	switch {
	case n.Has("merges"):
		return "BPE"
	case strings.HasPrefix(n.Fields["vocab"].Text, "["):
		return "Unigram"
	case n.Has("continuing_subword_prefix"):
		return "WordPiece"
	}
	return "WordLevel"
}

// readVocab reads a vocabulary that is an object of Text: id.
func (t *Tokenizer) readVocab(n *config.Node) error {
	v := n.Fields["vocab"]
	if v.Absent() {
		return fmt.Errorf("%w: no field \"vocab\"", ErrSyntax)
	}

	v.Text = strings.Clone(v.Text) // tokens share this copy, so that the rest of the file can go
	c := v.Cursor()
	size := min(strings.Count(v.Text, ":"), len(v.Text)/4) // an entry has at least four bytes
	t.ids = make(map[string]int32, size)

	return c.Object(func(key string) error {
		id, err := c.Integer()
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
